"""A restore that is ready beside its layer: a writable snapshot that takes the layer's place in one step."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from planarian_core.errors import RestoreError
from planarian_filesystem import btrfs_ioctl
from planarian_filesystem import btrfs_subvolumes as subvolumes
from planarian_filesystem.btrfs_changes import changes
from planarian_filesystem.btrfs_errors import restore_errors

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TOKEN = re.compile(r"[0-9a-f]{12}")

Drop = Callable[[int, str], None]


def staged_name(layer: str) -> str:
    """A new name beside the layer called ``layer``."""
    return f".{layer}.staged-{secrets.token_hex(6)}"


def is_leftover(name: str, layer: str) -> bool:
    """Whether :func:`staged_name` gave ``name`` for this layer."""
    prefix = f".{layer}.staged-"
    return name.startswith(prefix) and _TOKEN.fullmatch(name[len(prefix) :]) is not None


class StagedSubvolume:
    """Implements :class:`planarian_core.interfaces.StagedFiles`.

    ``changed`` and ``changed_count`` are found out when somebody asks: before the switch, of the layer as it is then;
    afterwards, of the layer that was, which is kept for that until :meth:`discard`, or until the next operation on the
    layer. Of a restore of very many changes the count is a least one.
    """

    def __init__(self, base: Path, layer: str, staged: str, artefact: str, drop: Drop) -> None:
        """``base``: the directory of all layers; ``artefact``: the snapshot's path in it."""
        self._base = base
        self._layer = layer
        self._beside = staged
        self._artefact = artefact
        self._drop = drop
        self._switched = False
        self._found: tuple[tuple[str, ...], int] | None = None

    @property
    def changed(self) -> tuple[str, ...]:
        return self._changes()[0]

    @property
    def changed_count(self) -> int:
        return self._changes()[1]

    def switch(self) -> None:
        """One rename, and a commit that makes it last; what was the layer then lies where this was staged."""
        if self._switched:
            return
        with restore_errors("the files are as they were"), self._opened() as base:
            try:
                subvolumes.exchange(base, self._beside, self._layer)
            except FileNotFoundError:
                os.rename(self._beside, self._layer, src_dir_fd=base, dst_dir_fd=base)
                self._found = ((), 0)
            else:
                self._found = None
            self._switched = True
            btrfs_ioctl.commit(base)

    def discard(self) -> None:
        with restore_errors("the layer is as it was"), self._opened() as base:
            self._drop(base, self._beside)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        fd = os.open(self._base, _DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def _changes(self) -> tuple[tuple[str, ...], int]:
        if self._found is None:
            with restore_errors("the files are not affected"), self._opened() as base:
                self._found = self._after(base) if self._switched else self._ahead(base)
        return self._found

    def _ahead(self, base: int) -> tuple[tuple[str, ...], int]:
        """Of a snapshot of the layer, for only what is read-only can be compared."""
        name = staged_name(self._layer)
        try:
            with subvolumes.opened(base, self._layer) as layer:
                btrfs_ioctl.snapshot(layer, base, name, read_only=True)
        except FileNotFoundError:
            return (), 0
        try:
            return self._compare(base, name)
        finally:
            self._drop(base, name)

    def _after(self, base: int) -> tuple[tuple[str, ...], int]:
        try:
            with subvolumes.opened(base, self._beside) as before:
                btrfs_ioctl.set_read_only(before, True)
        except FileNotFoundError as error:
            raise RestoreError(
                "What the restore changed can't be told any more: the layer that was is gone.",
                code="restore-changes",
                state="the restore itself is done",
                remedy="planarian diff compares two statepoints",
            ) from error
        return self._compare(base, self._beside)

    def _compare(self, base: int, name: str) -> tuple[tuple[str, ...], int]:
        parent, _, kept = self._artefact.rpartition("/")
        folder = os.open(parent, _DIRECTORY, dir_fd=base)
        try:
            with subvolumes.opened(base, name) as before, subvolumes.opened(folder, kept) as after:
                return changes(before, after)
        finally:
            os.close(folder)
