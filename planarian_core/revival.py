"""Starting a sandbox, and bringing the processes of a statepoint back to life, on files that are in place already."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from planarian_core.artefacts import images_of
from planarian_core.context import one_line, process_words
from planarian_core.errors import SandboxError
from planarian_core.interfaces import (
    PreparesStart,
    ProcessBackend,
    RestartsCommands,
    RestoresTree,
    SandboxBackend,
    TreeHost,
    Wakes,
)
from planarian_core.model import (
    Artefact,
    Command,
    Domain,
    Gap,
    LiveSandbox,
    SandboxRecord,
    SandboxSpec,
    Statepoint,
)
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Registry


@dataclass(frozen=True)
class Revived:
    """A sandbox that runs again: what runs in it, in words, and the commands that could not be started again."""

    live: LiveSandbox
    running: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()


def described(statepoint: Statepoint) -> tuple[str, ...]:
    """What runs when a statepoint's processes are back, in words."""
    return tuple(map(process_words, statepoint.process_list))


def start(plugins: PluginManager, record: SandboxRecord) -> LiveSandbox:
    """Start a prepared sandbox, nothing in it, so that what captures its processes can do that well.

    Raises:
        SandboxError: nothing is left running.
    """
    process = plugins.process(record.process)
    with process.starting() if isinstance(process, PreparesStart) else nullcontext():
        return plugins.sandbox(record.spec.backend).start(record.spec)


def restore_frozen(
    home: Path, plugins: PluginManager, record: SandboxRecord, statepoint: Statepoint
) -> LiveSandbox | None:
    """Restore the process tree so that nothing of it runs yet; None where that can't be, or there is none.

    Raises:
        RestoreError, SandboxError: nothing is left running.
    """
    spec = record.spec
    sandbox = plugins.sandbox(spec.backend)
    artefact, backend = _captured(plugins, statepoint)
    if not (
        artefact and isinstance(backend, RestoresTree) and isinstance(sandbox, TreeHost) and isinstance(sandbox, Wakes)
    ):
        return None
    environment = sandbox.restore_environment(spec)
    if not environment.freezer:
        sandbox.stop(spec, None)
        return None
    images = images_of(home, statepoint.owner(artefact))
    pid = backend.restore(artefact, images, environment, kill=statepoint.in_flight, frozen=True)
    return sandbox.adopt(spec, pid)


def bring_up(
    home: Path, registry: Registry, plugins: PluginManager, record: SandboxRecord, statepoint: Statepoint, *,
    files_only: bool = False,
) -> Revived:  # fmt: skip
    """Restore the process tree, or start the sandbox and what ran in it anew, as the statepoint's artefact allows.

    Raises:
        RestoreError, SandboxError: nothing is left running.
    """
    spec = record.spec
    sandbox = plugins.sandbox(spec.backend)
    artefact, backend = (None, None) if files_only else _captured(plugins, statepoint)
    if artefact and isinstance(backend, RestoresTree) and isinstance(sandbox, TreeHost):
        environment = sandbox.restore_environment(spec)
        images = images_of(home, statepoint.owner(artefact))
        live = sandbox.adopt(spec, backend.restore(artefact, images, environment, kill=statepoint.in_flight))
        return Revived(live, described(statepoint))
    live = start(plugins, record)
    if artefact and isinstance(backend, RestartsCommands):
        origin = artefact.workspace or registry.sandbox(statepoint.sandbox_id).spec.workspace
        return _restart(sandbox, spec, live, backend.commands(artefact), origin)
    return Revived(live)


def _restart(
    sandbox: SandboxBackend, spec: SandboxSpec, live: LiveSandbox, commands: Sequence[Command], origin: str
) -> Revived:
    gaps, running = [], []
    for command in commands:
        words = one_line(" ".join(command.argv), 200)
        reason = f"names the source's workspace {origin}; not started again"
        moved = relocated(command, origin, spec.workspace)
        if moved is not None:
            try:
                result = sandbox.execute(spec, live, moved)
            except SandboxError as error:
                reason = f"could not be started again: {error.message}"
            else:
                if result.exit_code == 0:
                    running.append(words)
                    continue
                reason = f"could not be started again: {result.stderr or result.exit_code}"
        gaps.append(Gap(Domain.PROCESSES, words, one_line(reason, 300)))
    return Revived(live, tuple(running), tuple(gaps))


def relocated(command: Command, origin: str, workspace: str) -> Command | None:
    """A command of the workspace ``origin`` for a fork that lives in ``workspace``, a directory of its own.

    None when its arguments name the origin: started again it would write into the source (guarantee 5).
    """
    if origin == workspace:
        return command

    def move(path: str) -> str:
        inside = path == origin or path.startswith(f"{origin}/")
        return workspace + path[len(origin) :] if inside else path

    if any(origin in argument for argument in command.argv):
        return None
    return replace(
        command,
        cwd=move(command.cwd),
        env={key: move(value) for key, value in command.env.items()},
        stdout_path=move(command.stdout_path),
        stderr_path=move(command.stderr_path),
    )


def _captured(plugins: PluginManager, statepoint: Statepoint) -> tuple[Artefact | None, ProcessBackend | None]:
    artefact = statepoint.processes
    return artefact, plugins.process(artefact.backend) if artefact else None
