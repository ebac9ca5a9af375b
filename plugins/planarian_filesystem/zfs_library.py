"""The calls of libzfs_core that the ``zfs`` backend makes: names are text, failures are OSErrors with a number.

The library's Python package, pyzfs, comes with the system and is built for the system's Python. Where ours is another
one, it needs ``cffi`` of its own (the extra ``zfs``).
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planarian_core.errors import BackendUnavailable

INSTALL = "apt-get install zfsutils-linux zfs-dkms python3-pyzfs (Debian's section contrib), then modprobe zfs"
EXTRA = "pip install 'planarian[zfs]' into this Python, or run Planarian with the system's python3"

_SYSTEM = Path("/usr/lib/python3/dist-packages")
_TAG = "planarian"
_lock = threading.Lock()
_library: Any = None


def library() -> Any:
    """The module ``libzfs_core``; BackendUnavailable says what is missing."""
    global _library
    with _lock:
        if _library is None:
            _library = _load()
        return _library


def _load() -> Any:
    if not Path("/dev/zfs").exists():
        raise BackendUnavailable("ZFS isn't loaded: there is no /dev/zfs", remedy=INSTALL)
    try:
        return importlib.import_module("libzfs_core")
    except ImportError:
        pass
    if not (_SYSTEM / "libzfs_core").is_dir():
        raise BackendUnavailable("pyzfs, the Python package of libzfs_core, was not found", remedy=INSTALL)
    # The system's packages come last, and only for this: what our environment has is never replaced by them.
    sys.path.append(str(_SYSTEM))
    try:
        return importlib.import_module("libzfs_core")
    except (ImportError, OSError) as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise BackendUnavailable(f"pyzfs can't be loaded by Python {version}: {error}", remedy=EXTRA) from error
    finally:
        sys.path.remove(str(_SYSTEM))


@contextlib.contextmanager
def _numbered(name: str) -> Iterator[Any]:
    """The library; its errors come out as OSErrors."""
    found = library()
    try:
        yield found
    except found.exceptions.ZFSError as error:
        number = error.errno if isinstance(error.errno, int) else errno.EIO
        raise OSError(number, _message(error), name) from error


def _message(error: Any) -> str:
    inner = getattr(error, "errors", None)
    return str(inner[0] if inner else error)


def exists(name: str) -> bool:
    """Whether there is a dataset or a snapshot of this name.

    Not by ``lzc_exists``: that says no for whatever hinders it, a suspended pool among that.
    """
    try:
        with _numbered(name) as lzc:
            (lzc.lzc_get_holds if "@" in name else lzc.lzc_get_bookmarks)(name.encode())
    except FileNotFoundError:
        return False
    return True


def create(name: str, properties: dict[bytes, Any] | None = None) -> None:
    with _numbered(name) as lzc:
        lzc.lzc_create(name.encode(), "zfs", properties or {})


def clone(name: str, snapshot: str) -> None:
    with _numbered(name) as lzc:
        lzc.lzc_clone(name.encode(), snapshot.encode())


def snapshot(name: str) -> None:
    """Durable when it returns."""
    with _numbered(name) as lzc:
        lzc.lzc_snapshot([name.encode()])


def hold(name: str) -> None:
    """Nobody destroys a snapshot that is held, a ``zfs rollback -r`` included. Idempotent."""
    with contextlib.suppress(FileExistsError), _numbered(name) as lzc:
        lzc.lzc_hold({name.encode(): _TAG.encode()})


def release(name: str) -> None:
    """Idempotent."""
    with contextlib.suppress(FileNotFoundError), _numbered(name) as lzc:
        lzc.lzc_release({name.encode(): [_TAG.encode()]})


def destroy_snapshot(name: str, *, later: bool = False) -> None:
    """Remove a snapshot; ``later``: if something still needs it, once nothing does. FileExistsError: it has clones."""
    with _numbered(name) as lzc:
        lzc.lzc_destroy_snaps([name.encode()], later)


def destroy(name: str) -> None:
    """Remove a dataset that has no snapshots. FileNotFoundError: there is none; any other OSError: it stays."""
    with _numbered(name) as lzc:
        lzc.lzc_destroy(name.encode())


def promote(name: str) -> None:
    """A clone takes the snapshot that it came from, and those before it, from where they are."""
    with _numbered(name) as lzc:
        lzc.lzc_promote(name.encode())


def rollback(name: str) -> None:
    """Give up what a dataset holds since its newest snapshot; no snapshot goes. FileNotFoundError: it has none."""
    with _numbered(name) as lzc:
        lzc.lzc_rollback(name.encode())
