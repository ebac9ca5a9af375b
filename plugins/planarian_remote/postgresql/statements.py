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
_EXPLAINED = _CHANGES | {"select", "values", "table", "with", "create", "execute", "declare", "refresh"}
_READS = frozenset({"select", "values", "table", "with", "show", "explain"})
_FORBIDDEN = re.compile(
    r"setval|pg_notify|set_config|lo_\w+|loread|lowrite|dblink\w*|pg_terminate_backend|pg_cancel_backend"
    r"|pg_(try_)?advisory_\w+|pg_reload_conf|pg_rotate_logfile\w*|pg_logical_\w+|pg_create_\w+|pg_drop_\w+"
    r"|pg_replication_\w+|pg_stat_reset\w*|pg_switch_wal|pg_export_snapshot|pg_import_system_collations"
    r"|(query|cursor|table|schema|database)_to_xml\w*|ts_stat|ts_rewrite|crosstab\w*|connectby|xpath_table|pg_file_\w+"
    r"|pg_promote|pg_wal_\w+|brin_\w+|gin_clean_pending_list"
)
"""The same list as planarian.forbidden_functions() (schema/04_apply.sql)."""
_SURROGATE = re.compile("[\ud800-\udfff]")
WRITABLE = "planarian.this_connection_can_write"
_IF_READ_ONLY = (
    "CASE WHEN pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'on' THEN true "
    f"ELSE pg_catalog.current_setting('{WRITABLE}')::pg_catalog.bool END"
)
"""Looked at once, before any row is: it has no columns. There is no such setting, so asking for it is an error."""
_OURS_IN_TEXT = re.compile(rf"{SCHEMA}\w*[\"\s]*\.", re.IGNORECASE)

_OURS = f"the schema {SCHEMA} holds undo data and is not for others"
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


_COMPUTE = frozenset(
    """
    abs age array_agg array_length array_to_string avg bit_and bit_or bool_and bool_or btrim cardinality ceil ceiling
    char_length coalesce concat concat_ws corr count cume_dist current_database current_schema current_setting date_bin
    date_part date_trunc dense_rank div encode every exp extract first_value floor format format_type generate_series
    generate_subscripts greatest has_table_privilege initcap json_agg json_array_elements json_array_length
    json_build_array json_build_object json_each json_object_agg jsonb_agg jsonb_array_elements
    jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text
    jsonb_object_agg jsonb_object_keys jsonb_pretty jsonb_typeof justify_interval lag last_value lead least left length
    ln log lower lpad ltrim make_date make_interval make_timestamp max md5 min mod mode now nth_value ntile nullif
    obj_description octet_length overlay percent_rank percentile_cont percentile_disc pg_backend_pid
    pg_database_size pg_get_constraintdef pg_get_expr pg_get_indexdef pg_get_viewdef pg_relation_size pg_size_pretty
    pg_sleep pg_table_size pg_total_relation_size pg_typeof position power random rank regexp_match regexp_matches
    regexp_replace regexp_split_to_array regexp_split_to_table repeat replace reverse right round row_number row_to_json
    rpad rtrim sign split_part sqrt starts_with stddev string_agg string_to_array strpos substr substring sum to_char
    to_date to_json to_jsonb to_number to_regclass to_timestamp trim trunc unnest upper var_pop variance version
    width_bucket
    """.split()  # noqa: SIM905
)
"""The system's functions that reading is full of, and that do nothing else."""
_FORMS = frozenset(
    """
    all analyze and any array as between bigint bit by case cast char character cube current_time current_timestamp
    dec decimal distinct else except exists explain filter float from full having in inner int integer intersect
    interval is join lateral left like materialized not nullif numeric on only or order outer over partition recursive
    right rollup row select sets set similar some table then time timestamp to union using values varchar varying when
    where with within costs buffers verbose format
    """.split()  # noqa: SIM905
)
"""Words that an opening parenthesis may follow without being functions."""


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

    @property
    def only_computes(self) -> bool:
        """Whether a read calls no function but well-known ones of the system's. Transactions that can't write still
        let functions do other things, such as make large objects.
        """
        names: set[str] = set()
        for before, token in pairwise(self.words):
            if token.kind == "mark" and token.text == "(" and before.kind == "quoted":
                return False
            if token.kind == "mark" and token.text == "(" and before.kind == "word":
                names.add(before.text)
        ctes = {a.text for a, b in pairwise(self.words) if b.kind == "word" and b.text == "as"}
        return names <= _COMPUTE | _FORMS | ctes

    @property
    def read_only(self) -> str:
        """The same read, so that it ends with :data:`WRITABLE` before it does anything where its transaction could
        write: a view of somebody else's may have switched that off for its session. Empty where it can't be put so.
        """
        words = [token for token in self.words if token.text != ";" or token.kind != "mark"]
        marks = [token.text for token in words if token.kind == "mark"]
        closed = [token for token in words if token.kind == "mark" and token.text in ")]" and not token.depth]
        if closed or marks.count("(") != marks.count(")"):
            return ""
        first = next(token.text for token in words if token.text != "(")
        read = self.text[words[0].start : words[-1].end]
        if first == "show" or (first == "explain" and not _analyzes(words)):
            return read
        return "" if first == "explain" else f"SELECT q.* FROM ({read}) q WHERE {_IF_READ_ONLY}"  # noqa: S608  # judged


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
    if reason := _not_allowed(found):
        return What.REFUSED, reason
    if first.text in _CHANGES:
        return What.ROWS, ""
    if first.text == "explain" and _explains_more(found):
        return What.REFUSED, "EXPLAIN ANALYZE runs what it explains: use EXPLAIN"
    if first.text in _READS:
        return _read_or_write(first.text, found), ""
    if first.text == "truncate":
        return What.TRUNCATE, ""
    if first.text in ("create", "alter", "drop", "comment"):
        named = forbidden_call(found)
        return (What.REFUSED, f"{named} leaves effects that can't be undone") if named else (What.SCHEMA, "")
    return What.REFUSED, _REASONS.get(first.text, f"{first.text.upper()[:40]} is not among the statements known here")


