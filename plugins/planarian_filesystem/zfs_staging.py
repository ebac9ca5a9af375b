"""A restore that is ready beside its layer: a clone, mounted but in no place, that takes the layer's place."""

from __future__ import annotations

import contextlib
import os

from planarian_core.errors import RestoreError
from planarian_core.faults import reach
from planarian_filesystem import zfs_mount
from planarian_filesystem.btrfs_changes import MOST_PATHS, walked
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_errors import restore_errors


class StagedClone:
    """Implements :class:`planarian_core.interfaces.StagedFiles`.

    ``changed`` and ``changed_count`` are found out, by a walk through both trees, when somebody asks: before the
    switch, of the layer as it is then; afterwards, of the layer that was, which is kept for that until :meth:`discard`,
    or until the next operation on the layer.
    """

    def __init__(self, datasets: Datasets, layer: str, clone: str, statepoint: str, fd: int) -> None:
        """``clone``: the dataset beside the layer, made from the snapshot of ``statepoint`` and attached as ``fd``,
        which is this one's to close.
        """
        self._datasets = datasets
        self._layer = layer
        self._clone = clone
        self._statepoint = statepoint
        self._fd = fd
        self._before = datasets.current(layer)
        self._switched = False
        self._done = False
        self._found: tuple[tuple[str, ...], int] | None = None

    @property
    def changed(self) -> tuple[str, ...]:
        return self._changes()[0]

    @property
    def changed_count(self) -> int:
        return self._changes()[1]

    def switch(self) -> None:
        """One note, replaced in one step that lasts, then the mount; a crash between them is finished by whoever
        comes next.
        """
        if self._fd < 0:
            return
        with contextlib.ExitStack() as stack:
            with restore_errors("the files are as they were"):
                stack.enter_context(self._datasets.locked())
                self._datasets.put(self._layer, self._clone)
            self._switched = True
            self._found = None
            reach("zfs.switched")
            with restore_errors("the layer is the statepoint's, but isn't mounted yet"):
                self._datasets.show(self._layer, self._fd)
        self._close()

    def discard(self) -> None:
        if self._done:
            return
        self._close()
        other = self._before if self._switched else self._clone
        if other and other != self._datasets.current(self._layer):
            with restore_errors("the layer is as it was"):
                self._datasets.give_up(self._layer, other)
                self._datasets.sweep()
        self._done = True

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _changes(self) -> tuple[tuple[str, ...], int]:
        if self._found is None:
            self._found = self._compare() if self._before else ((), 0)
        return self._found

    def _compare(self) -> tuple[tuple[str, ...], int]:
        with restore_errors("the restore itself is not affected"), contextlib.ExitStack() as stack:
            try:
                with self._datasets.locked(shared=True):
                    holder = self._datasets.holder(self._statepoint)
                    names = (self._datasets.full(self._before), self._datasets.snapshot(holder, self._statepoint))
                    before, after = (stack.enter_context(zfs_mount.attached(name, read_only=True)) for name in names)
            except FileNotFoundError as error:
                raise RestoreError(
                    "What the restore changes can't be told: the layer that was, or the snapshot, is gone.",
                    code="restore-changes",
                    state="the restore itself is not affected",
                    remedy="planarian diff compares two statepoints",
                ) from error
            found = sorted(walked(before, after))
        return tuple(found[:MOST_PATHS]), len(found)
