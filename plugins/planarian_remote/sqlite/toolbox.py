"""Results as MCP Toolbox for Databases writes them (npm ``@toolbox-sdk/server``, tool ``sqlite-execute-sql``).

One text per row, JSON as Go writes it; dates and JSON in columns declared so are parsed first, as its driver does.
"""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import date, time
from typing import Any

from planarian_core.interfaces import ToolResult
from planarian_remote.sqlite.judge import is_blank
from planarian_remote.sqlite.statements import Answer, StatementError
from planarian_remote.sqlite.values import Value

_TIMES = frozenset({"DATE", "DATETIME", "TIMESTAMP"})
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(?:(:\d\d)(\.\d{1,9})?(?:([+-]\d\d:\d\d)| \+0000 UTC)?)?)?", re.ASCII
)
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPE = re.compile("[<>&\u2028\u2029]")
_MESSAGES = {
    1: "SQL logic error", 8: "attempt to write a readonly database", 9: "interrupted", 18: "string or blob too big",
    19: "constraint failed", 20: "datatype mismatch", 23: "authorization denied", 25: "column index out of range",
}  # fmt: skip


class ToolboxStyle:
    def statement(self, tool: str, argument: str) -> str | ToolResult:
        if not argument:
            return _result("sql parameter cannot be empty", error=True)
        return _result() if is_blank(argument) else argument

    def check_write(self, argument: str) -> None:
        """It commits whatever it runs."""

    def answer(self, tool: str, answer: Answer) -> ToolResult:
        return _result(*(self._row(answer, row) for row in answer.rows))

    def _row(self, answer: Answer, row: tuple[Value, ...]) -> str:
        infinite = [value for value in row if isinstance(value, float) and not math.isfinite(value)]
        if infinite:
            why = f"json: unsupported value: {_go_number(infinite[0])}"
            cells = " ".join(
                f"{{{name} {_formatted(value)}}}" for (name, _), value in zip(answer.columns, row, strict=True)
            )
            row_type = "*orderedmap.Row"
            return f"fail to marshal: json: error calling MarshalJSON for type {row_type}: {why}, result: {{[{cells}]}}"
        parts = (
            f"{_go_text(name)}:{_go(_driven(value, (declared or '').upper()))}"
            for (name, declared), value in zip(answer.columns, row, strict=True)
        )
        return f"{{{','.join(parts)}}}"

    def failure(self, error: StatementError) -> ToolResult:
        known = _MESSAGES.get(error.code & 0xFF, "SQL logic error")
        said = known if error.message == known else f"{known}: {error.message}"
        return _result(f"error processing request: unable to execute query: {said} ({error.code})", error=True)


def _result(*texts: str, error: bool = False) -> ToolResult:
    return {"content": [{"type": "text", "text": text} for text in texts], "isError": error}


# --- what the driver makes of a value ---


def _driven(value: Value, declared: str) -> Any:
    if isinstance(value, str) and declared in _TIMES:
        return _go_time(value)
    if isinstance(value, str | bytes) and declared == "JSON":
        try:
            return json.loads(value, parse_int=float)
        except ValueError:
            return value
    return value


def _go_time(text: str) -> str:
    """RFC 3339 as Go writes it; the text itself where its driver takes it for no time."""
    found = _TIME.fullmatch(text.removesuffix("Z"))
    if found is None:
        return text
    day, minutes, seconds, fraction, offset = found.groups()
    try:
        date.fromisoformat(day)
        time.fromisoformat((minutes or "00:00") + (seconds or ":00"))
    except ValueError:
        return text
    fraction = (fraction or "").rstrip("0").rstrip(".")
    zone = "Z" if offset in (None, "+00:00", "-00:00") else offset
    return f"{day}T{minutes or '00:00'}{seconds or ':00'}{fraction}{zone}"


# --- JSON as Go's encoding/json writes it ---


def _go(value: Any) -> str:
    if value is None or value == b"":
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _go_number(value)
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, dict):
        return "{" + ",".join(f"{_go_text(key)}:{_go(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_go, value)) + "]"
    return _go_text(str(value))


def _go_text(text: str) -> str:
    written = json.dumps(text, ensure_ascii=False)
    return _ESCAPE.sub(lambda found: _ESCAPED[found[0]], written)


def _go_number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    digits, _, exponent = repr(value).partition("e")
    if not 1e-6 <= abs(value) < 1e21:
        if not exponent:
            digits, _, exponent = f"{value:.17e}".partition("e")
        power = int(exponent)
        return f"{digits.removesuffix('.0')}e{'-' if power < 0 else '+'}{abs(power)}"
    return _plain_decimal(digits, int(exponent or 0))


def _plain_decimal(digits: str, power: int) -> str:
    """``digits`` times ten to the power, without an exponent."""
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    whole, _, part = digits.partition(".")
    part = "" if part == "0" else part
    if power >= 0:
        part = part.ljust(power, "0")
        whole, part = whole + part[:power], part[power:]
    else:
        whole = whole.rjust(1 - power, "0")
        whole, part = whole[:power], whole[power:] + part
    return f"{sign}{whole}.{part}" if part else f"{sign}{whole}"


def _formatted(value: Value) -> str:
    """A cell as Go's ``%s`` writes it."""
    if value is None:
        return "<nil>"
    if isinstance(value, int):
        return f"%!s(int64={value})"
    if isinstance(value, float):
        return f"%!s(float64={_go_number(value)})"
    return value if isinstance(value, str) else value.decode(errors="replace")
