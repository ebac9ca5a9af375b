"""Bringing the processes of a statepoint back to life, on files that are in place already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planarian_core.context import one_line
from planarian_core.interfaces import ProcessBackend, RestartsCommands, RestoresTree, TreeHost
from planarian_core.model import Artefact, Command, Domain, Gap, LiveSandbox, SandboxRecord, Statepoint
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Registry


def images_of(home: Path, statepoint_id: str) -> Path:
    """The directory of a statepoint's process images."""
    return home / "statepoints" / statepoint_id / "images"


def bring_up(
    home: Path, registry: Registry, plugins: PluginManager, record: SandboxRecord, statepoint: Statepoint, *,
    files_only: bool = False,
) -> LiveSandbox:  # fmt: skip
    """Restore the process tree, or start the sandbox and what ran in it anew, as the statepoint's artefact allows.

    Raises:
        RestoreError, SandboxError: nothing is left running.
    """
    spec = record.spec
    sandbox = plugins.sandbox(spec.backend)
    artefact, backend = (None, None) if files_only else _captured(plugins, statepoint)
    if artefact and isinstance(backend, RestoresTree) and isinstance(sandbox, TreeHost):
        environment = sandbox.restore_environment(spec)
        images = images_of(home, statepoint.id)
        return sandbox.adopt(spec, backend.restore(artefact, images, environment, kill=statepoint.in_flight))
    live = sandbox.start(spec)
    if artefact and isinstance(backend, RestartsCommands):
        origin = registry.sandbox(statepoint.sandbox_id).spec.workspace
        for command in backend.commands(artefact, skip=statepoint.in_flight):
            moved = relocated(command, origin, spec.workspace)
            if moved is not None:
                sandbox.execute(spec, live, moved)
    return live


def left_behind(registry: Registry, plugins: PluginManager, fork: SandboxRecord, statepoint: Statepoint) -> list[Gap]:
    """Commands that aren't started again in a fork, because they name the source's workspace."""
    artefact, backend = _captured(plugins, statepoint)
    if artefact is None or not isinstance(backend, RestartsCommands):
        return []
    origin = registry.sandbox(statepoint.sandbox_id).spec.workspace
    commands = backend.commands(artefact, skip=statepoint.in_flight)
    left = [c for c in commands if relocated(c, origin, fork.spec.workspace) is None]
    reason = f"names the source's workspace {origin}; not started in the fork"
    return [Gap(Domain.PROCESSES, one_line(" ".join(c.argv), 200), reason) for c in left]


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
