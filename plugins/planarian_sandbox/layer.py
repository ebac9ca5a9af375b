"""What a sandbox's layer holds before it first runs, and what is put right before each start.

``LAYER/upper`` and ``LAYER/work`` belong to the overlay; where the workspace can't be seen through the root overlay
(another file system; rootless: a workspace below a fresh directory) it has one of its own in ``LAYER/workspace``.
``LAYER/layout.json`` says so and is never in reach of the sandbox.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from planarian_core.errors import ConfigurationError, SandboxError
from planarian_core.model import Network, SandboxSpec
from planarian_sandbox.hidden import below, check_workspace, hidden_paths
from planarian_sandbox.inside import Inside, tampering

RUNTIME = "/run/planarian"
CALLS = f"{RUNTIME}/calls"
REQUESTS = f"{RUNTIME}/requests"
LISTENING = f"{RUNTIME}/listening"

_FRESH = {"tmp": 0o1777, "run": 0o755, "dev": 0o755, "proc": 0o555, "sys": 0o555}
_FRESH_ROOTLESS = ("tmp", "run", "dev", "proc", "sys", "root", "mnt", "lost+found")
_OPENED_ROOTLESS = ("var/tmp", "usr/local/bin", "usr/local/lib", "usr/local/share", "usr/local/etc")
"""Directories of real root's, which the root of a single-user namespace could not write to otherwise."""
_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_PROGRAMS = {"agent.py": ("agent.py", 0o644), "session_holder.py": ("session_holder.py", 0o644)}


