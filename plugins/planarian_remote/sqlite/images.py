"""Undo data of one effect: everything that it changed, before and after, so that it can be undone and done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planarian_remote.sqlite.capture import (
    STATISTICS,
    Change,
    changes_of,
    decode_change,
    encode_change,
    sequence_changes,
    sequences_of,
)
from planarian_remote.sqlite.capture import Sequence as SequenceChange
from planarian_remote.sqlite.definitions import Redefinition, decode_side, encode_side, redefine, redefinition_of
from planarian_remote.sqlite.file import Link, Writer
from planarian_remote.sqlite.rows import apply_rows, apply_sequences
from planarian_remote.sqlite.settings import Settings
from planarian_remote.sqlite.trouble import Conflict, Refused
from planarian_remote.sqlite.values import as_row, dump, load

_VERSION = 1


@dataclass(frozen=True)
class Images:
    """``tables`` holds the definition of each table of which rows changed, so that they only go where they came from.

    Definitions change before rows in both directions: a statement that changes both (DROP TABLE with cascades) changes
    rows of tables that it doesn't redefine.
    """

    changes: tuple[Change, ...] = ()
    tables: tuple[tuple[str, str], ...] = ()
    sequences: tuple[SequenceChange, ...] = ()
    redefinition: Redefinition | None = None

    @property
    def empty(self) -> bool:
        return not (self.changes or self.sequences or self.redefinition)

    @property
    def reversed(self) -> Images:
        return Images(
            tuple(Change(change.table, change.new, change.old) for change in self.changes),
            self.tables,
            tuple((name, new, old) for name, old, new in self.sequences),
            self.redefinition.reversed if self.redefinition else None,
        )

    @property
    def touched(self) -> frozenset[str]:
        return frozenset(change.table for change in self.changes) | (
            self.redefinition.tables if self.redefinition else frozenset()
        )

    def summary(self) -> str:
        """One line for people: which tables changed, by how many rows."""
        counted = Counter(change.table for change in self.changes)
        parts = [f"{table}: {count} row{'s' * (count != 1)}" for table, count in sorted(counted.items())]
        if self.redefinition:
            gone = {o.text for o in self.redefinition.before.objects}
            made = {o.text for o in self.redefinition.after.objects}
            names_gone, names_made = ({(kind, name) for kind, name, _, sql in side if sql} for side in (gone, made))
            parts += [f"{kind} {name} made" for kind, name in sorted(names_made - names_gone)]
            parts += [f"{kind} {name} gone" for kind, name in sorted(names_gone - names_made)]
            changed = {(kind, name) for kind, name, _, _ in gone ^ made} & names_gone & names_made
            parts += [f"{kind} {name} changed" for kind, name in sorted(changed)]
        return ", ".join(parts[:6]) + (", …" if len(parts) > 6 else "") or "nothing changed"


def images_of(writer: Writer, reader: Link, settings: Settings, *, defines: bool) -> Images:
    """What the statement that just ran on ``writer`` changed; ``reader`` still sees what was there before.

    Raises:
        Refused: it can't be told exactly.
    """
    redefinition = redefinition_of(writer, reader, settings.max_rows) if defines else None
    if redefinition:
        for table in STATISTICS:  # DROP TABLE drops rows there, past the hook
            if writer.schema().has(table):
                writer.touched.add_whole(table)
    passed_over = redefinition.tables if redefinition else frozenset()
    changes = changes_of(writer, reader, passed_over, settings.max_rows)
    sequences = sequence_changes(sequences_of(reader), sequences_of(writer))
    schema = writer.schema()
    tables = sorted({change.table for change in changes})
    return Images(tuple(changes), tuple((t, schema.shape(t).sql) for t in tables), tuple(sequences), redefinition)


def apply_images(writer: Writer, images: Images, settings: Settings, *, skip: bool = False) -> list[str]:
    """Bring all from before to after, within a transaction; returns what was left to others (``skip``).

    Raises:
        Conflict: somebody else changed it since.
        Trouble: it did not come out exactly. The caller rolls back.
    """
    with writer.plain():
        if images.redefinition is not None:
            redefine(writer, images.redefinition, settings.max_rows)
            writer.forget_schema()
        schema = writer.schema()
        others = [t for t, sql in images.tables if not schema.has(t) or schema.shape(t).sql != sql]
        if others:
            raise Conflict([f"the definition of the table {table}" for table in others])
        left = apply_rows(writer, images.changes, skip=skip)
        apply_sequences(writer, images.sequences)
        return left


# --- as data ---


def encode_images(images: Images, max_bytes: int) -> bytes:
    data = {
        "version": _VERSION,
        "rows": [encode_change(change) for change in images.changes],
        "tables": images.tables,
        "sequences": images.sequences,
    }
    if images.redefinition is not None:
        before, after = encode_side(images.redefinition.before), encode_side(images.redefinition.after)
        data["definitions"] = {"before": before, "after": after, "texts": images.redefinition.texts}
    encoded = dump(data)
    if len(encoded) > max_bytes:
        raise Refused(f"its undo data is larger than {max_bytes} bytes (max_bytes)")
    return encoded


def decode_images(encoded: bytes) -> Images:
    data = load(encoded)
    definitions = data.get("definitions")
    sequences: Sequence[list[object]] = data["sequences"]
    return Images(
        tuple(decode_change(change) for change in data["rows"]),
        tuple((table, sql) for table, sql in data["tables"]),
        tuple((str(name), as_row(old), as_row(new)) for name, old, new in sequences),  # type: ignore[arg-type]  # JSON
        Redefinition(decode_side(definitions["before"]), decode_side(definitions["after"]), definitions["texts"])
        if definitions
        else None,
    )
