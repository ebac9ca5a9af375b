"""The image files of one statepoint: a manifest with sizes and hashes, made durable, checked in a restore."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from planarian_core.errors import RestoreError
from planarian_process.criu_inventory import INVENTORY
from planarian_process.criu_namespaces import write_out

MANIFEST = "planarian-manifest.json"
PARENT = "parent"
"""The directory in an image's own that has what the image is built on (:mod:`planarian_process.criu_chain`)."""
_PIECE = 1 << 18
_NOT_STATE = frozenset({MANIFEST, PARENT, "stats-dump", "stats-restore"})
_DAMAGED = "bring back its files alone (planarian rollback --files-only), or another statepoint (planarian log)"


@dataclass(frozen=True)
class Manifest:
    """Sizes and hashes of an image's files, by name from its directory; ``digest`` is that of the manifest itself."""

    files: dict[str, tuple[int, str]]
    digest: str
    length: int

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())

    @property
    def added(self) -> int:
        """Bytes that no image before has, this list included."""
        own = (size for name, (size, _) in self.files.items() if "/" not in name or name == f"{PARENT}/{INVENTORY}")
        return sum(own) + self.length


def _names(images: Path) -> Iterator[str]:
    with os.scandir(images) as entries:
        yield from (entry.name for entry in entries if entry.name not in _NOT_STATE)


def digest_of(path: Path) -> tuple[int, str]:
    """Size and hash of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def _move(source: Path, target: Path) -> tuple[int, str]:
    """Copy a file, its copy already on its way to the disk; size and hash of what was read."""
    digest, size, piece = hashlib.sha256(), 0, memoryview(bytearray(_PIECE))
    with source.open("rb", buffering=0) as file, target.open("xb", buffering=0) as copy:
        while count := file.readinto(piece):
            digest.update(piece[:count])
            size += copy.write(piece[:count])
        write_out(copy.fileno())
    return size, digest.hexdigest()


def seal(written: Path, images: Path, inherited: Mapping[str, tuple[int, str]] = MappingProxyType({})) -> Manifest:
    """Bring the files of a finished image to ``images``, unless they were written there; hash them, write the manifest
    and make all of it durable.

    Args:
        inherited: what is in ``images`` already because the image is built on it.

    Raises:
        OSError: the disk is full, or lost data.
    """
    there = written.samefile(images)
    names = sorted(_names(written), key=lambda name: os.lstat(written / name).st_size, reverse=True)

    def bring(name: str) -> tuple[int, str]:
        return digest_of(images / name) if there else _move(written / name, images / name)

    with ThreadPoolExecutor(max_workers=2) as pool:
        files = {**dict(zip(names, pool.map(bring, names), strict=True)), **inherited}
    content = json.dumps(files, separators=(",", ":")).encode()
    (images / MANIFEST).write_bytes(content)
    linked = sorted({os.path.dirname(name) for name in inherited})
    for name in (*names, *(name for name in inherited if name == f"{PARENT}/{INVENTORY}"), *linked, MANIFEST, "."):
        _sync(images / name)
    return Manifest(files, hashlib.sha256(content).hexdigest(), len(content))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check(images: Path, digest: str) -> Manifest:
    """Read the manifest and compare names and sizes: cheap.

    Raises:
        RestoreError: a file is missing or has another size, or the manifest is not the one that was written.
    """
    try:
        content = (images / MANIFEST).read_bytes()
    except OSError as failure:
        raise RestoreError(f"the process image {images} can't be read: {failure}", remedy=_DAMAGED) from failure
    if hashlib.sha256(content).hexdigest() != digest:
        raise RestoreError(f"the list of image files {images / MANIFEST} is damaged", remedy=_DAMAGED)
    files = {name: (int(size), str(value)) for name, (size, value) in json.loads(content).items()}
    for name in files:
        *above, last = name.split("/")
        if set(above) - {PARENT} or last in ("", ".", ".."):
            raise RestoreError(f"the list of image files {images / MANIFEST} is damaged", remedy=_DAMAGED)
    for name, (size, _) in files.items():
        try:
            found = os.lstat(images / name).st_size
        except OSError as failure:
            raise RestoreError(f"the image file {images / name} is missing", remedy=_DAMAGED) from failure
        if found != size:
            raise RestoreError(f"the image file {images / name} has {found} bytes, not {size}", remedy=_DAMAGED)
    return Manifest(files, digest, len(content))


class Verification:
    """Compares an image's content with its hashes: what CRIU acts on before it sees any of it, the pages of memory,
    which are most of it and which CRIU only fills in, in a thread while it works.
    """

    def __init__(self, images: Path, digest: str) -> None:
        """RestoreError as for :func:`check`."""
        self._images = images
        self._files = check(images, digest).files
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._pages: list[Future[None]] = []

    def __enter__(self) -> Verification:
        return self

    def __exit__(self, *unused: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self) -> None:
        """Compare all but the pages, and go on with those; RestoreError names a damaged file."""
        for name in self._files:
            if _is_pages(name):
                self._pages.append(self._pool.submit(self._compare, name))
            else:
                self._compare(name)

    def finish(self) -> None:
        """Wait for the pages, before anything runs that they are the memory of; RestoreError as above."""
        for compared in self._pages:
            compared.result()

    def _compare(self, name: str) -> None:
        path = self._images / name
        try:
            reason = "" if digest_of(path)[1] == self._files[name][1] else "its content has changed"
        except OSError as failure:
            reason = str(failure)
        if reason:
            raise RestoreError(f"the image file {path} is damaged: {reason}", remedy=_DAMAGED)


def _is_pages(name: str) -> bool:
    return os.path.basename(name).startswith("pages-")


def exclusive(images: Path) -> int:
    """Bytes of the files in ``images`` that have no name elsewhere."""
    found = (path.lstat() for path in images.rglob("*"))
    return sum(one.st_size for one in found if stat.S_ISREG(one.st_mode) and one.st_nlink == 1)


def clear(images: Path) -> None:
    """Remove what a failed or discarded capture left in ``images``. The directory stays. Idempotent."""
    try:
        entries = list(os.scandir(images))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
