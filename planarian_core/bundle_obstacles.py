"""Why a bundle can't come to this host: each reason with what helps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planarian_core.bundle_checking import this_host
from planarian_core.bundle_format import BundleError
from planarian_core.bundle_records import BundleHead
from planarian_core.interfaces import TakesImages, TakesLayers
from planarian_core.model import SandboxSpec
from planarian_core.plugin_manager import PluginManager

_NOT_HERE = ("/proc", "/sys", "/dev", "/run")
_SYSTEM = frozenset(f"/{name}" for name in ("bin", "boot", "etc", "lib", "lib64", "opt", "sbin", "srv", "usr", "var"))


@dataclass(frozen=True)
class Obstacle:
    """Why a bundle can't come to this host as it is. ``of_images``: without the processes it could."""

    what: str
    remedy: str
    of_images: bool = False


def refuse(obstacles: Sequence[Obstacle]) -> None:
    """BundleError that names all obstacles, unless there are none."""
    if not obstacles:
        return
    remedies = list(dict.fromkeys(filter(None, (obstacle.remedy for obstacle in obstacles))))
    if all(obstacle.of_images for obstacle in obstacles):
        remedies.append("or import its files without the processes: planarian import --files-only")
    raise BundleError(
        "this host can't restore what the bundle holds: " + "; ".join(obstacle.what for obstacle in obstacles),
        code="bundle-unfit",
        state="nothing was imported",
        remedy="; ".join(remedies),
    )


class Obstacles:
    """Finds them for one home. Nothing is written."""

    def __init__(self, home: Path, plugins: PluginManager) -> None:
        self._home = home
        self._plugins = plugins

    def of(self, head: BundleHead, *, images: bool) -> list[Obstacle]:
        """Why this host can't restore the bundle; ``images``: its processes too."""
        backend = head.sandbox.backend
        if backend not in self._plugins.names("sandbox"):
            return [Obstacle(f"there is no sandbox backend {backend!r}", "install the plugin that offers it")]
        found = [*self._sandbox_obstacles(head)]
        if not found and images:
            found += self._image_obstacles(head)
        return found

    def _sandbox_obstacles(self, head: BundleHead) -> list[Obstacle]:
        name = head.sandbox.backend
        available = self._plugins.probe("sandbox", name)
        if not available.available:
            what = f"the sandbox backend {name} doesn't work here: {available.reason}"
            return [Obstacle(what, available.remedy or "planarian doctor")]
        backend = self._plugins.sandbox(name)
        if backend.capabilities.in_place != head.sandbox.in_place:
            return [Obstacle(f"its sandbox isn't what {name} makes here", "upgrade planarian on both hosts")]
        if not backend.capabilities.isolated:
            return [] if head.sandbox.in_place else self._workspace_obstacles(head.sandbox.workspace)
        if not isinstance(backend, TakesLayers):
            return [Obstacle(f"the sandbox backend {name} takes no layer from elsewhere", "")]
        here = this_host()
        if here.system != head.host.system:
            return [Obstacle(f"it was made on {head.host.system}", f"import it on {head.host.system}")]
        if here.root != head.host.root:
            maker, wanted = ("root", "root") if head.host.root else ("an ordinary user", "an ordinary user")
            return [Obstacle(f"its sandbox was made by {maker}, and only {maker} can run it", f"import it as {wanted}")]
        return self._workspace_obstacles(head.sandbox.workspace)

    def _workspace_obstacles(self, workspace: str) -> list[Obstacle]:
        """Inside, the workspace has the path that it had where the sandbox was made."""
        home = os.path.realpath(self._home)
        own = os.path.expanduser("~")
        why = ""
        if not os.path.isabs(workspace) or os.path.normpath(workspace) != workspace or not workspace.isprintable():
            why = "is no path of a directory"
        elif workspace in ("/", *_SYSTEM) or any(_below(workspace, path) for path in _NOT_HERE):
            why = "belongs to the operating system"
        elif _below(own, workspace) or _below(home, workspace) or _below(workspace, home):
            why = "is, or holds, your home directory or Planarian's home here"
        elif os.path.realpath(workspace) != workspace:
            why = f"leads to {os.path.realpath(workspace)} on this host"
        what = f"its workspace {workspace[:200]!a} {why}"
        return [Obstacle(what, "import it on a host where that path is free")] if why else []

    def _image_obstacles(self, head: BundleHead) -> list[Obstacle]:
        artefact = head.statepoint.processes
        assert artefact is not None
        if artefact.backend not in self._plugins.names("process"):
            return [Obstacle(f"there is no process backend {artefact.backend!r}", "", of_images=True)]
        available = self._plugins.probe("process", artefact.backend)
        backend = self._plugins.process(artefact.backend)
        if not available.available:
            what = f"its processes can't be restored: {available.reason}"
            return [Obstacle(what, available.remedy, of_images=True)]
        if not backend.capabilities.memory:
            return []
        here = this_host()
        if (here.system, here.machine) != (head.host.system, head.host.machine):
            what = f"its processes ran on {head.host.system} {head.host.machine}; this is {here.system} {here.machine}"
            return [Obstacle(what, "import it on such a machine", of_images=True)]
        found = []
        if isinstance(backend, TakesImages) and not (accepted := backend.accepts(artefact)).available:
            found.append(Obstacle(accepted.reason, accepted.remedy, of_images=True))
        workspace = head.sandbox.workspace
        spec = SandboxSpec(head.sandbox.id, workspace, workspace, str(self._home), head.sandbox.backend)
        if self._plugins.sandbox(head.sandbox.backend).fingerprint(spec) != head.statepoint.base:
            what = "its processes have the memory of another host's programs: the packages below the sandbox differ"
            found.append(Obstacle(what, "import it where the same packages are installed", of_images=True))
        return found


def _below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")
