"""What a dump and its restore must agree on: the network, and which mounts come from outside."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planarian_core.errors import RestoreError
from planarian_core.interfaces import RestoreEnvironment, RunningSandbox
from planarian_core.model import Network
from planarian_process.criu_tasks import Task, several_networks


@dataclass(frozen=True)
class Shape:
    """``mounts`` are those that the sandbox backend brings, by their path inside."""

    private: bool
    keep: bool
    mounts: tuple[str, ...]

    @classmethod
    def of(cls, sandbox: RunningSandbox, tasks: Sequence[Task]) -> Shape:
        private = sandbox.spec.network is not Network.HOST
        mounts = ("/", *(str(path) for path in sandbox.live.details.get("mounts", ())))
        return cls(private, private and several_networks(tasks), mounts)

    @classmethod
    def from_details(cls, details: Mapping[str, Any]) -> Shape:
        mounts = tuple(str(path) for path in details.get("mounts", ("/",)))
        return cls(bool(details.get("private_network", True)), bool(details.get("keep_network", False)), mounts)

    @property
    def network(self) -> dict[str, bool]:
        return {"private_network": self.private, "keep_network": self.keep}

    def to_dump(self) -> list[str]:
        return [f"mnt[{path}]:{_mount_name(path)}" for path in self.mounts]

    def to_restore(self, environment: RestoreEnvironment) -> list[str]:
        places = {**environment.mounts, "/": environment.root}
        missing = [path for path in self.mounts if path not in places]
        if missing:
            raise RestoreError(
                f"the sandbox has nothing mounted at {missing[0]}, as it had when the statepoint was taken",
                remedy="restore it into a sandbox with the same workspace",
            )
        return [f"mnt[{_mount_name(path)}]:{places[path]}" for path in self.mounts]


def _mount_name(path: str) -> str:
    """What a mount that comes from outside is called in the image; free of the path's own characters."""
    return "root" if path == "/" else f"mount-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
