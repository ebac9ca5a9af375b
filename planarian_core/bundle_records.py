"""What a bundle says beside files: records, written by us and read as if by an enemy.

:func:`planarian_core.codec.decode` believes its data; here every value is of the type that its field has, every id an
id, every name one that a terminal can show, every number of a size that the registry can hold.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from planarian_core.bundle_format import BundleError, damaged
from planarian_core.codec import decode
from planarian_core.errors import PlanarianError
from planarian_core.lineage import check_text
from planarian_core.model import (
    MODEL_VERSION,
    Evidence,
    Gap,
    Limits,
    Network,
    Outcome,
    Statepoint,
    Status,
)

T = TypeVar("T")

PARTS = ("files", "origin", "images")
"""The parts that hold files: the layer, what lies below its workspace, and the images of the processes."""
MOST_ANCESTORS = 100_000
_ID = re.compile(r"[a-z]{2}-[0-9a-f]{12}")
_BACKEND = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_LARGEST = 2**62


@dataclass(frozen=True)
class BundleHost:
    """Where a bundle was made. ``root``: by root; ``uid`` and ``gid`` are those who made it."""

    machine: str
    system: str
    kernel: str
    root: bool
    uid: int
    gid: int


@dataclass(frozen=True)
class BundledSandbox:
    """The sandbox of a bundle's statepoint, as far as that isn't a matter of the host's."""

    id: str
    branch_id: str
    workspace: str
    backend: str
    process: str
    in_place: bool
    name: str = ""
    network: Network = Network.NONE
    limits: Limits = field(default_factory=Limits)
    hidden: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    fences: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class PartSize:
    """At most that many names and bytes of content are in a part."""

    entries: int
    bytes: int


@dataclass(frozen=True)
class BundleHead:
    """The first record. ``lineage``: how many ancestors follow, the nearest first. ``image_place``: how the process
    backend names its images in :attr:`Artefact.reference`, ``name`` or ``path`` in the home.
    """

    planarian: str
    created_at: str
    host: BundleHost
    sandbox: BundledSandbox
    statepoint: Statepoint
    parts: Mapping[str, PartSize]
    outcomes: tuple[Outcome, ...] = ()
    lineage: int = 0
    image_place: str = ""


def read_head(data: Any) -> BundleHead:
    """The first record of a bundle, checked; BundleError when there is anything wrong with it."""
    head = _strict(BundleHead, data)
    sandbox = head.sandbox
    for value in (sandbox.id, sandbox.branch_id):
        _check_id(value)
    for backend in (sandbox.backend, sandbox.process, *_backends(head.statepoint)):
        if not _BACKEND.fullmatch(backend):
            raise damaged(f"{backend[:80]!a} is no backend's name")
    _check_name(sandbox.name)
    _check_time(head.created_at)
    if not set(head.parts) <= set(PARTS) or "files" not in head.parts:
        raise damaged("it has other parts than a bundle has")
    if head.image_place not in ("", "name", "path") or bool(head.image_place) != ("images" in head.parts):
        raise damaged("it says nothing of where its images belong")
    if head.lineage > MOST_ANCESTORS:
        raise damaged("it has more ancestors than a bundle can have")
    if head.statepoint.status is not Status.COMMITTED or head.statepoint.files is None:
        raise damaged("its statepoint isn't committed")
    if ("images" in head.parts) != (head.statepoint.processes is not None):
        raise damaged("images without processes, or the other way round")
    _check_statepoint(head.statepoint)
    _check_outcomes(head.outcomes, head.statepoint.id)
    return head


def read_ancestor(data: Any) -> Evidence:
    """A record of the lineage, checked."""
    evidence = _strict(Evidence, data)
    _check_statepoint(evidence.statepoint)
    _check_outcomes(evidence.outcomes, evidence.statepoint.id)
    if evidence.statepoint.files is not None or evidence.statepoint.processes is not None:
        raise damaged("an ancestor has artefacts")
    return evidence


def _backends(statepoint: Statepoint) -> list[str]:
    return [artefact.backend for artefact in (statepoint.files, statepoint.processes) if artefact]


def _check_statepoint(statepoint: Statepoint) -> None:
    for value in (statepoint.id, statepoint.sandbox_id, statepoint.branch_id, statepoint.parent_id):
        if value is not None:
            _check_id(value)
    _check_name(statepoint.name)
    _check_time(statepoint.created_at)
    if statepoint.version > MODEL_VERSION:
        raise BundleError(
            "a statepoint in the bundle is of a newer Planarian",
            code="bundle-version",
            state="nothing was imported",
            remedy="upgrade planarian",
        )


def _check_outcomes(outcomes: tuple[Outcome, ...], statepoint_id: str) -> None:
    for outcome in outcomes:
        _check_id(outcome.id)
        _check_time(outcome.created_at)
        if outcome.statepoint_id != statepoint_id or outcome.status not in ("note", "succeeded", "failed"):
            raise damaged("an outcome belongs to another statepoint, or ended in no way that we know")


def _check_id(value: str) -> None:
    if not _ID.fullmatch(value):
        raise damaged(f"{value[:80]!a} is no id")


def _check_name(name: str) -> None:
    if not name:
        return
    try:
        check_text(name)
    except PlanarianError as error:
        raise damaged(error.message) from error


def _check_time(text: str) -> None:
    try:
        if len(text) > 40:
            raise ValueError
        datetime.fromisoformat(text)
    except ValueError as error:
        raise damaged(f"{text[:80]!a} is no time") from error


# --- types ---


def _strict(cls: type[T], data: Any) -> T:
    """Decode a value whose every part must be of the type that its field has."""
    try:
        _check(cls, data, cls.__name__)
        return decode(cls, data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise damaged(f"a record of the wrong form ({error})") from error


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _check(hint: Any, data: Any, where: str) -> None:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if data is not None:
            _check(next(a for a in typing.get_args(hint) if a is not type(None)), data, where)
    elif origin is tuple:
        _expect(isinstance(data, list), where)
        for item in data:
            _check(typing.get_args(hint)[0], item, where)
    elif origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(data, dict), where)
        for item in data.values():
            _check(typing.get_args(hint)[1], item, where)
    elif hint is Any:
        _check_any(data, where)
    elif dataclasses.is_dataclass(hint):
        _expect(isinstance(data, dict), where)
        for name, wanted in _hints(typing.cast(type, hint)).items():
            if name in data:
                _check(wanted, data[name], f"{where}.{name}")
    elif issubclass(hint, enum.Enum):
        _expect(isinstance(data, str), where)
    elif hint is float:
        _expect(type(data) in (int, float) and abs(data) < _LARGEST, where)
    elif hint is int:
        _expect(type(data) is int and 0 <= data < _LARGEST, where)
    else:
        _expect(type(data) is hint, where)


def _check_any(data: Any, where: str, depth: int = 32) -> None:
    """A backend's own details: whatever JSON holds, within what the registry can hold."""
    _expect(depth > 0, where)
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            _check_any(item, where, depth - 1)
    elif isinstance(data, int | float):
        _expect(abs(data) < _LARGEST, where)  # of infinities and of what is no number, false too


def _expect(right: bool, where: str) -> None:
    if not right:
        raise TypeError(where)
