"""Images: what reads found, as digests of objects, so that two moments can be compared.

An image maps the name of each object to the digest of its value, or to None where it isn't there. Names are for
people too. A read gives one object, or, with ``parts``, one for each element of a list in its value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planarian_core.codec import decode, encode
from planarian_core.interfaces import ToolResult, ToolTarget
from planarian_remote.declared.declaration import Compare, Find, Read
from planarian_remote.declared.templates import MISSING, ResultView, Unresolved, canonical, evaluate, result_text

Image = Mapping[str, str | None]
_SHOWN = 200


class Unreadable(Exception):
    """A read failed, or what it found can't be used; ``str()`` says how."""


@dataclass(frozen=True)
class MadeRead:
    """A read whose arguments are filled in: it can be made again later, whatever the configuration says by then."""

    name: str
    tool: str
    arguments: Mapping[str, Any]
    label: str
    given: Any
    read: Read = field(compare=False)


def fill(read: Read, scope: Mapping[str, Any]) -> MadeRead:
    """Fill in a read's arguments (Unreadable if they can't be)."""
    try:
        arguments = evaluate(read.arguments, scope)
        given = evaluate(read.given, scope)
        label = evaluate(read.label, scope) if read.label else f"{read.tool}({canonical(arguments)})"
    except Unresolved as error:
        raise Unreadable(f"{read.name}: {error}") from error
    if not isinstance(arguments, Mapping):
        raise Unreadable(f"{read.name}: its arguments are no table")
    return MadeRead(read.name, read.tool, arguments, _short(str(label)), given, read)


def kept(read: MadeRead) -> dict[str, Any]:
    """A filled-in read as JSON-safe data, for the undo log."""
    return {"arguments": read.arguments, "label": read.label, "given": read.given, "read": encode(read.read)}


def from_kept(data: Mapping[str, Any]) -> MadeRead:
    read = decode(Read, data["read"])
    return MadeRead(read.name, read.tool, data["arguments"], data["label"], data["given"], read)


def make(read: MadeRead, target: ToolTarget) -> Any:
    """The value that a read finds; ``MISSING`` where it says that there is nothing.

    Raises:
        Unreadable: it reports another error, or the value can't be used.
        RemoteError: as :meth:`ToolTarget.call`.
    """
    result = target.call(read.tool, read.arguments)
    if failed(result):
        text = result_text(result)
        if text.startswith(read.read.missing or ("\0",)):
            return MISSING
        if read.read.error and text.startswith(read.read.error):
            return text.removeprefix(read.read.error)
        raise Unreadable(f"{read.label}: {_short(text) or 'an error without a text'}")
    try:
        if read.read.value is None:
            return _default(result)
        return evaluate(read.read.value, {"result": ResultView(result), "given": read.given})
    except Unresolved as error:
        raise Unreadable(f"{read.label}: {error}") from error


def check_allowed(read: MadeRead, value: Any) -> None:
    """See that a value from before the call could be written back (Unreadable if not)."""
    if not read.read.forbidden or value is MISSING:
        return
    text = canonical(value)
    for forbidden, reason in read.read.forbidden:
        if canonical(forbidden)[1:-1] in text:
            raise Unreadable(f"{read.label}: {reason}")


def failed(result: ToolResult) -> bool:
    """Whether a tool reports an error. Only a plain ``false`` (or nothing) is none: servers send what they like."""
    return result.get("isError") not in (None, False)


def _default(result: ToolResult) -> Any:
    structured = result.get("structuredContent")
    return structured if structured is not None else result.get("content")


def find(wanted: Find, scope: Mapping[str, Any], target: ToolTarget) -> Any:
    """The first candidate of the unbroken row of absent ones at the end."""
    try:
        candidates = evaluate(wanted.candidates, scope)
        best = MISSING
        for candidate in reversed(candidates if isinstance(candidates, list) else []):
            result = target.call(wanted.tool, evaluate(wanted.arguments, {**scope, "item": candidate}))
            if not failed(result) or not result_text(result).startswith(wanted.missing):
                break
            best = candidate
        return evaluate(wanted.otherwise, scope) if best is MISSING else best
    except Unresolved as error:
        raise Unreadable(f"{wanted.name}: {error}") from error


# --- digests ---


def image_of(read: MadeRead, value: Any) -> dict[str, str | None]:
    """The objects that a read's value stands for (Unreadable if it isn't what the declaration says)."""
    if not read.read.parts:
        return {read.label: None if value is MISSING else _digest(value)}
    found: dict[str, list[str]] = {}
    try:
        for family, part in read.read.parts.items() if value is not MISSING else ():
            elements = evaluate(part.each, {"value": value})
            if not isinstance(elements, list | tuple):
                raise Unreadable(f"{read.label}: {family} is no list")
            for element in elements:
                key = evaluate(part.key, {"item": element})
                name = _short(f"{family} {key if isinstance(key, str) else canonical(key)}")
                digests = found.setdefault(name, [])
                digests.append(_digest(element))
                if part.unique and len(digests) > 1:
                    raise Unreadable(f"there are several of {name}")
    except Unresolved as error:
        raise Unreadable(f"{read.label}: {error}") from error
    return {name: digests[0] if len(digests) == 1 else _digest(digests) for name, digests in found.items()}


def take(reads: Iterable[MadeRead], target: ToolTarget, *compare: Compare) -> dict[str, str | None]:
    """Make those reads that are compared then, and what they find together."""
    image: dict[str, str | None] = {}
    for read in reads:
        if read.read.compare in compare:
            image |= image_of(read, make(read, target))
    return image


def touched(before: Image, after: Image) -> list[str]:
    """The objects in which two images differ."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def whole(reads: Iterable[MadeRead], *images: Image) -> set[str]:
    """The objects in some images that are compared though nothing touched them (:attr:`Part.whole`)."""
    families = tuple(f"{family} " for read in reads for family, part in read.read.parts.items() if part.whole)
    return {name for image in images for name in image if families and name.startswith(families)}


def same(names: Sequence[str], one: Image, other: Image) -> bool:
    """Whether two images agree about some objects."""
    return all(one.get(name) == other.get(name) for name in names)


def _digest(value: Any) -> str:
    try:
        return hashlib.sha256(canonical(value).encode()).hexdigest()
    except Unresolved as error:
        raise Unreadable(str(error)) from error


def _short(text: str) -> str:
    """One line, bounded, and still different for different texts."""
    line = " ".join(text.split())
    if len(text) <= _SHOWN and line == text:
        return text
    return f"{line[:_SHOWN]}… ({hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:16]})"
