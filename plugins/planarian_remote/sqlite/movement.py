"""Undoing effects and doing them again: one transaction for all of a move, and a rehearsal that is rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import apsw

from planarian_core.faults import reach
from planarian_core.model import Effect, EffectState
from planarian_remote.sqlite import log
from planarian_remote.sqlite.file import DatabaseFile, Writer
from planarian_remote.sqlite.images import Images, apply_images, decode_images
from planarian_remote.sqlite.rows import broken_keys
from planarian_remote.sqlite.trouble import Conflict, Trouble

Done = list[tuple[Effect, EffectState]]


class MissingData(Trouble):
    """The database doesn't hold the undo data of an effect."""

    missing = True


def move(file: DatabaseFile, undo: Sequence[Effect], redo: Sequence[Effect], *, rehearsal: bool = False) -> Done:
    """Undo, then do again, in these orders, all or nothing. Effects that are in their wanted state are passed over.

    Returns all of them with the states they have from now on; what was left to others (``on_conflict = "skip"``) is in
    their summaries.

    Raises:
        Conflict, MissingData, Trouble: nothing was changed, unless ``uncertain``.
    """
    try:
        with file.writing() as (writer, reader):
            done = _all(file, writer, undo, redo)
            if not rehearsal:
                reach("sqlite.written")
                file.commit(writer, reader)
                reach("sqlite.committed")
            return done
    finally:
        file.close()  # full text indexes of this connection don't know that their tables were written


def _all(file: DatabaseFile, writer: Writer, undo: Sequence[Effect], redo: Sequence[Effect]) -> Done:
    wanted = [(e, EffectState.UNDONE) for e in undo] + [(e, EffectState.APPLIED) for e in redo]
    entries = [_entry(file, writer, effect) for effect, _ in wanted]
    touched = _touched(writer, entries) if file.settings.foreign_keys else frozenset()
    broken = broken_keys(writer, touched)
    done: Done = []
    for (effect, state), entry in zip(wanted, entries, strict=True):
        left = [] if entry.state is state else _step(file, writer, effect, _images(writer, entry), state)
        log.set_state(writer.connection, entry, state)
        done.append((_noted(effect, left), state))
    if more := broken_keys(writer, touched) - broken:
        raise Conflict([f"{row[0]} has a row that refers to {row[2]}, where its row would be missing" for row in more])
    return done


def _touched(writer: Writer, entries: Sequence[log.Entry]) -> frozenset[str]:
    return frozenset[str]().union(*(_images(writer, entry).touched for entry in entries))


def _entry(file: DatabaseFile, writer: Writer, effect: Effect) -> log.Entry:
    entry = log.find(writer.connection, effect)
    if entry is None or entry.state is EffectState.VOID:
        raise MissingData(
            f"the database {file.path} holds no undo data of effect {effect.number} ({effect.summary}): it is another "
            "one, or an older copy",
            "put the database back that the effect was made in, or choose another statepoint",
        )
    return entry


def _images(writer: Writer, entry: log.Entry) -> Images:
    encoded = log.images(writer.connection, entry)
    return Images() if encoded is None else decode_images(encoded)


def _step(file: DatabaseFile, writer: Writer, effect: Effect, images: Images, state: EffectState) -> list[str]:
    forward = images if state is EffectState.APPLIED else images.reversed
    try:
        return apply_images(writer, forward, file.settings, skip=file.settings.skip_conflicts)
    except (apsw.ConstraintError, apsw.SQLError) as error:
        raise Conflict([f"effect {effect.number} ({effect.summary}): {error}"]) from error


def _noted(effect: Effect, left: Sequence[str]) -> Effect:
    if not left:
        return effect
    shown = "; ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
    return replace(effect, summary=f"{effect.summary} (left to others: {shown})")
