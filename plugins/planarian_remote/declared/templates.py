"""The little language of declarations: values with placeholders, and a few operators on lists. No code, no recursion.

A template is a TOML value. In its texts ``${call.path}`` stands for a value; alone in a text it keeps its JSON type.
What a placeholder stands for is never read as a template again. ``${…?}``: leave the entry out where there is none.
``$${`` is a literal ``${``. A table with an operator's keys (``$each``, ``$list``, …) stands for what that makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planarian_remote.declared.unified_diff import patched

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_ALONE = re.compile(r"\$\{([^{}]*)\}\Z")
_SEGMENT = re.compile(r'([A-Za-z0-9_-]+|\*|"[^"]+")(?:\.|\Z)')
_STEPS = 2_000_000
_DEPTH = 50
"""Of templates; far beyond any that a person writes."""


class Unresolved(LookupError):
    """A template can't be filled from what is there; ``str()`` says why, in words for people."""


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()
"""Stands for an object that isn't there."""
_LEFT_OUT = object()


class ResultView(Mapping[str, Any]):
    """A tool's result as placeholders see it: as on the wire, ``text`` (of its content) and ``json`` (that, parsed)."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._result = result

    def __getitem__(self, key: str) -> Any:
        if key == "text":
            return result_text(self._result)
        if key == "json":
            try:
                return json.loads(result_text(self._result))
            except (ValueError, RecursionError) as error:
                raise Unresolved("the result's text isn't JSON") from error
        return self._result[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._result)

    def __len__(self) -> int:
        return len(self._result)


def result_text(result: Mapping[str, Any]) -> str:
    """The text of a tool's result; empty where it has none."""
    content = result.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return ""
    texts = (block.get("text") for block in content if isinstance(block, Mapping) and block.get("type") == "text")
    return "\n".join(text for text in texts if isinstance(text, str))


@dataclass
class _Evaluation:
    scope: Mapping[str, Any]
    steps: list[int] = field(default_factory=lambda: [_STEPS])

    def within(self, name: str, value: Any) -> _Evaluation:
        return _Evaluation({**self.scope, name: value}, self.steps)

    def step(self, count: int = 1) -> None:
        self.steps[0] -= count
        if self.steps[0] < 0:
            raise Unresolved("there is too much to go through")


def evaluate(template: Any, scope: Mapping[str, Any]) -> Any:
    """Fill a template from ``scope``: the values of its roots (``call``, ``before``, …).

    Raises:
        Unresolved: a value isn't there, or has the wrong type.
    """
    try:
        value = _value(template, _Evaluation(scope))
    except RecursionError as error:
        raise Unresolved("the value is nested too deeply") from error
    if value is _LEFT_OUT:
        raise Unresolved("an optional value isn't there")
    return value


def roots(template: Any, bound: frozenset[str] = frozenset(), depth: int = 0) -> set[str]:
    """The paths' first two names that a template uses (``call.path``), without those that ``$each`` binds.

    Raises:
        ValueError: it isn't a template; the message says what is wrong with it.
    """
    if depth > _DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(template, str):
        found = (_segments(match[1])[0] for match in _PLACEHOLDER.finditer(template) if match[1] is not None)
        return {".".join(path[:2]) for path in found if path[0] not in bound}
    if isinstance(template, Mapping):
        if any(str(key).startswith("$") for key in template):
            _operator(template)
            if "$each" in template:
                inner = bound | {str(template.get("$as", "item"))}
                used = roots(template["$each"], bound, depth + 1)
                return used | roots([template["$item"], template.get("$where", [])], inner, depth + 1)
        return set().union(*(roots(value, bound, depth + 1) for value in template.values()), set())
    if isinstance(template, Sequence):
        return set().union(*(roots(value, bound, depth + 1) for value in template), set())
    if template is None or isinstance(template, bool | int | float):
        return set()
    raise ValueError(f"a {type(template).__name__} can't be part of it")


def uses(template: Any, root: str) -> bool:
    """Whether a template has a placeholder for ``root`` or for something in it."""
    return any(path.split(".")[0] == root for path in roots(template))


def _segments(text: str) -> tuple[list[str], bool]:
    """The names of a path, and whether it may be missing."""
    path, optional = (text[:-1], True) if text.endswith("?") else (text, False)
    found, position = [], 0
    while position < len(path):
        match = _SEGMENT.match(path, position)
        if match is None:
            break
        found.append(match[1].strip('"'))
        position = match.end()
    if not found or position < len(path) or path.endswith("."):
        raise ValueError(f"${{{text}}} isn't a path such as ${{call.path}} or ${{result.structuredContent.id}}")
    return found, optional


def _value(template: Any, at: _Evaluation) -> Any:
    at.step()
    if isinstance(template, str):
        alone = _ALONE.match(template)
        if alone is not None:
            return _look_up(alone[1], at)
        return _PLACEHOLDER.sub(lambda match: "${" if match[1] is None else _as_text(match[1], at), template)
    if isinstance(template, Mapping):
        if any(str(key).startswith("$") for key in template):
            return _operator(template)(template, at)
        pairs = ((str(key), _value(value, at)) for key, value in template.items())
        return {key: value for key, value in pairs if value is not _LEFT_OUT}
    if isinstance(template, Sequence):
        return [value for value in (_value(part, at) for part in template) if value is not _LEFT_OUT]
    return template


def _look_up(text: str, at: _Evaluation) -> Any:
    path, optional = _segments(text)
    try:
        return _follow(at.scope, path, at)
    except Unresolved:
        if optional:
            return _LEFT_OUT
        raise


