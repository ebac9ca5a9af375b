"""The drill: calls each compensable tool and its inverse on a scratch server, and compares everything before and after.

The comparison doesn't use what the undo itself compares: it is all files of the scratch folder, and reads of the whole
state.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planarian_core.codec import encode
from planarian_core.errors import CompensationError, ConfigurationError, PlanarianError
from planarian_core.interfaces import TargetServer, ToolTarget
from planarian_core.model import CallClass, Effect, EffectState, RemoteCall
from planarian_remote.declared import calling, moving
from planarian_remote.declared.declaration import Compare, Example, Scratch, Tool
from planarian_remote.declared.images import Unreadable, failed, fill, take
from planarian_remote.declared.templates import Unresolved, evaluate, result_text
from planarian_remote.mcp_target import open_target

State = dict[str, str | None]


@dataclass(frozen=True)
class Trial:
    """One call tried. ``outcome``: ``exact``, ``differs``, ``failed`` or ``not tried``; ``detail`` says how or why."""

    tool: str
    example: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class DrillReport:
    """What a drill found. ``undeclared``: tools that the server has and the declaration doesn't name (refused);
    ``absent``: tools that are declared, and that the server doesn't have.
    """

    service: str
    trials: tuple[Trial, ...] = ()
    undeclared: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing that was tried went wrong, and something was tried."""
        outcomes = {trial.outcome for trial in self.trials}
        return "exact" in outcomes and outcomes <= {"exact", "not tried"}

    def to_dict(self) -> dict[str, Any]:
        return {**encode(self), "ok": self.ok}

    def to_text(self) -> str:
        lines = [f"{self.service}: {'every call tried is undone exactly' if self.ok else 'NOT every call is undone'}"]
        for trial in self.trials:
            detail = f": {trial.detail}" if trial.detail else ""
            lines.append(f"  {trial.outcome:9}  {trial.tool} ({trial.example}){detail}")
        if self.undeclared:
            lines.append(f"  not declared, so refused: {', '.join(self.undeclared)}")
        if self.absent:
            lines.append(f"  declared, but the server has no such tool: {', '.join(self.absent)}")
        return "\n".join(lines)


def drill(service: str, tools: Mapping[str, Tool], scratch: Scratch | None, timeout: float, limit: int) -> DrillReport:
    """Try every example of every compensable tool, each on a fresh scratch server.

    Raises:
        ConfigurationError: the declaration has no ``[scratch]``.
        RemoteError: the scratch server doesn't start.
    """
    if scratch is None or not scratch.command:
        raise ConfigurationError(
            f"the declaration of {service} has no scratch server to try its inverses on",
            remedy=f"add [services.{service}.scratch] with a command that works in ${{scratch}}, an empty folder",
        )
    trials: list[Trial] = []
    for tool in tools.values():
        if tool.call_class is not CallClass.COMPENSABLE:
            continue
        if not tool.examples:
            trials.append(Trial(tool.name, "-", "not tried", "it has no [[examples]]"))
        trials += [_tried(service, tool, example, scratch, timeout, limit) for example in tool.examples]
    offered = _offered(scratch, timeout)
    return DrillReport(
        service, tuple(trials), tuple(sorted(offered - tools.keys())), tuple(sorted(tools.keys() - offered))
    )


@dataclass(frozen=True)
class _Ground:
    """A scratch server on its folder."""

    folder: Path
    scratch: Scratch
    settings: Mapping[str, str]
    server: TargetServer
    scope: Mapping[str, Any] = field(default_factory=dict)

    def state(self, target: ToolTarget) -> State:
        """Everything that is compared."""
        state = _files(self.folder, self.scratch.ignore) if self.scratch.files else {}
        reads = [fill(read, self.scope) for read in self.scratch.reads]
        return state | take(reads, target, Compare.ALWAYS)


def _ground(scratch: Scratch, folder: Path, timeout: float) -> _Ground:
    for name in scratch.folders:
        (folder / name).mkdir(parents=True)
    scope = {"scratch": str(folder)}
    settings = {name: str(evaluate(value, scope)) for name, value in scratch.settings.items()}
    server = TargetServer(
        tuple(str(evaluate(word, scope)) for word in scratch.command),
        env={name: str(evaluate(value, scope)) for name, value in scratch.env.items()},
        cwd=str(folder),
        timeout=timeout,
    )
    return _Ground(folder, scratch, settings, server, {**scope, "settings": settings})


