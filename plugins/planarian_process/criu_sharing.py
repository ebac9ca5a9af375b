"""Takes out of a full image what the image before has with the same content, where no kernel tells what was written.

It is captured in full and stored as an increment (:mod:`planarian_process.criu_chain`): each page is compared with the
one at the same address of the same pid before. What is equal is equal, whoever wrote it, so nothing has to be known
about the time between the two.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planarian_process.criu_pagemaps import PAGE, Chain, Pagemap, Run, mapped, pagemaps

LEAST = 16 << 20
"""Bytes of memory below which comparing costs more than it saves."""
_WORTH = 4
"""What is shared has to be at least one in so many pages."""
_STRETCH = 256
"""Pages that are compared at once."""


@dataclass(frozen=True)
class _Compared:
    pagemap: Pagemap
    runs: tuple[Run, ...]


def memory_of(image: Path) -> int:
    """Bytes of processes' memory in an image."""
    return sum(run.count * PAGE for map_ in _maps(image) for run in map_.runs if run.kept)


def share(image: Path, parent: Path) -> bool:
    """Change ``image`` in place so that it leaves to ``parent`` what that has. False where that isn't worth it.

    Raises:
        OSError, ValueError: something can't be read or written. Then, and where it is False, the image is as it was.
    """
    compared = [_compare(image, parent, map_) for map_ in _maps(image) if (parent / map_.name).is_file()]
    shared = sum(run.count for one in compared for run in one.runs if not run.kept)
    if shared * PAGE * _WORTH < memory_of(image):
        return False
    for number, one in enumerate(compared):
        try:
            _rewrite(image, one)
        except OSError:  # no room for a moment: the others are smaller already, and this one is whole
            if not number:
                raise
    return True


def _maps(image: Path) -> Iterator[Pagemap]:
    return (Pagemap.read(image / name) for name in pagemaps(os.listdir(image)))


def _compare(image: Path, parent: Path, own: Pagemap) -> _Compared:
    runs: list[Run] = []
    with mapped(image / own.pages) as content, Chain(parent, own.name) as before:
        for run in own.runs:
            if content is None or not run.kept:
                raise ValueError(f"{own.name} is no full image's")
            for piece, old in before.pieces(run):
                address = piece.address
                for kept, count in _stretches(content, run.offset + address - run.address, old, piece):
                    _add(runs, Run(address, count, kept, run.offset + address - run.address))
                    address += count * PAGE
    return _Compared(own, tuple(runs))


def _add(runs: list[Run], run: Run) -> None:
    last = runs[-1] if runs else None
    if last and (last.end, last.kept) == (run.address, run.kept):  # then their pages follow each other, too
        runs[-1] = Run(last.address, last.count + run.count, last.kept, last.offset)
    else:
        runs.append(run)


def _stretches(content: mmap.mmap, offset: int, old: mmap.mmap | None, piece: Run) -> Iterator[tuple[bool, int]]:
    """Whether pages have to be kept, and how many in a row."""
    if old is None:
        yield True, piece.count
        return
    for first in range(0, piece.count, _STRETCH):
        count = min(_STRETCH, piece.count - first)
        new, known = offset + first * PAGE, piece.offset + first * PAGE
        ours, theirs = content[new : new + count * PAGE], old[known : known + count * PAGE]
        if ours == theirs:
            yield False, count
            continue
        for place in range(0, count * PAGE, PAGE):
            yield ours[place : place + PAGE] != theirs[place : place + PAGE], 1


def _rewrite(image: Path, one: _Compared) -> None:
    """All is written before anything is replaced."""
    pages = image / one.pagemap.pages
    draft, map_draft = pages.with_suffix(".new"), (image / one.pagemap.name).with_suffix(".new")
    try:
        with mapped(pages) as content, draft.open("wb") as file:
            for run in one.runs:
                if run.kept and content is not None:
                    file.write(content[run.offset : run.offset + run.count * PAGE])
        map_draft.write_bytes(one.pagemap.with_runs(one.runs))
    except BaseException:
        for path in (draft, map_draft):
            with contextlib.suppress(OSError):
                path.unlink()
        raise
    os.replace(draft, pages)
    os.replace(map_draft, image / one.pagemap.name)
