"""Hides host paths in a layer: a whiteout (a character device 0:0) where overlayfs would show them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from planarian_core.errors import ConfigurationError, SandboxError
from planarian_core.model import SandboxSpec
from planarian_sandbox.hidden import below
from planarian_sandbox.inside import Inside
from planarian_sandbox.layout import Layout, is_fresh, top_directories


def apply_hidden(spec: SandboxSpec, layout: Layout, hidden: Iterable[str]) -> None:
    """Put a whiteout over each hidden path that the sandbox would see and hasn't replaced by its own."""
    workspace = spec.place
    tops = top_directories() if layout.rootless else ()
    for path in hidden:
        if layout.workspace and below(path, layout.workspace):
            root, relative = os.path.join(spec.layer, "workspace", "upper"), os.path.relpath(path, layout.workspace)
            lower = layout.workspace
        elif is_fresh(path, layout.rootless) and not below(path, workspace):
            continue
        else:
            root, relative, lower = os.path.join(spec.layer, "upper"), path.lstrip("/"), "/"
        if layout.rootless and lower == "/" and path.split("/")[1] not in tops:
            continue
        try:
            with Inside.of_path(root) as above:
                _whiteout(above, lower, relative)
                _hide_below(above, relative, "user.overlay.opaque" if layout.rootless else "trusted.overlay.opaque")
        except OSError as error:
            if not os.path.lexists(path):  # nothing to hide: the host has removed it, and what it lay in, meanwhile
                continue
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
    if upper.has(relative):
        return
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


def _hide_below(upper: Inside, relative: str, mark: str) -> None:
    """A directory that the layer has in a hidden one's place must not be merged with that. overlayfs marks those that
    it makes itself; in a layer from elsewhere the mark may be missing.
    """
    try:
        directory = upper.directory(relative)
    except OSError:  # something else, or out of sight
        return
    with directory:
        if mark not in os.listxattr(directory.descriptor) or os.getxattr(directory.descriptor, mark) != b"y":
            os.setxattr(directory.descriptor, mark, b"y")


def _copy_directory_status(source: str, descriptor: int) -> None:
    found = os.stat(source)
    if os.geteuid() == 0:
        os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | (0o700 if os.geteuid() else 0))
    os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
