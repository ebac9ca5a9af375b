"""Rows as the server of the tool would have given them: one text item for each, a JSON object (MCP Toolbox 1.12)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from planarian_core import units
from planarian_core.errors import RemoteError

Pairs = Sequence[tuple[str, Any]]


class NotSimple(ValueError):
    """A value whose JSON only the server itself knows how to write."""


class Number(str):
    """A JSON number, as its text."""

    __slots__ = ()


def rows_of(text: str) -> list[Pairs]:
    """The rows of ``planarian.answer``, as pairs: names may repeat; numbers stay texts."""
    loaded: list[Pairs] = json.loads(
        text, object_pairs_hook=list, parse_int=Number, parse_float=Number, parse_constant=Number
    )
    return loaded


def item(row: Iterable[tuple[str, Any]], types: Sequence[int], other: Callable[[Any], str] | None = None) -> str:
    """One row's text. ``other`` writes what isn't among the types, or values of them, that are known here.

    Raises:
        NotSimple: there is such a value, and no ``other``.
    """
    parts = []
    for (name, value), type_ in zip(row, types, strict=True):
        try:
            text = _value(value, type_)
        except NotSimple:
            if other is None:
                raise
            text = other(value)
        parts.append(f"{_string(name)}:{text}")
    return "{" + ",".join(parts) + "}"


def from_text(value: bytes | None, type_: int) -> Any:
    """A value as PostgreSQL's text has it, in the form that :func:`item` takes."""
    if value is None:
        return None
    text = value.decode()
    if type_ == _BOOLEAN:
        return text == "t"
    if type_ in _JSON and text == "null":
        return None  # as the rows of a call have it: NULL and JSON's null are the same there
    if type_ == _TIMESTAMP:
        return text.replace(" ", "T", 1)
    if type_ in _NUMBERS and _NUMBER.fullmatch(text):
        return Number(text)
    return text


def as_text(value: Any) -> str:
    """Any value as a JSON string."""
    return _string(str.__str__(value))


def as_json(value: Any) -> str:
    """A value of :func:`rows_of` as the JSON that it came from."""
    if isinstance(value, Number):
        return str.__str__(value)
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return "{" + ",".join(f"{_string(name)}:{as_json(inner)}" for name, inner in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def rows_again(rows: str, names: Sequence[str], types: Sequence[str]) -> str:
    """A statement that gives rows with the types that they had. ``rows``: an SQL expression, their JSON; names may
    repeat, so columns are told apart by their place.
    """
    listed = ", ".join(f"t.c{at} AS {_identifier(name)}" for at, name in enumerate(names))
    typed = ", ".join(f"c{at} {type_}" for at, type_ in enumerate(types))
    return (
        f"SELECT {listed} FROM pg_catalog.json_array_elements({rows}) WITH ORDINALITY e (r, place) "  # noqa: S608  # ours
        "CROSS JOIN LATERAL (SELECT pg_catalog.json_object_agg('c' || (k.place - 1), k.value) AS r "
        "FROM pg_catalog.json_each(e.r) WITH ORDINALITY k (key, value, place)) p "
        f"CROSS JOIN LATERAL pg_catalog.json_to_record(p.r) AS t ({typed}) ORDER BY e.place"
    )


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def too_large(limit: int) -> RemoteError:
    """For a read whose result isn't taken."""
    return RemoteError(
        f"the result was refused: it is more than {units.size(limit)}",
        code="result-too-large",
        state="nothing was changed",
        remedy="use LIMIT, fewer columns or substr(); a user can raise max_result in planarian.toml",
    )


def content(items: Iterable[str]) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in items]


def _value(value: Any, type_: int) -> str:
    if value is None:
        return "null"
    known = _TYPES.get(type_)
    if known is None:
        raise NotSimple
    return known(value)


def _string(value: Any) -> str:
    """As Go's encoding/json writes it, with what HTML could take for its own escaped."""
    if not isinstance(value, str) or isinstance(value, Number):
        raise NotSimple
    text = json.dumps(value, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise NotSimple
    return "true" if value else "false"


def _integer(value: Any) -> str:
    if not isinstance(value, Number):
        raise NotSimple
    return str(value)


def _numeric(value: Any) -> str:
    if isinstance(value, Number) and Decimal(value):  # how 0.00 looks depends on the driver's format
        return str(value)
    if value == "NaN":
        return '"NaN"'
    raise NotSimple


def _float(value: Any) -> str:
    """Go writes no exponent between 1e-6 and 1e21, and the digits are the shortest, as PostgreSQL's are."""
    if not isinstance(value, Number):
        raise NotSimple  # NaN, infinity
    number = Decimal(value)
    if number == 0:
        return "-0" if number.is_signed() else "0"
    sign, digits, _ = number.normalize().as_tuple()
    exponent = number.adjusted()
    if -6 <= exponent < 21:
        return f"{number.normalize():f}"
    text = "".join(map(str, digits))
    mantissa = text[0] + (f".{text[1:]}" if text[1:] else "")
    shown = f"e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:  # e-09 is cleaned up to e-9
        shown = re.sub(r"e-0(\d)$", r"e-\1", shown)
    return f"{'-' if sign else ''}{mantissa}{shown}"


def _date(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise NotSimple  # infinity, BC, far away
    date.fromisoformat(value)
    return f'"{value}T00:00:00Z"'


def _timestamp(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?", value):
        raise NotSimple
    datetime.fromisoformat(value.partition(".")[0])
    return f'"{value}Z"'


_BOOLEAN, _TIMESTAMP = 16, 1114
_JSON = (114, 3802)
_NUMBERS = (20, 21, 23, 26, 700, 701, 1700)
_NUMBER = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?")

_TYPES: dict[int, Callable[[Any], str]] = {
    16: _boolean,
    20: _integer,
    21: _integer,
    23: _integer,
    26: _integer,
    700: _float,
    701: _float,
    1700: _numeric,
    19: _string,
    25: _string,
    1042: _string,
    1043: _string,
    2950: _string,
    1082: _date,
    1114: _timestamp,
}