def _explains_more(found: Sequence[Token]) -> bool:
    """Whether it is EXPLAIN ANALYZE of what isn't a plain read: a transaction that can't write doesn't stop all."""
    if not _analyzes(found):
        return False
    words = [token.text for token in found if token.kind == "word"]
    inner = next((word for word in words if word in _EXPLAINED), "")
    return inner not in ("select", "values", "table", "with") or "into" in words


def _analyzes(found: Sequence[Token]) -> bool:
    return any(token.kind == "word" and token.text in ("analyze", "analyse") for token in found)


def _read_or_write(first: str, found: Sequence[Token]) -> What:
    if first == "explain":
        return What.READ
    words = {token.text for token in found if token.kind == "word"}
    if "into" in words and not words & _CHANGES:
        return What.SCHEMA
    if first == "with" and words & _CHANGES:
        return What.ROWS
    if any(map(_is_forbidden, found)):
        return What.ROWS  # where the server names what is wrong with it
    return What.READ


def forbidden_call(found: Sequence[Token]) -> str:
    """The first function among the tokens that may not be called, also not by a definition; empty where none is."""
    return next((a.text for a, b in pairwise(found) if b.text == "(" and _is_forbidden(a)), "")


def _is_forbidden(token: Token) -> bool:
    return token.kind in ("word", "quoted") and _FORBIDDEN.fullmatch(token.text) is not None


def _not_allowed(found: Sequence[Token]) -> str:
    """Why no statement may be made of such tokens; empty where one may."""
    ended = False
    for kind, text, *_ in found:
        if kind == "mark" and text == ";":
            ended = True
        elif ended:
            return "it is several statements: send one at a time"
        elif kind in ("word", "quoted"):
            name = text.lower()
            if name.startswith(SCHEMA):
                return _OURS
            if name.startswith("pg_temp"):
                return "a temporary table belongs to a connection that others use too; use a table"
        elif kind in ("string", "escaped") and _OURS_IN_TEXT.search(text):
            return _OURS
    return ""
