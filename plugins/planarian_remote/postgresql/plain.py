"""Plain changes: statements on one table in which nothing can hide, so that the server need not explain them first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planarian_remote.postgresql.lexer import Token
from planarian_remote.postgresql.statements import Statement, What

_ELSEWHERE = frozenset({"select", "table", "using", "with", "join", "merge", "current", "only"})
"""Words of statements that look at other tables, or at cursors."""
_CALLS = frozenset(
    """
    abs all and any array avg between btrim case cast ceil ceiling char_length character_length clock_timestamp
    coalesce concat concat_ws date_part date_trunc decimal else extract floor format gen_random_uuid greatest in
    initcap is jsonb_build_array jsonb_build_object jsonb_set json_build_array json_build_object key least left
    length like lower lpad ltrim make_date md5 mod not now nullif numeric on or overlay pi position power repeat
    replace reverse right round row rpad rtrim set sign split_part sqrt strpos substr substring then timestamp
    to_char to_date to_json to_jsonb to_number to_timestamp trim trunc upper values varchar varying when where
    """.split()  # noqa: SIM905  # a list of 90 strings says no more
)
"""Words that an opening parenthesis may follow: operators, clauses, types, and functions that only compute."""


@dataclass(frozen=True)
class Plain:
    """``target``: the table's name as written; None: it isn't plain. ``columns``: what an UPDATE assigns, where known
    (also where it isn't plain).
    """

    target: str | None = None
    returns: bool = False
    inserts: bool = False
    columns: Sequence[str] | None = None


def plain_change(statement: Statement) -> Plain:
    """What can be said of an INSERT, UPDATE or DELETE without asking the server."""
    found = statement.words
    if statement.what is not What.ROWS or found[0].text not in ("insert", "update", "delete"):
        return Plain()
    action = found[0].text
    at = 1 if action == "update" else 2
    columns = _assigned(found) if action == "update" else None
    end = _name_end(found, at)
    if end == at or not _is_plain(found, at, end, inserts=action == "insert"):
        return Plain(columns=columns)
    target = statement.text[found[at].start : found[end - 1].end]
    returns = any(token.kind == "word" and token.text == "returning" for token in found)
    return Plain(target, returns, action == "insert", columns)


def _name_end(found: Sequence[Token], at: int) -> int:
    """Where a name ends that begins at a token, with its schema."""
    end = at
    while end < len(found) and found[end].kind in ("word", "quoted"):
        end += 1
        if end < len(found) and found[end].text == "." and found[end].kind == "mark":
            end += 1
            continue
        break
    return end


def _is_plain(found: Sequence[Token], at: int, end: int, *, inserts: bool) -> bool:
    words = {token.text for token in found[1:] if token.kind == "word"}
    if words & _ELSEWHERE or ("from" in {token.text for token in found[end:] if token.kind == "word"}):
        return False
    for place, token in enumerate(found):
        if token.kind != "mark" or token.text != "(" or place == 0:
            continue
        before = found[place - 1]
        if before.kind == "quoted" and not (inserts and place == end):
            return False
        if before.kind == "word" and before.text not in _CALLS and not (inserts and place == end):
            return False
    return not any(token.text == "$" for token in found if token.kind == "mark")


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
