"""What the undo log keeps of a call: everything that undoing it takes, filled in, so that neither the configuration nor
the server's answers can change it later.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import zstandard

from planarian_core.codec import decode, encode
from planarian_core.errors import CompensationError
from planarian_core.model import Effect
from planarian_remote.declared.declaration import Compare
from planarian_remote.declared.images import MadeRead, from_kept
from planarian_remote.declared.templates import Unresolved

VERSION = 1
_PACKED_FROM = 16 * 1024
_UNPACKED_LIMIT = 1024**3


@dataclass(frozen=True)
class MadeStep:
    """A call that is filled in."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """How far a move is with this effect: ``step`` of its calls are known to be made, the next may be."""

    undoing: bool
    step: int


@dataclass(frozen=True)
class UndoData:
    """``before``, ``expect``, ``after``: images of what is always compared; ``late``: of what is compared late, as it
    was after the call. None: not known. ``undo`` and ``redo`` likewise; ``why_not``: why it can't be made again.
    """

    before: Mapping[str, str | None]
    reads: tuple[Mapping[str, Any], ...] = ()
    expect: Mapping[str, str | None] | None = None
    after: Mapping[str, str | None] | None = None
    late: Mapping[str, str | None] | None = None
    undo: tuple[MadeStep, ...] | None = None
    redo: tuple[MadeStep, ...] | None = None
    why_not: str = ""
    redo_needs: tuple[Mapping[str, Any], ...] = ()
    progress: Progress | None = None
    version: int = VERSION

    def made_reads(self, *compare: Compare) -> list[MadeRead]:
        return [read for read in self._made if read.read.compare in compare]

    @cached_property
    def _made(self) -> list[MadeRead]:
        return [from_kept(read) for read in self.reads]


def pack(data: UndoData, limit: int | None = None) -> dict[str, Any]:
    """As an effect's ``details``; compressed where it is large.

    Raises:
        Unresolved: it is larger than ``limit`` bytes, or isn't JSON.
    """
    plain = encode(data)
    try:
        text = json.dumps(plain, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Unresolved("its undo data isn't plain JSON") from error
    if limit is not None and len(text) > limit:
        raise Unresolved(f"its undo data takes {len(text)} bytes; undo_limit is {limit}")
    if len(text) < _PACKED_FROM:
        return {"undo": plain}
    return {"packed": base64.b64encode(zstandard.compress(text.encode())).decode()}


def unpack(effect: Effect) -> UndoData:
    """The undo data of an effect (CompensationError ``undo-data-missing`` if there is none that can be read)."""
    try:
        if "packed" in effect.details:
            raw = zstandard.decompress(base64.b64decode(effect.details["packed"]), max_output_size=_UNPACKED_LIMIT)
            return decode(UndoData, json.loads(raw))
        return decode(UndoData, effect.details["undo"])
    except (KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
        raise CompensationError(
            f"the undo log holds no undo data of effect {effect.number} of {effect.service}: {effect.summary}",
            code="undo-data-missing",
            remedy="choose a later statepoint",
        ) from error
