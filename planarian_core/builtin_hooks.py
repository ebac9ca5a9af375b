"""The core's own hook implementations: they load through the same door as everybody's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planarian_core.hookspecs import RunInside, hookimpl
from planarian_core.interfaces import RemoteService
from planarian_core.model import RemoteEffect, RemotePosition, SandboxRecord

_GIT = ("git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=normal")


@hookimpl(trylast=True)
def planarian_capture(sandbox: SandboxRecord, service: RemoteService) -> RemotePosition:
    return service.capture(sandbox.id)


@hookimpl(trylast=True)
def planarian_compensate(
    position: RemotePosition, sandbox: SandboxRecord, service: RemoteService
) -> Sequence[RemoteEffect]:
    return service.compensate(position, sandbox.id)


@hookimpl
def planarian_describe_state(run: RunInside) -> Mapping[str, str]:
    """Git's branch, commit and counts of changes. Git runs inside: a hostile repository configures commands."""
    result = run(_GIT)
    if result.exit_code != 0:
        return {}
    branch, commit, changed, untracked = "", "", 0, 0
    for line in result.stdout.splitlines():
        if line.startswith("# branch.head "):
            branch = line.split(" ", 2)[2][:80]
        elif line.startswith("# branch.oid "):
            commit = line.split(" ", 2)[2][:10]
        elif line.startswith("?"):
            untracked += 1
        elif not line.startswith("#"):
            changed += 1
    return {"git": f"{branch} at {commit}, {changed} changed, {untracked} untracked"}
