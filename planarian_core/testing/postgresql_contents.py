# ruff: noqa: S608  # names from the catalog, quoted by it
"""What a PostgreSQL database holds, canonically: an oracle for undo that looks past the code under test.

Two dumps are equal when the schemas are, and every table has the same rows, counted, as text. Sequences are apart. A
dump costs milliseconds where little has changed: a table's text is read again when a row version (``ctid``, ``xmin``)
or its file differs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planarian_core.testing.postgresql_schema import CATALOGS, OTHERS, SCHEMA, SEQUENCES, TABLES

if TYPE_CHECKING:
    import psycopg

_FEW = 300
"""Tables with no more rows are kept as text, so that a difference can be shown."""
_PINNED = {
    "search_path": "",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "timezone": "UTC",
    "lock_timeout": "20s",
    "statement_timeout": "300s",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "default_transaction_isolation": "repeatable read",
}
_UNREADABLE = "unreadable"
# age() counts from the present: less the age of a given transaction, it is the same for ever.
_VERSIONS = """
SELECT {shown}, count(*), bit_xor(hashtidextended(x.ctid, age(x.xmin) - age('3'::xid)))::text FROM ONLY {name} x"""


@dataclass(frozen=True)
class Rows:
    """The rows of a table: how many, a sum of their hashes, and where they are few, their texts in order."""

    count: int
    digest: str
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dump:
    """``schema``: sorted lines. ``sequences``: last value and whether it was called; no part of equality."""

    schema: tuple[str, ...]
    tables: Mapping[str, Rows]
    sequences: Mapping[str, str] = field(default_factory=dict, compare=False)


def differences(wanted: Dump, found: Dump, most: int = 12) -> list[str]:
    """How two dumps differ, in lines; empty when they are equal."""
    lines = [f"- {line}" for line in wanted.schema if line not in set(found.schema)]
    lines += [f"+ {line}" for line in found.schema if line not in set(wanted.schema)]
    for name in sorted(wanted.tables.keys() | found.tables.keys()):
        one, other = wanted.tables.get(name), found.tables.get(name)
        if one == other:
            continue
        lines.append(f"{name}: {one.count if one else 'no'} rows, found {other.count if other else 'no'}")
        if one and other:
            lines += [f"{name} - {text}" for text in _without(one.texts, other.texts)]
            lines += [f"{name} + {text}" for text in _without(other.texts, one.texts)]
    if not lines and wanted != found:
        lines.append("the same lines, another number of times")
    return [line[:400] for line in lines[:most]]


def _without(texts: Sequence[str], others: Sequence[str]) -> list[str]:
    left = list(others)
    out = []
    for text in texts:
        if text in left:
            left.remove(text)
        else:
            out.append(text)
    return out


class DatabaseContents:
    """Reads dumps of one database. ``connection``: a superuser's own, in autocommit mode. ``hidden``: patterns
    (of LIKE) of schemas that are no part of it, with the triggers that call into them.
    """

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], hidden: Sequence[str] = ()) -> None:
        self._connection = connection
        self._hidden = f"ARRAY[{', '.join(map(_literal, hidden))}]::text[]"
        for name, value in _PINNED.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        self._versions = "\nUNION ALL\n".join(
            f"SELECT {_literal(name)}, count(*), bit_xor(hash_record_extended((x.ctid, x.xmin), 0)) FROM {name} x"
            + (f" WHERE x.{oid} >= 16384 OR x.{oid} = 2200" if oid else "")
            for name, oid in self._all(CATALOGS)
        )
        self._catalog_state: object = None
        self._position = ""
        self._last: Dump | None = None
        self._schema: tuple[str, ...] = ()
        self._types = ""
        self._tables: list[tuple[int, str, int, str]] = []
        self._table_queries: dict[str, str] = {}
        self._sequence_query = ""
        self._rows: dict[tuple[object, ...], Rows] = {}
        self._newest: dict[int, tuple[object, ...]] = {}

    def dump(self) -> Dump:
        """What the database holds now, in one snapshot of it."""
        [(position,)] = self._all("SELECT pg_current_wal_insert_lsn()::text")
        if self._last is not None and position == self._position:
            return self._last  # nothing was committed on the whole server
        with self._connection.transaction():
            self._look_at_schema()
            versions = self._row_versions()
            tables = {
                name: self._rows_of(oid, name, (file, columns, *versions[name]))
                for oid, name, file, columns in self._tables
            }
            sequences = dict(self._all(self._sequence_query))
        self._position, self._last = position, Dump(self._schema, tables, sequences)
        return self._last

    def _look_at_schema(self) -> None:
        state = self._all(self._versions)
        if state == self._catalog_state:
            return
        lines = self._all(f"{SCHEMA}\nUNION ALL\n{OTHERS}")
        self._schema = tuple(sorted(f"{kind} {text}" for kind, _, text in lines))
        self._types = _types_of(self._schema)
        self._tables = [(oid, name, file, columns) for oid, name, file, columns in self._all(TABLES)]
        large = "pg_catalog.pg_largeobject"
        self._tables.append((2613, large, 0, ""))
        self._table_queries = {
            name: _VERSIONS.format(shown=_literal(name), name=name) for _, name, _, _ in self._tables
        }
        self._sequence_query = "\nUNION ALL\n".join(
            f"SELECT {_literal(name)}, last_value || ' ' || is_called FROM {name}"
            for (name,) in self._all(SEQUENCES)
        ) or "SELECT '', '' WHERE false"  # fmt: skip
        self._catalog_state = state

    def _row_versions(self) -> dict[str, tuple[int, str]]:
        """How many rows each table has, and which versions of them."""
        import psycopg

        found = {}
        together = ["\nUNION ALL\n".join(self._table_queries.values())]
        for queries in (together, self._table_queries.values()):
            for query in queries:
                with contextlib.suppress(psycopg.Error), self._connection.transaction():
                    found.update({name: (count, digest) for name, count, digest in self._all(query)})
            if found:
                break
        # An index on a function that doesn't work any more keeps its table from being read at all.
        return {name: found.get(name, (-1, _UNREADABLE)) for name in self._table_queries}

    def _rows_of(self, oid: int, name: str, version: tuple[int, str, int, str]) -> Rows:
        key = (oid, *version, self._types)
        if key not in self._rows:
            self._rows.pop(self._newest.get(oid, ()), None)
            self._rows[key] = self._read_rows(name, version[2])
            self._newest[oid] = key
        return self._rows[key]

    def _read_rows(self, name: str, count: int) -> Rows:
        import psycopg

        text = '(x.*)::text COLLATE "C"'
        try:
            with self._connection.transaction():
                if count <= _FEW:
                    texts = tuple(row[0] for row in self._all(f"SELECT {text} FROM ONLY {name} x ORDER BY 1"))
                    return Rows(count, "", texts)
                [(digest,)] = self._all(f"SELECT sum(hashtextextended({text}, 0))::text FROM ONLY {name} x")
                return Rows(count, digest)
        except psycopg.Error:  # a type without text: how many rows there are must do
            return Rows(count, _UNREADABLE)

    def _all(self, statement: str) -> list[tuple[Any, ...]]:
        statement = statement.replace(":hidden", self._hidden)
        return self._connection.execute(statement.encode()).fetchall()


def _types_of(schema: Sequence[str]) -> str:
    """What decides how values are written, beside a table's own columns: enumerations, domains, ranges, composites."""
    composites = tuple(f"column {line.split(' ')[2]} #" for line in schema if line.startswith("relation c "))
    kinds = re.compile(r"type \S+ [edrm] ")
    return "\n".join(line for line in schema if kinds.match(line) or (composites and line.startswith(composites)))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