def _offered(scratch: Scratch, timeout: float) -> set[str]:
    with tempfile.TemporaryDirectory(prefix="planarian-drill-") as folder:
        target = open_target(_ground(scratch, Path(folder), timeout).server)
        try:
            return {str(tool.get("name")) for tool in target.tools()}
        finally:
            target.close()


def _tried(service: str, tool: Tool, example: Example, scratch: Scratch, timeout: float, limit: int) -> Trial:
    with tempfile.TemporaryDirectory(prefix="planarian-drill-") as folder:
        ground = _ground(scratch, Path(folder), timeout)
        target = open_target(ground.server)
        try:
            _set_up(example, ground, target)
            outcome, detail = _there_and_back(service, tool, example, ground, target, limit)
        except (Unreadable, Unresolved) as error:
            outcome, detail = "failed", str(error)
        except PlanarianError as error:
            outcome, detail = "failed", error.message
        finally:
            target.close()
    return Trial(tool.name, example.name, outcome, detail)


def _set_up(example: Example, ground: _Ground, target: ToolTarget) -> None:
    for step in example.setup:
        result = target.call(step.tool, evaluate(step.arguments, ground.scope))
        if failed(result):
            raise Unreadable(f"its setup: {step.tool} reports: {result_text(result)[:500]}")


def _there_and_back(
    service: str, tool: Tool, example: Example, ground: _Ground, target: ToolTarget, limit: int
) -> tuple[str, str]:
    """Call, undo, call again, undo again; what was found, and how it differs."""
    call = RemoteCall(tool.name, evaluate(example.arguments, ground.scope))
    before = ground.state(target)
    prepared = calling.prepare(tool, call, ground.settings, target, limit)
    effect = Effect(
        "drill", service, 1, 0, tool.name, call.digest, tool.call_class, EffectState.SENT, details=prepared.details
    )  # fmt: skip
    outcome = calling.run(prepared, effect, target)
    if failed(outcome.result):
        return "failed", f"it reports: {result_text(outcome.result)[:500]}"
    made = ground.state(target)
    if made == before:
        return "failed", "the example changes nothing"
    if outcome.state is not EffectState.APPLIED:
        return "differs", "its reads don't see what it changes: it would count as without effect"
    mover = _Mover(replace(effect, state=outcome.state, details=outcome.details), target)
    mover.go(EffectState.UNDONE)
    if differing := _differing(before, ground.state(target)):
        return "differs", f"after the undo: {differing}"
    try:
        mover.go(EffectState.APPLIED)
    except CompensationError as error:
        if error.code == "redo-impossible":
            return "exact", "undone; it can't be made again by a rollback of the rollback"
        raise
    if differing := _differing(made, ground.state(target)):
        return "differs", f"made again: {differing}"
    mover.go(EffectState.UNDONE)
    if differing := _differing(before, ground.state(target)):
        return "differs", f"after the second undo: {differing}"
    return "exact", ""


@dataclass
class _Mover:
    effect: Effect
    target: ToolTarget

    def go(self, state: EffectState) -> None:
        undo, redo = ([self.effect], []) if state is EffectState.UNDONE else ([], [self.effect])
        moving.rehearse(undo, redo, self.target)
        moving.move(undo, redo, self.target, self._moved)

    def _moved(self, effect: Effect, state: EffectState) -> None:
        self.effect = replace(effect, state=state)


def _differing(wanted: State, found: State) -> str:
    names = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _files(folder: Path, ignore: Sequence[str]) -> State:
    """What lies in a folder: kind, permissions and content of everything, by relative path. Links aren't followed."""
    found: State = {}
    for parent, folders, files in os.walk(folder):
        at = Path(parent)
        folders[:] = [name for name in folders if str((at / name).relative_to(folder)) not in ignore]
        for name in (*folders, *files):
            path = at / name
            if str(path.relative_to(folder)) in ignore:
                continue
            status = path.lstat()
            kind = stat.filemode(status.st_mode)
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
            found[str(path.relative_to(folder))] = f"{kind} {content}"
    return found
