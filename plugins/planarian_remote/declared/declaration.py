"""What a declaration says, as values: the reads around a call, the calls that undo it, and when each applies.

``docs/declared.md`` is the manual; :mod:`planarian_remote.declared.parsing` reads it from TOML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from planarian_core.model import CallClass


class Compare(StrEnum):
    """When a read's value is compared. ``LATE``: only at the moment of undoing, because later calls of other tools
    change it too. ``NEVER``: it is there for placeholders.
    """

    ALWAYS = "always"
    LATE = "late"
    NEVER = "never"


@dataclass(frozen=True)
class Part:
    """The objects that a read's value consists of: the elements of ``each``, told apart by ``key``. Templates.

    ``unique``: two with one key are refused. ``whole``: also those that the call did not touch must be, when it is
    undone, as the call left them, and no other may be there.
    """

    each: Any
    key: Any
    unique: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Read:
    """A call of a tool that changes nothing, and what of its result counts. ``given``: what ``value`` uses beside the
    result. ``missing``: how the error begins that says that the object isn't there. ``error``: how an error begins
    after which the value stands. ``forbidden``: text that must not be in the value, and why.
    """

    name: str
    tool: str
    arguments: Any
    given: Any = None
    value: Any = None
    label: Any = ""
    missing: tuple[str, ...] = ()
    error: str = ""
    forbidden: tuple[tuple[str, str], ...] = ()
    parts: Mapping[str, Part] = field(default_factory=dict)
    compare: Compare = Compare.ALWAYS


@dataclass(frozen=True)
class Find:
    """The first of several candidates that isn't there, though all after it aren't either: the topmost new folder."""

    name: str
    tool: str
    candidates: Any
    arguments: Any
    missing: tuple[str, ...]
    otherwise: Any


@dataclass(frozen=True)
class Step:
    """A call to make. Its arguments are a template. ``unless_empty``: an argument; no call where that is empty."""

    tool: str
    arguments: Any
    unless_empty: str = ""


@dataclass(frozen=True)
class Undo:
    """One way to undo a call; it applies where the reads in ``exists`` found something and those in ``absent`` nothing.

    ``redo``: None for the call itself once more. ``needs`` and ``redo_needs``: reads that must find something, before
    the call is made and before it is made again. ``refuse``: it can't be undone then, and why.
    """

    exists: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    redo: tuple[Step, ...] | None = None
    needs: tuple[Read, ...] = ()
    redo_needs: tuple[Read, ...] = ()
    refuse: str = ""


@dataclass(frozen=True)
class Example:
    """A call for the drill, and calls that make what it needs. Templates of ``settings`` and ``scratch``."""

    arguments: Any
    setup: tuple[Step, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Tool:
    """One tool. ``inexact``: what its undo doesn't restore. ``distinct``: lists in which nothing may be named twice, or
    the call is refused. ``repeats``: whether making the call again, from the same
    state, has the same effect; None where that follows from what the declaration uses. ``fails_clean``: a call that
    reports an error has changed nothing, where no read can tell.
    """

    name: str
    call_class: CallClass
    reason: str = ""
    inexact: str = ""
    approved: bool = False
    read_only_if: Mapping[str, Any] = field(default_factory=dict)
    refuse_if: tuple[tuple[Mapping[str, Any], str], ...] = ()
    distinct: tuple[Any, ...] = ()
    finds: tuple[Find, ...] = ()
    before: tuple[Read, ...] = ()
    after: tuple[Read, ...] = ()
    expect: Mapping[str, Any] = field(default_factory=dict)
    undo: tuple[Undo, ...] = ()
    repeats: bool = True
    fails_clean: bool = False
    examples: tuple[Example, ...] = ()

    @property
    def full_reason(self) -> str:
        return f"{self.reason}; not restored: {self.inexact}" if self.inexact else self.reason


@dataclass(frozen=True)
class Scratch:
    """Where the drill works: a server on a fresh folder, ``${scratch}``. What is compared: ``reads``, and the files of
    the folder but those in ``ignore``.
    """

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    files: bool = True
    ignore: tuple[str, ...] = ()
    reads: tuple[Read, ...] = ()


@dataclass(frozen=True)
class Declaration:
    """The tools of a service, the settings that they use (name: what it is), and a place to try them."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    scratch: Scratch | None = None
