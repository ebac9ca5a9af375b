"""Our functions in the target database, called through whatever tool takes a SQL string."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from planarian_core.errors import RemoteError
from planarian_core.interfaces import ToolResult, ToolTarget
from planarian_remote.postgresql import installation
from planarian_remote.postgresql.lexer import literal

_STATE = re.compile(r"ERROR: (?P<message>.*) \(SQLSTATE (?P<state>[0-9A-Z]{5})\)\s*\Z", re.DOTALL)
_UNINSTALLED = ("3F000", "42883")
"""No such schema, no such function."""
_CUT_OFF = ("57P01", "57P02", "57P03", "57P05")

REFUSED, WATCH, CONFLICT, VERSION, UNKNOWN, CLOSER, AGAIN = (
    "PLN01", "PLN02", "PLN03", "PLN04", "PLN06", "PLN07", "PLN08",
)  # fmt: skip
"""SQLSTATEs of our own functions."""


class DatabaseError(Exception):
    """The database took a call back. ``result`` is what the tool gave for it."""

    def __init__(self, state: str, message: str, result: ToolResult) -> None:
        super().__init__(message)
        self.state = state
        self.message = message
        self.result = result


class Database:
    """One tool of one target that runs a SQL statement in a transaction of its own.

    Args:
        setup_dsn: who installs our functions and puts triggers on tables; empty: the tool's own role.
    """

    def __init__(self, tool: str, argument: str, lock_timeout: str, setup_dsn: str = "") -> None:
        self.tool = tool
        self.argument = argument
        self.lock_timeout = lock_timeout
        self.setup_dsn = setup_dsn

    def ask(
        self, target: ToolTarget, function: str, *arguments: object, more: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], ToolResult]:
        """Call a function of ours; its answer, and the result that it came in. Installs the functions first where they
        aren't there yet.

        Raises:
            DatabaseError: the call was taken back; ``state`` is the SQLSTATE.
            RemoteError: ``service-unreachable``: nobody knows; ``schema-newer``.
        """
        return self._asked(target, f"SELECT {_call(function, *arguments)}", more)

    def read(
        self, target: ToolTarget, statement: str, max_result: int, more: Mapping[str, Any]
    ) -> tuple[dict[str, Any], ToolResult]:
        """Have a statement run that must only read; an answer ``too_large`` where it would be longer than that, which
        the server finds out: it is not sent.
        """
        asked = f"(SELECT {_call('read', statement)} AS a OFFSET 0)"  # OFFSET: it is called once
        tested = f"pg_catalog.octet_length(r.a) > {max_result:d}"
        checked = f"SELECT CASE WHEN {tested} THEN '{{\"too_large\": 1}}' ELSE r.a END FROM {asked} r"  # noqa: S608  # ours
        return self._asked(target, checked, more)

    def knows(self, target: ToolTarget, owner: str, undo: Sequence[int], redo: Sequence[int]) -> bool:
        """Whether the database knows the effects of a way, which is rehearsed. Installs nothing.

        Raises:
            DatabaseError: it can't say.
        """
        call = _call("move", owner, undo, redo, False, True, self.lock_timeout)
        try:
            self.run(target, f"SELECT {call}")
        except DatabaseError as error:
            if error.state in _UNINSTALLED or error.state == UNKNOWN:
                return False
            if error.state == CONFLICT:  # a kill left the log behind the database: known, and elsewhere
                return True
            if error.state != VERSION:
                raise
            self.install(target)
            return self.knows(target, owner, undo, redo)
        return True

    def _asked(
        self, target: ToolTarget, statement: str, more: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], ToolResult]:
        try:
            result = self.run(target, statement, more)
        except DatabaseError as error:
            if not self._missing(error):
                raise
            self.install(target)
            result = self.run(target, statement, more)
        return _answer(result), result

    def run(self, target: ToolTarget, statement: str, more: Mapping[str, Any] | None = None) -> ToolResult:
        """Run any statement of ours through the tool."""
        result = target.call(self.tool, {**(more or {}), self.argument: statement})
        if result.get("isError"):
            raise database_error(result)
        return result

    def watch(self, target: ToolTarget, relations: Sequence[int | str]) -> None:
        """Put triggers on tables."""
        statement = f"SELECT planarian.watch({written([int(r) for r in relations])}, {written(self.lock_timeout)})"
        if self.setup_dsn:
            self._as_owner(statement)
        else:
            self.run(target, statement)

    def install(self, target: ToolTarget) -> None:
        """Put our functions into the database, or bring them up to date.

        Raises:
            RemoteError: ``schema-newer``, or ``service-setup``: the role may not.
        """
        try:
            if self.setup_dsn:
                self._as_owner(installation.script())
                role = json.loads(text_of(self.run(target, "SELECT quote_ident(current_user) AS role")))["role"]
                self._as_owner(f"GRANT USAGE ON SCHEMA planarian TO {role}")
            else:
                self.run(target, installation.script())
        except DatabaseError as error:
            if error.state == VERSION:
                raise RemoteError(
                    f"the database holds undo data of a newer Planarian (schema version {error.message})",
                    code="schema-newer",
                    state="nothing was changed",
                    remedy="pip install --upgrade planarian",
                ) from error
            raise RemoteError(
                f"Planarian's schema can't be put into the database: {error.message}",
                code="service-setup",
                state="nothing was changed",
                remedy="let the role create it (GRANT CREATE ON DATABASE … TO …), or name a setup_dsn that may",
            ) from error

    def _missing(self, error: DatabaseError) -> bool:
        if error.state == VERSION:
            return True
        return error.state in _UNINSTALLED and "planarian" in error.message

    def _as_owner(self, statement: str) -> None:
        from planarian_remote.postgresql.direct import DirectTarget

        owner = DirectTarget(self.setup_dsn)
        try:
            result = owner.call("execute_sql", {"sql": statement})
        finally:
            owner.close()
        if result.get("isError"):
            raise database_error(result)


def _call(function: str, *arguments: object) -> str:
    return f"planarian.{function}({', '.join(map(written, (installation.VERSION, *arguments)))})"


def database_error(result: ToolResult) -> Exception:
    """What to raise for an error result: a RemoteError where nobody knows whether the call had its effect."""
    text = text_of(result)
    match = _STATE.search(text)
    if match is None or match["state"].startswith("08") or match["state"] in _CUT_OFF:
        return RemoteError(
            f"the database's connection failed: {text[:500]}",
            code="service-unreachable",
            state="the call may have had its effect; the next call, snapshot or rollback finds out",
            remedy="see that the database runs, then go on",
        )
    return DatabaseError(match["state"], match["message"], result)


def sqlstate(result: ToolResult) -> str:
    """The SQLSTATE of an error result; empty for any other."""
    match = _STATE.search(text_of(result)) if result.get("isError") else None
    return match["state"] if match else ""


def text_of(result: ToolResult) -> str:
    """The text of the first content item."""
    for item in result.get("content") or ():
        if isinstance(item, Mapping) and isinstance(item.get("text"), str):
            return str(item["text"])
    return ""


def written(value: object) -> str:
    """A value as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, Sequence) and value and isinstance(value[0], str):
        return "ARRAY[" + ",".join(literal(str(v)) for v in value) + "]"
    if isinstance(value, Sequence):
        return "'{" + ",".join(str(int(v)) for v in value) + "}'"
    raise TypeError(f"{type(value).__name__} can't be written as SQL")  # pragma: no cover


def _answer(result: ToolResult) -> dict[str, Any]:
    """What a function of ours returned: one row of one column, a text that is JSON."""
    try:
        (value,) = json.loads(text_of(result)).values()
        answer = json.loads(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise RemoteError(
            f"the tool gave no answer that can be read: {text_of(result)[:200]!r}",
            code="service-unreachable",
            state="the call may have had its effect; the next call, snapshot or rollback finds out",
            remedy="`tool` and `argument` must name a tool that runs one SQL statement and gives its rows as JSON",
        ) from error
    if not isinstance(answer, dict):
        raise RemoteError("the tool gave another answer than was asked for", code="service-unreachable")
    return answer
