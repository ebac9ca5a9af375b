"""Whether the kernel tells which pages were written since it was asked last: what increments of memory need."""

from __future__ import annotations

import ctypes
import mmap
import struct
from pathlib import Path

_PAGE = mmap.PAGESIZE
_MARK = 1 << 55


def marks() -> tuple[bool, bool]:
    """Of two pages of our own, the second written after the marks were cleared: whether they are marked then.

    Raises:
        OSError: this system has no marks, or lets nobody clear them.
    """
    with mmap.mmap(-1, 2 * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[0] = memory[_PAGE] = 1
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        Path("/proc/self/clear_refs").write_text("4")
        memory[_PAGE] = 2
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            pagemap.seek(address // _PAGE * 8)
            first, second = struct.unpack("<QQ", pagemap.read(16))
    return bool(first & _MARK), bool(second & _MARK)


def why_no_soft_dirty() -> str:
    """Why there is none; empty where it is."""
    try:
        return "" if marks() == (False, True) else "the kernel has no CONFIG_MEM_SOFT_DIRTY"
    except OSError as failure:
        return f"no soft-dirty tracking: {failure}"