def _follow(value: Any, path: Sequence[str], at: _Evaluation) -> Any:
    for place, name in enumerate(path):
        at.step()
        if name == "*":
            rest = path[place + 1 :]
            return [_follow(item, rest, at) for item in _as_list(value, ".".join(path[:place]))]
        try:
            if isinstance(value, Mapping):
                value = value[name]
            elif isinstance(value, list | tuple) and name.isdecimal():
                value = value[int(name[:9])]
            else:
                raise KeyError(name)
        except LookupError as error:
            if isinstance(error, Unresolved):
                raise
            raise Unresolved(f"there is no {'.'.join(path[: place + 1])}") from error
        if value is MISSING:
            raise Unresolved(f"there was no {'.'.join(path[: place + 1])}")
    return value


def _as_text(text: str, at: _Evaluation) -> str:
    value = _look_up(text, at)
    if value is _LEFT_OUT:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise Unresolved(f"{text} is no text")


def _as_list(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise Unresolved(f"{what} is no list")
    return value


# --- operators ---


def _each(table: Mapping[str, Any], at: _Evaluation) -> Any:
    """``$item`` for each element of ``$each`` (named ``$as``) for which the pairs of ``$where`` are equal."""
    name, found = str(table.get("$as", "item")), []
    for element in _as_list(_value(table["$each"], at), "$each"):
        inner = at.within(name, element)
        if all(_value(left, inner) == _value(right, inner) for left, right in table.get("$where", ())):
            value = _value(table["$item"], inner)
            if value is not _LEFT_OUT:
                found.append(value)
    return found


def _chosen(table: Mapping[str, Any], at: _Evaluation) -> Any:
    """The elements of ``$list`` that aren't in ``$without``, or those that are in ``$in``; compared by their member
    ``$by``, where that is said.
    """
    by = table.get("$by")
    kept = "$in" in table
    elements = _as_list(_value(table["$list"], at), "$list")
    others = _as_list(_value(table["$in" if kept else "$without"], at), "$list")
    at.step(len(elements) + len(others))

    def key(element: Any) -> str:
        if by is not None and isinstance(element, Mapping):
            element = element.get(str(by))
        return canonical(element)

    named = {key(element) for element in others}
    return [element for element in elements if (key(element) in named) is kept]


def _concat(table: Mapping[str, Any], at: _Evaluation) -> Any:
    """The elements of all lists in ``$concat``, one after the other."""
    lists = [_as_list(part, "$concat") for part in _as_list(_value(table["$concat"], at), "$concat")]
    at.step(sum(map(len, lists)))
    return [element for part in lists for element in part]


def _ancestors(table: Mapping[str, Any], at: _Evaluation) -> Any:
    """The folders on the way to a path and the path itself, from the top."""
    path = _value(table["$ancestors"], at)
    if not isinstance(path, str):
        raise Unresolved("$ancestors needs a path")
    names: list[str] = []
    for name in path.split("/"):
        if name == ".." and names and names[-1] != "..":
            names.pop()
        elif name not in ("", ".", "..") or (name == ".." and not path.startswith("/")):
            names.append(name)
    at.step(len(names))
    start = "/" if path.startswith("/") else ""
    return [start + "/".join(names[: count + 1]) for count in range(len(names))]


def _patched(table: Mapping[str, Any], at: _Evaluation) -> Any:
    """The text ``$patched`` after the unified diff ``$with``, as far as it fits exactly; with ``$line_end``, the text's
    CRLF become that first.
    """
    text, diff = _value(table["$patched"], at), _value(table["$with"], at)
    end = _value(table.get("$line_end", "\r\n"), at)
    if not isinstance(text, str) or not isinstance(diff, str) or not isinstance(end, str):
        raise Unresolved("$patched, $with and $line_end need texts")
    try:
        return patched(text.replace("\r\n", end), diff)
    except ValueError as error:
        raise Unresolved(f"the diff doesn't fit: {error}") from error


def _missing(table: Mapping[str, Any], at: _Evaluation) -> Any:
    """Nothing: the object isn't there."""
    return MISSING


@dataclass(frozen=True)
class _Operator:
    run: Callable[[Mapping[str, Any], _Evaluation], Any]
    required: frozenset[str]
    optional: frozenset[str] = frozenset()


_OPERATORS: Mapping[str, _Operator] = {
    "$each": _Operator(_each, frozenset({"$each", "$item"}), frozenset({"$as", "$where"})),
    "$list": _Operator(_chosen, frozenset({"$list"}), frozenset({"$without", "$in", "$by"})),
    "$concat": _Operator(_concat, frozenset({"$concat"})),
    "$ancestors": _Operator(_ancestors, frozenset({"$ancestors"})),
    "$patched": _Operator(_patched, frozenset({"$patched", "$with"}), frozenset({"$line_end"})),
    "$missing": _Operator(_missing, frozenset({"$missing"})),
}


def _operator(table: Mapping[str, Any]) -> Callable[[Mapping[str, Any], _Evaluation], Any]:
    keys = frozenset(map(str, table))
    found = next((operator for name, operator in _OPERATORS.items() if name in keys), None)
    if found is None or not found.required <= keys <= found.required | found.optional:
        raise ValueError(f"{', '.join(sorted(keys))} is no operator; there are {', '.join(_OPERATORS)}")
    if "$list" in keys and len(keys & {"$without", "$in"}) != 1:
        raise ValueError("$list goes with either $without or $in")
    pairs = table.get("$where", ())
    if not isinstance(pairs, Sequence) or any(isinstance(p, str) or len(p) != 2 for p in pairs):
        raise ValueError("$where is a list of pairs")
    return found.run


def canonical(value: Any) -> str:
    """The same text for the same JSON value, whatever the order of members.

    Raises:
        Unresolved: it isn't JSON (NaN, too deep).
    """
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Unresolved("a value isn't plain JSON") from error
