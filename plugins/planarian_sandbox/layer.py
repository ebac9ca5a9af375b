"""What a sandbox's layer holds before it first runs, and what is put right before each start.

``LAYER/upper`` and ``LAYER/work`` belong to the overlay over the host's root; the workspace has one of its own in
``LAYER/workspace``, over the home's copy of it.
``LAYER/layout.json`` says so and is never in reach of the sandbox.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from planarian_core.errors import ConfigurationError
from planarian_core.model import Network, SandboxSpec
from planarian_sandbox.hidden import below, check_workspace, hidden_paths
from planarian_sandbox.inside import Inside, tampering
from planarian_sandbox.layout import (
    FRESH,
    RUNTIME,
    Layout,
    inside_python,
)
from planarian_sandbox.request_listener import LISTENING, REQUESTS, program
from planarian_sandbox.whiteout import apply_hidden

_OPENED_ROOTLESS = ("var/tmp", "usr/local/bin", "usr/local/lib", "usr/local/share", "usr/local/etc")
"""Directories of real root's, which the root of a single-user namespace could not write to otherwise."""
NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_PROGRAMS = ("agent.py", "session_holder.py", "request_client.py")


def prepare(spec: SandboxSpec, home: Path) -> Layout:
    """Fill the empty layer of ``spec``; ConfigurationError when its workspace can't be served."""
    hidden = _hidden(spec, home)
    if not spec.root:
        check_workspace(spec.workspace, hidden)
    workspace = spec.place
    rootless = os.geteuid() != 0
    if spec.root and rootless:
        raise ConfigurationError(
            "An ordinary user's sandbox can't stand on an image: its files belong to many users.",
            code="root-rootless",
            remedy="run as root",
        )
    layout = Layout(rootless, workspace)
    upper = os.path.join(spec.layer, "upper")
    for name in ("upper", "work"):
        os.makedirs(os.path.join(spec.layer, name), exist_ok=True)
    _fresh_directories(upper, layout)
    if rootless:
        os.mkdir(os.path.join(upper, "dev", "shm"))
        os.chmod(os.path.join(upper, "dev", "shm"), 0o1777)  # noqa: S103  # as everywhere
    else:
        _device_nodes(os.path.join(upper, "dev"))
    for name in ("upper", "work"):
        os.makedirs(os.path.join(spec.layer, "workspace", name), exist_ok=True)
    source = spec.origin if spec.root else workspace
    shutil.copystat(source, os.path.join(spec.layer, "workspace", "upper"))
    _own_like(source, os.path.join(spec.layer, "workspace", "upper"))
    if spec.network is Network.HOST:
        _name_resolution(upper, spec.root)
    apply_hidden(spec, layout, hidden)
    install_runtime(spec)
    layout.save(spec.layer)
    return layout


def refresh(spec: SandboxSpec, layout: Layout, home: Path, programs: bool = True) -> None:
    """Before a start: secrets hidden that came since, this version's programs, no leftovers of calls.

    Without ``programs`` the runtime's files stay as they are: an image of the processes that is to come back
    relies on them.
    """
    apply_hidden(spec, layout, _hidden(spec, home))
    if programs:
        install_runtime(spec)


def _hidden(spec: SandboxSpec, home: Path) -> tuple[str, ...]:
    """What must not be seen of the host: with another root nothing of it is there. Planarian keeps its own files in the
    home, and in the directory of the layers, which may lie elsewhere.
    """
    return () if spec.root else hidden_paths((spec.home, str(home), os.path.dirname(spec.layer)), spec.hidden)


def _fresh_directories(upper: str, layout: Layout) -> None:
    names = {**FRESH, **({"root": 0o700, "mnt": 0o755} if layout.rootless else {})}
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
    for name, (major, minor) in NODES.items():
        path = os.path.join(directory, name)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(path, 0o666)  # noqa: S103  # as everywhere
    for name, target in _LINKS.items():
        os.symlink(target, os.path.join(directory, name))
    for name, mode in (("shm", 0o1777), ("pts", 0o755)):
        os.mkdir(os.path.join(directory, name))
        os.chmod(os.path.join(directory, name), mode)


def _own_like(source: str, target: str) -> None:
    if os.geteuid() == 0:
        found = os.stat(source)
        os.chown(target, found.st_uid, found.st_gid)
        os.chmod(target, stat.S_IMODE(found.st_mode))


def _name_resolution(upper: str, root: str) -> None:
    """With the host's network, its resolver configuration, which often lies in /run, and which no image has."""
    real = os.path.realpath("/etc/resolv.conf")
    if not os.path.isfile(real):
        return
    if root:
        os.makedirs(os.path.join(upper, "etc"), exist_ok=True)
        shutil.copyfile(real, os.path.join(upper, "etc", "resolv.conf"))
        return
    if not below(real, "/run"):
        return
    target = os.path.join(upper, real.lstrip("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(real, target)


def install_runtime(spec: SandboxSpec) -> None:
    """Put the programs that run inside into the (unmounted) layer and sweep what calls left there."""
    here = os.path.dirname(os.path.abspath(__file__))
    with (
        tampering("The sandbox's runtime files can't be written"),
        Inside.of_path(os.path.join(spec.layer, "upper")) as upper,
        upper.make_directory("run", 0o755) as run,
        upper.make_directory("run/planarian", 0o755) as runtime,
        runtime.make_directory("bin", 0o755) as programs,
        runtime.make_directory("calls", 0o700) as calls,
        runtime.make_directory(REQUESTS, 0o1777) as requests,
        runtime.make_directory(LISTENING, 0o755) as listening,
        runtime.make_directory("empty", 0o555),
    ):
        for name in _PROGRAMS:
            runtime.replace(name, Path(here, name).read_bytes(), 0o644)
        client = program(inside_python(spec.root), f"{RUNTIME}/request_client.py", RUNTIME)
        programs.replace("planarian", client, 0o755)
        for directory in (calls, requests, listening):
            for name in list(directory.names(100_000)):
                directory.remove(name)
            directory.settle()
        if os.geteuid() == 0:
            # A sandbox that moved its /run away left a whiteout there: what was just made in its stead must hide the
            # host's /run as well.
            os.setxattr(f"/proc/self/fd/{run.descriptor}", "trusted.overlay.opaque", b"y")
