"""Plain changes: statements on one table in which nothing can hide, so that the server need not explain them first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planarian_remote.postgresql.lexer import Token
from planarian_remote.postgresql.schema_change import name_end
from planarian_remote.postgresql.statements import Statement, What

_ELSEWHERE = frozenset({"conflict", "select", "table", "using", "with", "join", "merge", "current", "only"})
"""Words of statements that look at other tables, or at cursors, or do more than one kind of thing."""
_FORMS = frozenset(
    """
    all and any array between case cast coalesce else greatest in is least like not nullif on or row set then values
    when where key varchar char numeric decimal timestamp time interval
    """.split()  # noqa: SIM905
)
"""Words that an opening parenthesis may follow without being functions: operators, clauses, types."""

_FUNCTIONS = frozenset(
    """
    abs btrim ceil ceiling char_length character_length clock_timestamp concat concat_ws date_part date_trunc floor
    format gen_random_uuid initcap jsonb_build_array jsonb_build_object jsonb_set json_build_array json_build_object
    left length lower lpad ltrim make_date md5 mod now pi power random repeat replace reverse right round rpad rtrim
    sign split_part sqrt strpos substr to_char to_date to_json to_jsonb to_number to_timestamp trunc upper
    """.split()  # noqa: SIM905
)
"""Functions that only compute, where they are the system's own (the server sees to that)."""


@dataclass(frozen=True)
class Plain:
    """``target``: the table's name as written; None: it isn't plain. ``kind``: i, u or d, what it does to rows.
    ``functions``: those that it calls. ``columns``: what an UPDATE assigns, where known (also where it isn't plain).
    """

    target: str | None = None
    returns: bool = False
    kind: str = ""
    functions: Sequence[str] = ()
    columns: Sequence[str] | None = None


def plain_change(statement: Statement) -> Plain:
    """What can be said of an INSERT, UPDATE or DELETE without asking the server."""
    found = statement.words
    if statement.what is not What.ROWS or found[0].text not in ("insert", "update", "delete"):
        return Plain()
    action = found[0].text
    at = 1 if action == "update" else 2
    columns = _assigned(found) if action == "update" else None
    end = name_end(found, at)
    functions = _functions(found, end, inserts=action == "insert") if end > at else None
    if functions is None:
        return Plain(columns=columns)
    target = statement.text[found[at].start : found[end - 1].end]
    returns = any(token.kind == "word" and token.text == "returning" for token in found)
    return Plain(target, returns, action[0], functions, columns)


def _functions(found: Sequence[Token], end: int, *, inserts: bool) -> list[str] | None:
    """The functions that a statement calls whose table's name ends at a token; None where it isn't plain."""
    functions = []
    before = found[0]
    for place, token in enumerate(found[1:], start=1):
        kind, text, *_ = token
        if kind == "word":
            if text in _ELSEWHERE or (text == "from" and place >= end):
                return None
        elif kind == "mark":
            if text == "$":
                return None
            if text == "(" and not (inserts and place == end):
                if before.kind == "word" and before.text in _FUNCTIONS:
                    functions.append(before.text)
                elif before.kind == "quoted" or (before.kind == "word" and before.text not in _FORMS):
                    return None
        before = token
    return functions


def _assigned(found: Sequence[Token]) -> Sequence[str] | None:
    """The columns that ``SET a = …, b = …`` assigns; None where that can't be told."""
    try:
        at = next(i for i, token in enumerate(found) if token.kind == "word" and token.text == "set")
    except StopIteration:
        return None
    columns = []
    while True:
        name, after = found[at + 1 : at + 2], found[at + 2 : at + 3]
        if not after or name[0].kind not in ("word", "quoted") or after[0].text != "=":
            return None
        columns.append(name[0].text)
        at += 3
        while at < len(found) and not (found[at].depth == 0 and found[at].text in (",", "where", "from", "returning")):
            at += 1
        if at >= len(found) or found[at].text != ",":
            return columns
