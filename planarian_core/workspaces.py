"""Which directories of the host can be a workspace: one project's, not the system's and not Planarian's own."""

from __future__ import annotations

import os
from pathlib import Path

from planarian_core.errors import ConfigurationError

_SYSTEM = frozenset(
    f"/{name}" for name in ("bin", "boot", "dev", "etc", "lib", "lib64", "opt", "run", "sbin", "srv", "usr", "var")
)
_KERNEL = frozenset(
    ["bpf", "cgroup", "cgroup2", "debugfs", "devpts", "devtmpfs", "proc", "securityfs", "sysfs", "tracefs"]
)


def checked_workspace(workspace: Path, planarian_home: Path) -> Path:
    """The real path of a directory that can be a workspace; ConfigurationError, with the reason, for any other."""
    try:
        real = workspace.expanduser().resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(
            f"the workspace {workspace} can't be used: {error}", code="workspace-missing", remedy="create it first"
        ) from error
    home = planarian_home.resolve()
    why = ""
    if not real.is_dir():
        why = "it is no directory"
    elif real == Path(real.anchor):
        why = "it is the root of the file system"
    elif real == Path.home().resolve():
        why = "it is your home directory"
    elif Path.home().resolve().is_relative_to(real):
        why = "your home directory lies in it"
    elif str(real) in _SYSTEM:
        why = "it belongs to the operating system"
    elif kernel := _kernel_file_system(real):
        why = f"it is a view of the kernel's ({kernel}), not files"
    elif home == real or home.is_relative_to(real):
        why = f"Planarian's own home {home} lies in it"
    elif real.is_relative_to(home):
        why = f"it lies in Planarian's own home {home}"
    elif not os.access(real, os.R_OK | os.X_OK):
        why = "you can't read it"
    if why:
        raise ConfigurationError(
            f"{real} can't be a workspace: {why}",
            code="workspace-refused",
            remedy="choose the directory of one project",
        )
    return real


def checked_root(root: Path, planarian_home: Path) -> Path:
    """The real path of a directory that can be another root file system; ConfigurationError for any other."""
    try:
        real = root.expanduser().resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(
            f"the root {root} can't be used: {error}", code="root-missing", remedy="unpack an image there first"
        ) from error
    why = ""
    if not real.is_dir():
        why = "it is no directory"
    elif any(place.resolve().is_relative_to(real) for place in (planarian_home, Path.home())):
        why = "a home lies in it, which the sandbox would see"
    if why:
        raise ConfigurationError(
            f"{real} can't be a root: {why}", code="root-refused", remedy="unpack an image into a directory of its own"
        )
    return real


def workspace_in(root: Path, workspace: str) -> Path:
    """A workspace in another root, by its path there. Its content is somebody else's: no symlink is followed.

    Raises:
        ConfigurationError: it can't be one.
    """
    inside = os.path.normpath("/" + workspace.lstrip("/"))
    why = ""
    if (
        inside == "/"
        or inside in _SYSTEM
        or not os.path.isabs(workspace)
        or inside.startswith(("/proc", "/sys", "/dev"))
    ):
        why = "it has to be the directory of one project, by its whole path there"
    at = root
    for name in inside.strip("/").split("/"):
        at /= name
        if not why and (at.is_symlink() or not at.is_dir()):
            why = f"there is no directory {at.relative_to(root)} in {root}"
    if why:
        raise ConfigurationError(
            f"{workspace} can't be a workspace: {why}",
            code="workspace-refused",
            remedy=f"name a project's directory as it is called in {root}, such as /app",
        )
    return Path(inside)


def _kernel_file_system(path: Path) -> str:
    """The type of the kernel's own file system that ``path`` lies on, empty for any other."""
    import psutil  # 10 ms that only a new sandbox needs

    mounted = [p for p in psutil.disk_partitions(all=True) if path.is_relative_to(p.mountpoint)]
    deepest = max(mounted, key=lambda p: len(p.mountpoint), default=None)
    return deepest.fstype if deepest is not None and deepest.fstype in _KERNEL else ""
