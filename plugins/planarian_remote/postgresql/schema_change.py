"""Changes of the schema that have an exact inverse, recognised from their words; the database proves it by a trial."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from planarian_remote.postgresql.lexer import NotReadable, Token, tokens
from planarian_remote.postgresql.statements import SCHEMA, Statement, forbidden_call

_MADE = ("TABLE", "VIEW", "SEQUENCE", "SCHEMA", "TYPE", "DOMAIN", "FUNCTION", "PROCEDURE", "TRIGGER", "INDEX")
_DROPPED = ("TABLE", "VIEW", "SEQUENCE", "INDEX")
_BEFORE_KIND = frozenset({"or", "replace", "unlogged", "unique", "recursive", "materialized", "constraint"})
_OF_SESSION = frozenset({"set", "reset", "notify", "listen", "unlisten", "discard", "load"})
_STARTS = frozenset({"begin", "then", "else", "loop", ";", ">", "atomic"})
"""What a statement in a function's body may come after."""
_HIDDEN = re.compile(
    rf"{SCHEMA}|execute|set_config|_read_only|session_replication_role|query_to_xml|dblink", re.IGNORECASE
)
_KNOWN = (
    "can be undone: CREATE TABLE, INDEX, VIEW, SEQUENCE, SCHEMA, TYPE, FUNCTION, TRIGGER; DROP TABLE, INDEX, VIEW, "
    "SEQUENCE (one, without CASCADE); ALTER TABLE with one of ADD COLUMN, ADD CONSTRAINT, RENAME, ALTER COLUMN SET or "
    "DROP DEFAULT or NOT NULL"
)


class NotUndoable(ValueError):
    """The message says why, and what could be done instead."""


@dataclass(frozen=True)
class SchemaChange:
    """What planarian.apply_schema takes (schema/11_schema.sql)."""

    form: str
    kind: str | None = None
    name: str | None = None
    column: str | None = None
    undo: str | None = None


def schema_change(statement: Statement) -> SchemaChange:
    """How a statement changes the schema.

    Raises:
        NotUndoable: in a way that isn't known to be undone exactly.
    """
    found = [token for token in statement.words if not (token.kind == "mark" and token.text == ";")]
    words = [token.text if token.kind == "word" else "" for token in found]
    if words[0] == "create":
        return _create(statement, found, words)
    if words[0] == "drop":
        return _drop(statement, found, words)
    if words[:2] == ["alter", "table"]:
        return _alter(statement, found, words)
    if words[0] in ("select", "with", "values", "table"):
        raise NotUndoable("instead of SELECT INTO use CREATE TABLE … AS SELECT")
    raise NotUndoable(_KNOWN)


def _create(statement: Statement, found: Sequence[Token], words: Sequence[str]) -> SchemaChange:
    made = next((word.upper() for word in words[1:] if word not in _BEFORE_KIND), "")
    if made not in _MADE or "temp" in words[1:4] or "temporary" in words[1:4] or "concurrently" in words[:4]:
        raise NotUndoable(_KNOWN)
    if words[1:3] == ["or", "replace"]:
        raise NotUndoable(
            "OR REPLACE leaves no trace of what was there: drop it first, or give the new one another name"
        )
    kind = "MATERIALIZED VIEW" if "materialized" in words[1:3] else made
    if kind == "SCHEMA" and len(found) > 6:
        raise NotUndoable("create the schema first, and what is in it one by one")
    if kind in ("FUNCTION", "PROCEDURE"):
        _check_body(found, words)
    return SchemaChange("create", kind)


def _check_body(found: Sequence[Token], words: Sequence[str]) -> None:
    """A function's body must be readable: no language but SQL and PL/pgSQL, and no text run as a statement."""
    languages = [found[at + 1].text.lower().strip("'") for at, word in enumerate(words[:-1]) if word == "language"]
    if any(language not in ("sql", "plpgsql") for language in languages):
        raise NotUndoable("functions are possible in the languages sql and plpgsql")
    if any(a.kind == b.kind == "string" for a, b in pairwise(found)):
        raise NotUndoable("write the function's body as one text, not in parts")
    for token in found:
        body = _unquoted(token.text)
        if token.kind == "escaped" or (token.kind == "string" and _HIDDEN.search(body)):
            raise NotUndoable(
                "what the function would do can't be seen: no EXECUTE, set_config or escape strings in it"
            )
        if token.kind == "string":
            try:
                _check_code(tokens(body))
            except NotReadable as error:
                raise NotUndoable(f"the function's body: {error}") from error


