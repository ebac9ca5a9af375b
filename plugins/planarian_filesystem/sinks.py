"""Where a scan puts what it finds: into the store (:class:`Deposit`) or nowhere (:class:`Comparison`)."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Protocol

from planarian_filesystem import host
from planarian_filesystem.store import CLONE_FROM, Store, write_new

_PREFIX = "deposit-"
_FLUSH_BLOBS = 8192
_FLUSH_BYTES = 512 * 1024 * 1024


class Sink(Protocol):
    """Where a scan puts what it finds."""

    def put(self, data: bytes) -> str:
        """Take content; returns its digest."""

    def put_tree(self, data: bytes) -> str:
        """Take a tree object; :meth:`read_tree` must know it from now on."""

    def put_range(self, fd: int, offset: int, length: int) -> str | None:
        """Take content by sharing extents with an open file; None where that can't be done."""

    def read_tree(self, digest: str) -> bytes: ...


class Deposit:
    """What one capture adds; a context that holds the store's lock. What was not published is dropped at its end, or,
    when the process was killed, by the next.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.stored = 0
        self._waiting: dict[str, int] = {}
        self._bytes = 0
        self._clones = True
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Deposit:
        self.store.make()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.store.locked())
            _sweep(self.store.pending)
            self._directory, held = _make_private(self.store.pending)
            stack.callback(os.close, held)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._stack.close()

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if not self._has(digest, len(data)):
            write_new(f"{self._directory}/{digest}", data)
            self._note(digest, len(data))
        return digest

    put_tree = put

    def put_range(self, fd: int, offset: int, length: int) -> str | None:
        """Clone first and hash the clone: a writer can't change what was hashed."""
        if not self._clones or length < CLONE_FROM:
            return None
        draft = f"{self._directory}/clone"
        target = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if not host.clone_range(fd, offset, length, target, 0):
                self._clones = False
                return None
            data = os.pread(target, length + 1, 0)
        finally:
            os.close(target)
        digest = hashlib.sha256(data).hexdigest()
        if len(data) == length and not self._has(digest, length):
            os.rename(draft, f"{self._directory}/{digest}")
            self._note(digest, length)
        return digest if len(data) == length else None

    def read_tree(self, digest: str) -> bytes:
        if digest in self._waiting:
            with open(f"{self._directory}/{digest}", "rb", buffering=0) as blob:
                return blob.read()
        return self.store.read(digest)

    def publish(self) -> None:
        """Give all that was put its name, durably. Only after this may anything refer to it."""
        if not self._waiting:
            return
        if not host.syncs_whole_filesystem():
            for digest in self._waiting:
                _fsync(f"{self._directory}/{digest}")
        self.store.sync()
        for digest in self._waiting:
            path = self.store.path(digest)
            try:
                os.rename(f"{self._directory}/{digest}", path)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                os.rename(f"{self._directory}/{digest}", path)
        if not host.syncs_whole_filesystem():
            for parent in {os.path.dirname(self.store.path(digest)) for digest in self._waiting}:
                _fsync(parent)
        self._waiting.clear()
        self._bytes = 0

    def _has(self, digest: str, size: int) -> bool:
        return digest in self._waiting or self.store.size(digest) == size

    def _note(self, digest: str, size: int) -> None:
        self._waiting[digest] = size
        self.stored += size
        self._bytes += size
        if len(self._waiting) >= _FLUSH_BLOBS or self._bytes >= _FLUSH_BYTES:
            self.publish()


class Comparison:
    """A sink that stores nothing: it tells what a tree is, and remembers the trees that the store doesn't have."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.trees: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    def put_tree(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if self.store.size(digest) != len(data):
            self.trees[digest] = data
        return digest

    def put_range(self, fd: int, offset: int, length: int) -> str | None:
        return None

    def read_tree(self, digest: str) -> bytes:
        return self.trees.get(digest) or self.store.read(digest)


def _make_private(pending: Path) -> tuple[Path, int]:
    """A new deposit directory, and the lock on it: its owner is alive as long as somebody holds that."""
    while True:
        path = pending / f"{_PREFIX}{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        held = _lock(path, fcntl.LOCK_SH)
        if held is not None:
            return path, held
        # it had no lock yet, and another capture has taken it for a dead process's


def _sweep(pending: Path) -> None:
    """Remove the deposits of dead processes: those that nobody has locked. What can't be told or removed stays."""
    for name in os.listdir(pending):
        if name.startswith(_PREFIX):
            with contextlib.suppress(OSError):
                held = _lock(pending / name, fcntl.LOCK_EX)
                if held is not None:
                    shutil.rmtree(pending / name, ignore_errors=True)
                    os.close(held)


def _lock(path: Path, mode: int) -> int | None:
    """Lock a deposit directory; None when it is locked otherwise, or gone."""
    with contextlib.ExitStack() as stack:
        try:
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, held)
            fcntl.flock(held, mode | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(held), os.stat(path)):
                return None
        except (BlockingIOError, FileNotFoundError):
            return None
        stack.pop_all()
        return held


def _fsync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
