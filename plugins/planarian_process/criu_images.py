"""The image files of one statepoint: a manifest with sizes and hashes, made durable, checked before a restore."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from planarian_core.errors import RestoreError
from planarian_process.criu_namespaces import syncfs

MANIFEST = "planarian-manifest.json"
_NOT_STATE = frozenset({MANIFEST, "stats-dump", "stats-restore"})
_DAMAGED = "bring back its files alone (planarian rollback --files-only), or another statepoint (planarian log)"


@dataclass(frozen=True)
class Manifest:
    """Sizes and hashes of the files of an image. ``digest`` is the hash of the manifest file itself."""

    files: dict[str, tuple[int, str]]
    digest: str

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())


def _names(images: Path) -> Iterator[str]:
    with os.scandir(images) as entries:
        yield from sorted(entry.name for entry in entries if entry.name not in _NOT_STATE)


def _hash(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def seal(images: Path) -> Manifest:
    """Hash the files of a finished image, write the manifest and make all of it durable.

    Raises:
        OSError: the disk is full, or lost data.
    """
    descriptor = os.open(images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = list(_names(images))
        with ThreadPoolExecutor(max_workers=2) as pool:
            early = pool.submit(syncfs, descriptor)
            files = {name: _hash(images / name) for name in names}
            early.result()
        content = json.dumps(files, separators=(",", ":")).encode()
        with (images / MANIFEST).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Manifest(files, hashlib.sha256(content).hexdigest())


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
    for name, (size, _) in files.items():
        try:
            found = os.lstat(images / name).st_size
        except OSError as failure:
            raise RestoreError(f"the image file {images / name} is missing", remedy=_DAMAGED) from failure
        if found != size:
            raise RestoreError(f"the image file {images / name} has {found} bytes, not {size}", remedy=_DAMAGED)
    return Manifest(files, digest)


def check_content(images: Path, digest: str) -> Manifest:
    """:func:`check`, and the content of every file against its hash.

    Raises:
        RestoreError: names the damaged file.
    """
    manifest = check(images, digest)

    def damaged(name: str) -> str:
        try:
            return "" if _hash(images / name)[1] == manifest.files[name][1] else "its content has changed"
        except OSError as failure:
            return str(failure)

    with ThreadPoolExecutor(max_workers=2) as pool:
        for name, reason in zip(manifest.files, pool.map(damaged, manifest.files), strict=True):
            if reason:
                raise RestoreError(f"the image file {images / name} is damaged: {reason}", remedy=_DAMAGED)
    return manifest


def clear(images: Path) -> None:
    """Remove what a failed or discarded capture left in ``images``. The directory stays. Idempotent."""
    try:
        entries = list(os.scandir(images))
    except FileNotFoundError:
        return
    for entry in entries:
        os.unlink(entry.path)
