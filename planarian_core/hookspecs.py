"""The hooks: everything that a plugin can offer or hear. This file is their manual.

A plugin is a module or object registered under the entry-point group ``planarian``, with functions marked
``@planarian_core.hookimpl``. Take only the arguments that you need. ``plugins/planarian_filesystem/hooks.py`` is a
short one to copy from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pluggy

if TYPE_CHECKING:
    from planarian_core.effects import EffectLog
    from planarian_core.interfaces import RemoteService
    from planarian_core.model import CommandResult, RemoteEffect, RemotePosition, SandboxRecord, Statepoint
    from planarian_core.testing.demonstration import Demonstration

hookspec = pluggy.HookspecMarker("planarian")
hookimpl = pluggy.HookimplMarker("planarian")

RunInside = Callable[[Sequence[str]], "CommandResult"]
"""Runs an argument list in the sandbox's workspace, for a few seconds at most."""

BackendKind = Literal["filesystem", "process", "sandbox"]


@dataclass(frozen=True)
class BackendFactory:
    """How to make a backend. ``make(home)`` does the heavy imports; ``rank``: higher is preferred as a default.
    ``missed``: whether a user is told of it where it was preferred and doesn't serve; not for what takes a host that
    few have.
    """

    kind: BackendKind
    name: str
    make: Callable[[Path], Any]
    rank: int = 0
    missed: bool = True


@dataclass(frozen=True)
class CommandGroup:
    """Several commands of ``planarian`` under one name. ``summary`` is one sentence for the list of commands; the text
    after it, if any, is shown by the group's own help.
    """

    summary: str
    commands: Mapping[str, Callable[..., Any]]


@hookspec
def planarian_backends() -> Sequence[BackendFactory]:  # type: ignore[empty-body]  # a spec has no body
    """Offer backends. Called once, when a runtime opens; must be cheap: heavy imports belong into ``make``.

    Two backends of one kind and name are an error that names both plugins.
    """


@hookspec
def planarian_services(  # type: ignore[empty-body]  # a spec
    sandbox: SandboxRecord, configured: Mapping[str, Mapping[str, Any]], effects: EffectLog
) -> Sequence[RemoteService]:
    """Offer the remote services that this sandbox uses. Called at each snapshot, rollback and fork: must be cheap, and
    connect to nothing.

    ``configured`` are the tables ``[services.NAME]`` of the home's configuration; take those whose ``kind`` is yours.
    ``effects`` is the home's undo log: most services are a :class:`planarian_core.logged_service.LoggedService` on it.
    """


@hookspec(firstresult=True)
def planarian_capture(sandbox: SandboxRecord, service: RemoteService) -> RemotePosition | None:
    """Record a service's position (Table 2: ``capture(sb, service) -> sp-remote``), inside the instant.

    The built-in implementation asks ``service.capture``; one of your own comes first, return None to pass.
    """


@hookspec(firstresult=True)
def planarian_compensate(
    position: RemotePosition, sandbox: SandboxRecord, service: RemoteService
) -> Sequence[RemoteEffect] | None:
    """Bring a service back to ``position`` (Table 2: ``compensate(sp-remote, sb, service)``); must be idempotent.

    The built-in implementation asks ``service.compensate``.
    """


@hookspec
def planarian_describe_state(sandbox: SandboxRecord, run: RunInside) -> Mapping[str, str]:  # type: ignore[empty-body]
    """Add facts to a statepoint's description: git status, test results, a game's score. Keys are short labels.

    Look at the sandbox only through ``run``: its files are untrusted, and reading them with a host's tool may execute
    what they say. Called under the exclusive lock, before the instant, for statepoints that somebody asked for. An
    exception is reported in the statepoint's coverage.
    """


@hookspec(firstresult=True)
def planarian_should_snapshot(sandbox: SandboxRecord, trigger: str, calls: int) -> bool | None:
    """Decide whether to take a statepoint now. ``trigger``: ``tool-call``, ``milestone:NAME`` or ``submit``; ``calls``
    counts tool calls since the last statepoint, whichever processes made them. None leaves it to the next
    implementation, then to the sandbox's policy, at last to the home's. Called before the sandbox is locked, by
    adapters' ``Planarian.snapshot_by_policy``; what somebody asks for is taken without asking here.
    """


@hookspec(firstresult=True)
def planarian_approve(sandbox: SandboxRecord, effects: Sequence[RemoteEffect]) -> bool | None:
    """Consent to ``effects`` that can't be undone (pivots) before a rollback passes them, or one runs. None passes."""


@hookspec
def planarian_statepoint_committed(sandbox: SandboxRecord, statepoint: Statepoint) -> None:
    """A statepoint was committed. An exception is logged, never undone."""


@hookspec
def planarian_rolled_back(sandbox: SandboxRecord, statepoint: Statepoint, safety: Statepoint | None) -> None:
    """``sandbox`` is now at ``statepoint``; ``safety`` is the state before, where one was taken."""


@hookspec
def planarian_forked(source: SandboxRecord, sandbox: SandboxRecord, statepoint: Statepoint) -> None:
    """``sandbox`` was forked from ``statepoint`` of ``source``."""


@hookspec
def planarian_commands() -> Mapping[str, Callable[..., Any] | CommandGroup]:  # type: ignore[empty-body]  # a spec
    """Add commands to ``planarian``: a Typer callback (typed function with a docstring) by command name, or a
    :class:`CommandGroup` of them (``planarian pool create``).

    Called only by the command line. Importing what a command needs belongs into the command. One that has an option
    ``--json`` puts its value into ``ctx.meta["planarian.json"]``: then its errors are JSON as well.
    """


@hookspec
def planarian_demos() -> Mapping[str, Callable[[Demonstration], None]]:  # type: ignore[empty-body]  # a spec
    """Tell stories in ``planarian demo``, by name: ``agent`` is told by default, ``remote`` with ``--remote``.

    A story opens a home through the demonstration that it is given, and claims there only what it has compared.
    Called only by that command; importing what a story needs belongs into the story.
    """
