"""What a statement is, from its text: a whitelist, and for everything else a reason that helps its author."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise

from planarian_remote.postgresql.lexer import NotReadable, Token, tokens

MAX_CHARACTERS = 4_000_000
SCHEMA = "planarian"

_CHANGES = frozenset({"insert", "update", "delete", "merge"})
_READS = frozenset({"select", "values", "table", "with", "show", "explain"})
_FORBIDDEN = re.compile(
    r"setval|pg_notify|set_config|lo_\w+|loread|lowrite|dblink\w*|pg_terminate_backend|pg_cancel_backend"
    r"|pg_(try_)?advisory_\w+|pg_reload_conf|pg_rotate_logfile\w*|pg_logical_\w+|pg_create_\w+|pg_drop_\w+"
    r"|pg_replication_\w+|pg_stat_reset\w*|pg_switch_wal|pg_export_snapshot|pg_import_system_collations"
    r"|query_to_xml\w*|cursor_to_xml\w*|ts_stat|ts_rewrite|crosstab\w*|connectby|xpath_table|pg_file_\w+"
    r"|pg_promote|pg_wal_\w+|brin_\w+|gin_clean_pending_list"
)
"""The same list as planarian.forbidden_functions() (schema/04_apply.sql)."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_OURS_IN_TEXT = re.compile(rf"{SCHEMA}\w*[\"\s]*\.", re.IGNORECASE)

_TRANSACTION = "a statement is a transaction of its own here, so that it can be undone: send each by itself"
_SESSION = "connections are shared between calls, so settings of a session aren't yours: use expressions or SET clauses"
_OPAQUE = "what it does can't be seen beforehand: send the statements that it would run"
_MAINTENANCE = "it is the work of the database's administrator"
_REASONS = {
    "copy": "COPY has a protocol of its own: use INSERT with several rows, or SELECT",
    **dict.fromkeys(
        ("begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"), _TRANSACTION
    ),
    **dict.fromkeys(("set", "reset", "discard", "load"), _SESSION),
    **dict.fromkeys(("do", "call"), _OPAQUE),
    **dict.fromkeys(
        ("prepare", "execute", "deallocate", "declare", "fetch", "move", "close"),
        "it belongs to a connection, and connections are shared between calls: send the statement itself",
    ),
    "lock": _TRANSACTION,
    **dict.fromkeys(("listen", "unlisten", "notify"), "a notification can't be taken back"),
    **dict.fromkeys(("vacuum", "analyze", "analyse", "reindex", "cluster", "checkpoint"), _MAINTENANCE),
    **dict.fromkeys(("grant", "revoke", "reassign", "security", "import"), _MAINTENANCE),
    "refresh": "the earlier content of a materialized view can't be brought back",
}  # fmt: skip


class What(StrEnum):
    """What a statement is taken for; the server has the last word."""

    READ = "read"
    ROWS = "rows"
    TRUNCATE = "truncate"
    SCHEMA = "schema"
    REFUSED = "refused"


@dataclass(frozen=True)
class Statement:
    """A statement and what it is taken for. ``reason``: why it is refused."""

    text: str
    what: What
    reason: str = ""
    words: Sequence[Token] = ()


def judge(text: object) -> Statement:
    """What a statement is; never raises."""
    if not isinstance(text, str):
        return Statement("", What.REFUSED, "the statement must be a string")
    return _of_text(text)


@lru_cache(maxsize=1)  # a call is classified, and then looked at again to be made
def _of_text(text: str) -> Statement:
    if len(text) > MAX_CHARACTERS:
        return Statement("", What.REFUSED, f"it is longer than {MAX_CHARACTERS} characters: send it in parts")
    if "\0" in text or _SURROGATE.search(text):
        return Statement(text, What.REFUSED, "it holds characters that no database text can hold")
    try:
        found = tokens(text)
    except NotReadable as error:
        return Statement(text, What.REFUSED, str(error))
    what, reason = _judge(found)
    return Statement(text, what, reason, found)


def _judge(found: Sequence[Token]) -> tuple[What, str]:
    first = next((token for token in found if token.text != "("), None)
    if first is None:
        return What.REFUSED, "it is empty"
    if first.kind != "word":
        return What.REFUSED, f"no statement begins with {first.text[:40]!r}"
    if any(t.text == ";" and t.kind == "mark" and u.text != ";" for t, u in pairwise(found)):
        return What.REFUSED, "it is several statements: send one at a time"
    if any(_is_ours(token) for token in found):
        return What.REFUSED, f"the schema {SCHEMA} holds undo data and is not for others"
    if first.text in _CHANGES:
        return What.ROWS, ""
    if first.text in _READS:
        return _read_or_write(first.text, found), ""
    if first.text == "truncate":
        return What.TRUNCATE, ""
    if first.text in ("create", "alter", "drop", "comment"):
        return What.SCHEMA, ""
    return What.REFUSED, _REASONS.get(first.text, f"{first.text.upper()[:40]} is not among the statements known here")


def _read_or_write(first: str, found: Sequence[Token]) -> What:
    if first == "explain":
        return What.READ
    words = {token.text for token in found if token.kind == "word"}
    if "into" in words and not words & _CHANGES:
        return What.SCHEMA
    if first == "with" and words & _CHANGES:
        return What.ROWS
    if any(token.kind in ("word", "quoted") and _FORBIDDEN.fullmatch(token.text) for token in found):
        return What.ROWS  # where the server names what is wrong with it
    return What.READ


def _is_ours(token: Token) -> bool:
    if token.kind in ("word", "quoted"):
        return token.text.lower().startswith(SCHEMA)
    return token.kind in ("string", "escaped") and _OURS_IN_TEXT.search(token.text) is not None
