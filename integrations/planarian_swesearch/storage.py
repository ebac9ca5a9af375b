"""The file that a tree is saved in: replaced in one step, used by one search at a time, checked when it is read."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from planarian_core.durable import sync_directory
from planarian_core.errors import ConfigurationError, PlanarianError
from planarian_core.model import SandboxRecord
from planarian_swesearch.tree import Tree

T = TypeVar("T")

_LARGEST = 256 * 1024 * 1024


class Saved(Protocol):
    """What a tree is to its file."""

    def to_dict(self) -> dict[str, Any]:
        """All of it, JSON-safe."""
        ...


class TreeFile:
    """``path``, and beside it a lock file. Nothing is trusted that a sandbox could have written.

    Raises:
        ConfigurationError: the path can't be used, or lies where a sandbox can write.
        PlanarianError: ``search-busy``: another search uses it.
    """

    def __init__(self, path: str | Path, sandbox: SandboxRecord) -> None:
        self.path = Path(path).absolute()
        _check_out_of_reach(self.path, sandbox)
        try:
            self._lock: int | None = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"the tree can't be kept in {self.path}: {error.strerror}",
                code="search-path",
                remedy="name a file in a directory that exists and is writable",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise PlanarianError(
                f"another search uses {self.path}",
                code="search-busy",
                state="nothing was changed",
                remedy="wait for its end, or give this one a path of its own",
            ) from error

    def load(self) -> Tree | None:
        """The saved tree; None where there is none yet. PlanarianError: see :meth:`load_as`."""
        return self.load_as(Tree.from_dict)

    def load_as(self, parse: Callable[[Any], T]) -> T | None:
        """What ``parse`` makes of the saved JSON; None where nothing is saved yet.

        Raises:
            PlanarianError: ``search-unreadable``: it is damaged, or no tree.
        """
        try:
            with self.path.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from error
        try:
            if len(data) > _LARGEST:
                raise ValueError("it is too large")
            return parse(json.loads(data))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._unreadable(f"{type(error).__name__}: {error}") from error

    def _unreadable(self, why: str) -> PlanarianError:
        return PlanarianError(
            f"{self.path} is no tree that can be gone on with: {why}",
            code="search-unreadable",
            state="nothing was changed; the states of that search are still held",
            remedy="bring the file back from a copy, or begin anew in another path",
        )

    def save(self, tree: Saved) -> None:
        """Put the tree in place of the one before, durably; a reader sees the one or the other.

        Raises:
            PlanarianError: ``search-not-saved``; the one before is still there.
        """
        new = f"{self.path}.new"
        try:
            data = json.dumps(tree.to_dict(), ensure_ascii=True, allow_nan=False).encode()
            with suppress(FileNotFoundError):
                os.unlink(new)
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise PlanarianError(
                f"the tree can't be saved in {self.path}: {error.strerror or error}",
                code="search-not-saved",
                state="the tree before the last step is still there; run() of this search goes on without a loss",
                remedy="free disk space or mend the directory, then run() again",
            ) from error

    def close(self) -> None:
        """Let another search have it. Idempotent."""
        fd, self._lock = self._lock, None
        if fd is not None:
            os.close(fd)


def _check_out_of_reach(path: Path, sandbox: SandboxRecord) -> None:
    """A sandbox writes into its layer, which may be the user's own directory."""
    places = {Path(sandbox.spec.layer).resolve(), Path(sandbox.spec.home, "sandboxes").resolve()}
    real = path.parent.resolve() / path.name
    if path.is_symlink() or any(real.is_relative_to(place) for place in places):
        raise ConfigurationError(
            f"{path} is a symlink, or lies where {sandbox.id} can write: the tree would not be safe there",
            code="search-path",
            remedy="keep the tree outside of the sandbox's workspace",
        )