def _unquoted(text: str) -> str:
    """What a text in single quotes holds; of dollar quotes the lexer has only that."""
    start = text.find("'")
    return text[start + 1 : -1].replace("''", "'") if start in (0, 1) and text.endswith("'") else text


def _check_code(found: Sequence[Token]) -> None:
    """Nothing in a body may leave what is no row: it may run where a statement is only taken for a read."""
    named = forbidden_call(found)
    for place, token in enumerate(found):
        starts = place == 0 or found[place - 1].text in _STARTS
        if token.kind == "word" and token.text in _OF_SESSION and starts:
            named = token.text.upper()
    if named:
        raise NotUndoable(f"the function's body: {named} leaves effects that can't be undone")


def _drop(statement: Statement, found: Sequence[Token], words: Sequence[str]) -> SchemaChange:
    kind = words[1].upper() if len(words) > 1 else ""
    at = 4 if list(words[2:4]) == ["if", "exists"] else 2
    end = name_end(found, at)
    if kind not in _DROPPED or "concurrently" in words or words[-1] == "cascade" or end == at:
        raise NotUndoable(_KNOWN)
    if len(found) > end + (words[-1] == "restrict"):
        raise NotUndoable("drop one at a time")
    return SchemaChange("drop", kind, statement.text[found[at].start : found[end - 1].end])


def _alter(statement: Statement, found: Sequence[Token], words: Sequence[str]) -> SchemaChange:
    at = 2
    for skipped in (("if", "exists"), ("only",)):
        if tuple(words[at : at + len(skipped)]) == skipped:
            at += len(skipped)
    end = name_end(found, at)
    action, rest = list(words[end:]), found[end:]
    if end == at or any(token.depth == 0 and token.text == "," for token in rest):
        raise NotUndoable(f"one change of a table at a time; {_KNOWN}")
    name = statement.text[found[at].start : found[end - 1].end]
    if action[:1] == ["add"]:
        return _add(name, rest, action)
    if action[:1] == ["rename"]:
        return _rename(name, statement, rest, action)
    if action[:1] == ["alter"]:
        column = 2 if action[1:2] == ["column"] else 1
        what = action[column + 1 : column + 4]
        for undo, forms in (("not null", (["set", "not", "null"], ["drop", "not", "null"])),
                            ("default", (["set", "default"], ["drop", "default"]))):  # fmt: skip
            if any(what[: len(form)] == form for form in forms):
                return SchemaChange("alter", None, name, rest[column].text, undo)
    raise NotUndoable(_KNOWN)


def _add(name: str, rest: Sequence[Token], action: Sequence[str]) -> SchemaChange:
    if action[1] in ("constraint", "check", "unique", "primary", "foreign", "exclude"):
        return SchemaChange("alter", None, name)
    at = 2 if action[1] == "column" else 1
    if action[at] == "if" or rest[at].kind not in ("word", "quoted"):
        raise NotUndoable("ADD COLUMN without IF NOT EXISTS")
    return SchemaChange("alter", None, name, rest[at].text, "drop column")


def _rename(name: str, statement: Statement, rest: Sequence[Token], action: Sequence[str]) -> SchemaChange:
    def written(token: Token) -> str:
        return statement.text[token.start : token.end]

    if action[1] == "to":
        schema, _, last = name.rpartition(".")
        new = f"{schema}.{written(rest[2])}" if schema else written(rest[2])
        return SchemaChange("alter", None, name, None, f"ALTER TABLE {new} RENAME TO {last}")
    at = 2 if action[1] in ("column", "constraint") else 1
    word = action[1].upper() if action[1] in ("column", "constraint") else "COLUMN"
    if action[at + 1 : at + 2] != ["to"] or len(rest) != at + 3:
        raise NotUndoable(_KNOWN)
    undo = f"ALTER TABLE {name} RENAME {word} {written(rest[at + 2])} TO {written(rest[at])}"
    return SchemaChange("alter", None, name, None, undo)


def name_end(found: Sequence[Token], at: int) -> int:
    """Where a name ends that begins at a token, with its schema; ``at`` where none does."""
    end = at
    while end < len(found) and found[end].kind in ("word", "quoted"):
        end += 1
        if end < len(found) and found[end].text == "." and found[end].kind == "mark":
            end += 1
            continue
        break
    return end
