"""The content-addressed store: blobs named by their SHA-256, and the roots that keep them.

``objects/ab/cdef…`` holds blobs; one that has its name is whole and durable: it is written under ``pending/``, synced,
and only then renamed. ``roots/ID`` names the root object of a statepoint. Whoever adds to the store holds ``lock``
shared, :mod:`planarian_filesystem.collect` holds it alone, so that nothing is swept that is about to be referred to.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from planarian_filesystem import host
from planarian_filesystem.tree import CHUNK, Entry, decode_root, tree_lines

CLONE_FROM = 128 * 1024
"""Shortest content that is worth a reflink, in bytes."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Damaged(Exception):
    """A blob is missing or isn't what its name says."""

    def __init__(self, digest: str, what: str) -> None:
        super().__init__(f"{digest} {what}")
        self.digest = digest
        self.what = what


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


class Store:
    """The store in ``directory`` (made on first use, 0700: it holds what the sandboxes wrote)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.objects = directory / "objects"
        self.pending = directory / "pending"
        self.roots = directory / "roots"
        self.indexes = directory / "index"
        self.damaged = directory / "damaged"

    def make(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in (self.objects, self.pending, self.roots, self.indexes):
            part.mkdir(mode=0o700, exist_ok=True)

    def path(self, digest: str) -> str:
        if not _DIGEST.fullmatch(digest):
            raise Damaged(digest, "is not a digest")
        return f"{self.objects}/{digest[:2]}/{digest[2:]}"

    def size(self, digest: str) -> int | None:
        """Size of a blob in bytes, None when it is missing."""
        try:
            return os.stat(self.path(digest)).st_size
        except FileNotFoundError:
            return None

    def read(self, digest: str) -> bytes:
        """The content of a blob (at most a few MiB: trees, maps, chunks), checked against its digest."""
        try:
            with open(self.path(digest), "rb", buffering=0) as blob:
                data = blob.read()
        except FileNotFoundError as error:
            raise Damaged(digest, "is missing from the store") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise Damaged(digest, "is damaged: its content doesn't match its name")
        return data

    def lines(self, digest: str) -> list[bytes]:
        """The lines of a stored tree."""
        try:
            return tree_lines(self.read(digest))
        except ValueError as error:
            raise Damaged(digest, "is damaged: it is no tree object") from error

    def top(self, reference: str) -> Entry:
        """The entry of a layer's root."""
        try:
            return decode_root(self.read(reference))
        except ValueError as error:
            raise Damaged(reference, "is damaged: it is no root object of this version") from error

    @contextlib.contextmanager
    def locked(self, alone: bool = False) -> Iterator[None]:
        """Hold the store's lock, shared or ``alone``, across processes and threads."""
        path = self.directory / "lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            if alone:
                raise
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a read-only store can still be read
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def sync(self) -> None:
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            host.sync_filesystem(fd)
        finally:
            os.close(fd)

    # --- roots

    def add_root(self, name: str, digest: str) -> None:
        """Keep everything below ``digest``. Durable once the caller has synced."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a name for a root: {name!r}")
        draft = self.pending / f"root-{secrets.token_hex(8)}"
        write_new(draft, digest.encode("ascii"))
        os.replace(draft, self.roots / name)

    def drop_root(self, name: str) -> None:
        if _NAME.fullmatch(name):
            (self.roots / name).unlink(missing_ok=True)

    # --- trust

    def epoch(self) -> str:
        """Changes whenever the store was found to lack something: indexes of another epoch are not believed."""
        try:
            return (self.directory / "epoch").read_text()
        except FileNotFoundError:
            return ""

    def distrust(self, found: Damaged) -> None:
        """Put a damaged blob aside, so that the next capture stores it anew, and begin a new epoch."""
        with contextlib.suppress(OSError):
            (self.directory / "epoch").write_text(secrets.token_hex(8))
            if "damaged" in found.what and _DIGEST.fullmatch(found.digest):
                self.damaged.mkdir(mode=0o700, exist_ok=True)
                os.replace(self.path(found.digest), self.damaged / found.digest)


def copy_blob(store: Store, digest: str, length: int, target: int, offset: int) -> None:
    """Write a blob into an open file at ``offset``, checking it on the way; Damaged when it isn't what it should be."""
    try:
        source = os.open(store.path(digest), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Damaged(digest, "is missing from the store") from error
    try:
        cloned = length >= CLONE_FROM and host.clone_range(source, 0, length, target, offset)
        check = hashlib.sha256()
        done = 0
        while data := (
            os.pread(target, min(CHUNK, length - done), offset + done) if cloned else os.read(source, CHUNK)
        ):
            check.update(data)
            if not cloned:
                _pwrite_all(target, data, offset + done)
            done += len(data)
    finally:
        os.close(source)
    if done != length or check.hexdigest() != digest:
        raise Damaged(digest, "is damaged: its content doesn't match its name")


def _pwrite_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def write_new(path: str | Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _pwrite_all(fd, data, 0)
    finally:
        os.close(fd)
