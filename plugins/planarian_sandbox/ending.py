"""Ends a sandbox's processes, also those that a killed runtime started and could not record."""

from __future__ import annotations

import os

from planarian_core.errors import SandboxError
from planarian_sandbox import cgroups
from planarian_sandbox.identity import end_found, exited, inside_pid, kill

_PATIENCE = 20.0


def end_init(sandbox_id: str, init: int) -> None:
    """Kill an init by its pidfd and wait. It is gone only when every process of its pid namespace is."""
    kill(init)  # frozen processes die of it as well
    if not exited(init, _PATIENCE):
        raise _stuck(sandbox_id)


def _stuck(sandbox_id: str) -> SandboxError:
    return SandboxError(
        f"Processes of {sandbox_id} do not end.",
        code="sandbox-stuck",
        state="they were sent SIGKILL and wait in the kernel",
        remedy="look for a hung file system or device, then stop the sandbox again",
    )


def refuse_running(sandbox_id: str) -> None:
    """SandboxError when something runs for the sandbox already."""
    groups = cgroups.of_sandbox(sandbox_id)
    if _members(sandbox_id, groups, _grouped(groups)):
        raise SandboxError(
            f"{sandbox_id} runs already.",
            code="sandbox-running",
            state="what runs was left alone",
            remedy=f"stop {sandbox_id} first",
        )


def end_strays(sandbox_id: str, groups: tuple[str, ...]) -> None:
    """End what runs for a sandbox that nobody has a record of: an init, a launcher, a restore that was under way.

    Its control groups, made before all else, hold all of that. Only where there are none is the init looked for by
    its arguments: those of a tree that was restored from an image name the sandbox of the image.
    """
    grouped = _grouped(groups)
    if not end_found(lambda: _members(sandbox_id, groups, grouped), _PATIENCE):
        raise _stuck(sandbox_id)


def _grouped(groups: tuple[str, ...]) -> bool:
    """Whether control groups tell what belongs to a sandbox on this host."""
    return bool(groups) or (os.geteuid() == 0 and cgroups.hierarchies() != cgroups.Hierarchies())


def _members(sandbox_id: str, groups: tuple[str, ...], grouped: bool) -> set[int]:
    return {pid for group in groups for pid in cgroups.members(group)} if grouped else set(_inits(sandbox_id))


def _inits(sandbox_id: str) -> list[int]:
    """Host pids of first processes of a namespace, ours to end, that carry the sandbox's id in their arguments."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if sandbox_id.encode() not in file.read(65536):
                    continue
            owned = os.geteuid() in (0, os.stat(f"/proc/{name}").st_uid)
        except OSError:
            continue
        if owned and inside_pid(int(name)) == 1 and int(name) != 1:
            found.append(int(name))
    return found
