"""Whether datasets can be made, captured and removed here, found out by doing it."""

from __future__ import annotations

import contextlib

from planarian_filesystem import zfs_library, zfs_mount
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_notes import BESIDE

_TRIAL = ":trial"
"""Beside this layer the dataset is noted; no layer can be called so."""


def try_all(datasets: Datasets) -> None:
    """Make a dataset, look into a snapshot of it and remove both, as every sandbox needs it."""
    with datasets.locked():
        clear_trials(datasets)
        trial = datasets.begin(_TRIAL)
        try:
            zfs_library.create(datasets.full(trial))
            zfs_library.snapshot(datasets.snapshot(trial, "trial"))
            with zfs_mount.attached(datasets.snapshot(trial, "trial"), read_only=True):
                pass
        finally:
            clear_trials(datasets)


def clear_trials(datasets: Datasets) -> None:
    """Remove what a trial made; one that was killed may have left it."""
    for note in datasets.notes.names(BESIDE):
        layer, _, dataset = note.rpartition(":")
        if layer == _TRIAL:
            with contextlib.suppress(FileNotFoundError):
                zfs_library.destroy_snapshot(datasets.snapshot(dataset, "trial"))
            datasets.give_up(layer, dataset)
