"""What the kind asks for, on one database: the part that needs apsw."""

from __future__ import annotations

from collections.abc import Sequence

from planarian_core.interfaces import CallOutcome, ToolResult
from planarian_core.model import CallClass, Effect, EffectState, Verdict
from planarian_remote.sqlite import log, movement, statements
from planarian_remote.sqlite.file import DatabaseFile
from planarian_remote.sqlite.judge import NEVER, READING, Writes, first_word
from planarian_remote.sqlite.results import style_of
from planarian_remote.sqlite.settings import Settings
from planarian_remote.sqlite.trouble import Trouble, translated

_CHANGE = Verdict(CallClass.COMPENSABLE, "it is run with its undo data in one transaction")


class Engine:
    trouble = Trouble
    """What its methods raise."""

    def __init__(self, settings: Settings) -> None:
        self._style = style_of(settings.style)
        self._file = DatabaseFile(settings)

    def classify(self, tool: str, argument: str) -> Verdict:
        sql = self._style.statement(tool, argument)
        if not isinstance(sql, str):
            return Verdict(CallClass.READ_ONLY, "it is no statement")
        word = first_word(sql)
        if word in NEVER:
            return Verdict(CallClass.REFUSED, f"{word}: {NEVER[word]}")
        if word in READING:
            return Verdict(CallClass.READ_ONLY, "SQLite says that it writes nothing, on a connection that can't write")
        return _CHANGE

    def read(self, tool: str, argument: str) -> ToolResult | Verdict:
        sql = self._style.statement(tool, argument)
        if not isinstance(sql, str):
            return sql
        try:
            return self._style.answer(tool, statements.read(self._file, sql))
        except statements.StatementError as error:
            return self._style.failure(error)
        except Writes:
            return _CHANGE

    def run(self, tool: str, argument: str, effect: Effect) -> CallOutcome:
        self._style.check_write(argument)
        try:
            answer = statements.run(self._file, argument, effect)
        except statements.StatementError as error:
            summary = f"{effect.summary}: {error.message}"[:300]
            return CallOutcome(self._style.failure(error), EffectState.VOID, summary)
        state = EffectState.APPLIED if answer.summary else EffectState.VOID
        return CallOutcome(self._style.answer(tool, answer), state, answer.summary)

    def settle(self, effect: Effect) -> tuple[EffectState, str]:
        """What the database holds of an effect; where it holds nothing, from now on it never will."""
        with self._file.writing() as (writer, reader):
            entry = log.find(writer.connection, effect)
            if entry is not None:
                return entry.state, entry.summary
            log.prepare(writer.connection)
            log.add(writer.connection, effect, EffectState.VOID)
            self._file.commit(writer, reader)
            return EffectState.VOID, ""

    def knows(self, effect: Effect) -> bool:
        """Whether the database holds an effect's entry."""
        with translated(self._file.path):
            return log.find(self._file.readable().connection, effect) is not None

    def move(self, undo: Sequence[Effect], redo: Sequence[Effect], *, rehearsal: bool = False) -> movement.Done:
        return movement.move(self._file, undo, redo, rehearsal=rehearsal)

    def forget(self, effects: Sequence[Effect]) -> None:
        with self._file.writing() as (writer, reader):
            log.forget(writer.connection, effects)
            self._file.commit(writer, reader)
        self._file.close()