@dataclass(frozen=True)
class Layout:
    """How a layer is laid out. ``workspace``: the path that has an overlay of its own, empty when none has."""

    rootless: bool
    workspace: str = ""
    version: int = 1

    @property
    def exclude(self) -> tuple[str, ...]:
        own = ("workspace/work/work",) if self.workspace else ()
        return (("work/*/work",) if self.rootless else ("work/work",)) + own

    def save(self, layer: str) -> None:
        Path(layer, "layout.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, layer: str) -> Layout:
        """The layout of a prepared layer; SandboxError when it has none."""
        try:
            data = json.loads(Path(layer, "layout.json").read_text(encoding="utf-8"))
            layout = cls(rootless=bool(data["rootless"]), workspace=str(data["workspace"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SandboxError(
                f"{layer} is not a prepared layer: {error}.",
                code="sandbox-layer",
                remedy="create the sandbox again, or roll back to a statepoint",
            ) from error
        if layout.rootless != (os.geteuid() != 0):
            kind = "an ordinary user" if layout.rootless else "root"
            raise SandboxError(f"This sandbox was made by {kind} and only {kind} can run it.", code="sandbox-owner")
        return layout


def prepare(spec: SandboxSpec, home: Path) -> Layout:
    """Fill the empty layer of ``spec``; ConfigurationError when its workspace can't be served."""
    hidden = hidden_paths((spec.home, str(home)), spec.hidden)
    check_workspace(spec.workspace, hidden)
    workspace = os.path.realpath(spec.workspace)
    rootless = os.geteuid() != 0
    layout = Layout(rootless, workspace if _needs_own_overlay(workspace, rootless) else "")
    upper = os.path.join(spec.layer, "upper")
    for name in ("upper", "work"):
        os.makedirs(os.path.join(spec.layer, name), exist_ok=True)
    _fresh_directories(upper, layout)
    if not rootless:
        _device_nodes(os.path.join(upper, "dev"))
    if layout.workspace:
        for name in ("upper", "work"):
            os.makedirs(os.path.join(spec.layer, "workspace", name), exist_ok=True)
        shutil.copystat(workspace, os.path.join(spec.layer, "workspace", "upper"))
        _own_like(workspace, os.path.join(spec.layer, "workspace", "upper"))
    elif is_fresh(workspace, rootless):
        _redirect(upper, workspace)
    if spec.network is Network.HOST:
        _name_resolution(upper)
    apply_hidden(spec, layout, hidden)
    install_runtime(spec)
    layout.save(spec.layer)
    return layout


def refresh(spec: SandboxSpec, layout: Layout, home: Path, programs: bool = True) -> None:
    """Before a start: secrets hidden that came since, this version's programs, no leftovers of calls.

    Without ``programs`` the runtime's files stay as they are: an image of the processes that is to come back
    relies on them.
    """
    apply_hidden(spec, layout, hidden_paths((spec.home, str(home)), spec.hidden))
    if programs:
        install_runtime(spec)


def _needs_own_overlay(workspace: str, rootless: bool) -> bool:
    if rootless:
        top = workspace.split("/")[1]
        return top in _FRESH_ROOTLESS or top not in top_directories()
    return os.stat(workspace).st_dev != os.stat("/").st_dev or any(below(workspace, mount) for mount in _mounts())


def is_fresh(path: str, rootless: bool) -> bool:
    """Whether the sandbox sees its own directory at the top of ``path``, not the host's."""
    return path.split("/")[1] in (_FRESH_ROOTLESS if rootless else _FRESH)


def _mounts() -> set[str]:
    """Mount points of this process other than the root."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = {line.split(" ")[4] for line in file}
    return {os.fsdecode(point.encode("utf-8", "surrogateescape").decode("unicode_escape")) for point in points} - {"/"}


def top_directories() -> tuple[str, ...]:
    """Rootless: the directories of ``/`` that can be the lower side of an overlay, having no mount below them."""
    mounts = _mounts()
    return tuple(
        name
        for name in sorted(os.listdir("/"))
        if name not in _FRESH_ROOTLESS
        and os.path.isdir(f"/{name}")
        and not os.path.islink(f"/{name}")
        and os.access(f"/{name}", os.R_OK | os.X_OK)
        and not any(mount.startswith(f"/{name}/") for mount in mounts)
    )


def _fresh_directories(upper: str, layout: Layout) -> None:
    names = {**_FRESH, **({"root": 0o700, "mnt": 0o755} if layout.rootless else {})}
    for name, mode in names.items():
        path = os.path.join(upper, name)
        os.mkdir(path)
        os.chmod(path, mode)
        if not layout.rootless:
            os.setxattr(path, "trusted.overlay.opaque", b"y")
    if layout.rootless:
        for name in _OPENED_ROOTLESS:
            _open_directory(upper, name)
    lock = os.path.join(upper, "run", "lock")
    os.mkdir(lock)
    os.chmod(lock, 0o1777)  # noqa: S103  # as everywhere


def _open_directory(upper: str, name: str) -> None:
    """Put a directory of our own over one of the host's, which shows through."""
    path, lower = upper, "/"
    for part in name.split("/"):
        path, lower = os.path.join(path, part), os.path.join(lower, part)
        if not os.path.isdir(lower) or os.path.islink(lower):
            return
        os.makedirs(path, exist_ok=True)
        os.chmod(path, stat.S_IMODE(os.stat(lower).st_mode) | 0o700)


def _device_nodes(directory: str) -> None:
    """Nodes in the layer rather than in a tmpfs: each tmpfs would cost a process at every dump."""
    for name, (major, minor) in _NODES.items():
        path = os.path.join(directory, name)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(path, 0o666)  # noqa: S103  # as everywhere
    for name, target in _LINKS.items():
        os.symlink(target, os.path.join(directory, name))
    for name, mode in (("shm", 0o1777), ("pts", 0o755)):
        os.mkdir(os.path.join(directory, name))
        os.chmod(os.path.join(directory, name), mode)


def _redirect(upper: str, workspace: str) -> None:
    """Let a workspace below a fresh directory show through, though its parents are the sandbox's own."""
    path = upper
    for part in workspace.strip("/").split("/"):
        path = os.path.join(path, part)
        if not os.path.isdir(path):
            os.mkdir(path, 0o755)
    shutil.copystat(workspace, path)
    _own_like(workspace, path)
    os.setxattr(path, "trusted.overlay.redirect", os.fsencode(workspace))


def _own_like(source: str, target: str) -> None:
    if os.geteuid() == 0:
        found = os.stat(source)
        os.chown(target, found.st_uid, found.st_gid)
        os.chmod(target, stat.S_IMODE(found.st_mode))


def _name_resolution(upper: str) -> None:
    """With the host's network, its resolver configuration, which often lies in /run."""
    real = os.path.realpath("/etc/resolv.conf")
    if not below(real, "/run") or not os.path.isfile(real):
        return
    target = os.path.join(upper, real.lstrip("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(real, target)


def apply_hidden(spec: SandboxSpec, layout: Layout, hidden: Iterable[str]) -> None:
    """Put a whiteout over each hidden path that the sandbox would see and hasn't replaced by its own."""
    workspace = os.path.realpath(spec.workspace)
    for path in hidden:
        if layout.workspace and below(path, layout.workspace):
            root, relative = os.path.join(spec.layer, "workspace", "upper"), os.path.relpath(path, layout.workspace)
            lower = layout.workspace
        elif is_fresh(path, layout.rootless) and not below(path, workspace):
            continue
        else:
            root, relative, lower = os.path.join(spec.layer, "upper"), path.lstrip("/"), "/"
        if layout.rootless and lower == "/" and path.split("/")[1] not in top_directories():
            continue
        try:
            with Inside.of_path(root) as above:
                _whiteout(above, lower, relative)
        except OSError as error:
            raise SandboxError(
                f"{path} can't be hidden in the layer {spec.layer}: {error.strerror}.",
                code="sandbox-layer",
                state="the sandbox was not started",
            ) from error


def _whiteout(upper: Inside, lower: str, relative: str) -> None:
    """A whiteout at ``relative``, its parents made like those in ``lower``; left alone where the sandbox has its own.

    The upper tree may have been changed by the sandbox: a step that isn't a directory ends it, for then the host's
    path can't be seen there.
    """
    parts = relative.split("/")
    descriptors = [os.dup(upper.descriptor)]
    seen = lower
    try:
        for part in parts[:-1]:
            seen = os.path.join(seen, part)
            try:
                os.mkdir(part, dir_fd=descriptors[-1])
                made = True
            except FileExistsError:
                made = False
            try:
                descriptors.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptors[-1]))
            except OSError:
                return
            if made:
                _copy_directory_status(seen, descriptors[-1])
        try:
            os.mknod(parts[-1], stat.S_IFCHR, 0, dir_fd=descriptors[-1])
        except FileExistsError:
            return
        except OSError as error:
            raise ConfigurationError(
                f"{os.path.join(lower, relative)} can't be hidden: {error.strerror}.",
                code="hidden-path",
                remedy="put the Planarian home on a file system that allows whiteouts (ext4, xfs, btrfs, tmpfs)",
            ) from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _copy_directory_status(source: str, descriptor: int) -> None:
    found = os.stat(source)
    if os.geteuid() == 0:
        os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | (0o700 if os.geteuid() else 0))
    os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))


def install_runtime(spec: SandboxSpec) -> None:
    """Put the programs that run inside into the (unmounted) layer and sweep what calls left there."""
    here = os.path.dirname(os.path.abspath(__file__))
    with (
        tampering("The sandbox's runtime files can't be written"),
        Inside.of_path(os.path.join(spec.layer, "upper")) as upper,
        upper.make_directory("run", 0o755),
        upper.make_directory("run/planarian", 0o755) as runtime,
        upper.make_directory("run/planarian/bin", 0o755) as programs,
        upper.make_directory("run/planarian/calls", 0o700) as calls,
        upper.make_directory("run/planarian/requests", 0o1777) as requests,
        upper.make_directory("run/planarian/listening", 0o755) as listening,
        upper.make_directory("run/planarian/empty", 0o555),
    ):
        for name, (source, mode) in _PROGRAMS.items():
            path = os.path.join(here, source)
            if os.path.exists(path):
                runtime.replace(name, Path(path).read_bytes(), mode)
        client = Path(here, "inside_client.py").read_bytes()
        programs.replace("planarian", b"#!" + os.fsencode(inside_python()) + b" -IS\n" + client, 0o755)
        for directory in (calls, requests, listening):
            for name in list(directory.names(100_000)):
                directory.remove(name)


def inside_python() -> str:
    """The Python that is there inside as well: the system's, not one of a virtual environment or a home."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3"):
        if os.access(path, os.X_OK):
            return path
    raise SandboxError(
        "There is no /usr/bin/python3 on this host, which the sandbox's init needs.",
        code="sandbox-python",
        remedy="install the system's python3 (apt-get install python3)",
    )
