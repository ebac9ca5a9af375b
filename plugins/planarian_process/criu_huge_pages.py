"""Starts programs whose memory, and that of all that they start, is never put into transparent huge pages.

Into a huge page the kernel puts pages that a process never wrote, between those that it did. In a tree restored that
way they look as if they had been in its image, and no increment can be built on that. And in a huge page one byte that
is written marks all of it, 2 MB.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

_PR_SET_THP_DISABLE, _PR_GET_THP_DISABLE = 41, 42
_libc = ctypes.CDLL(None, use_errno=True)
_guard = threading.Lock()
_inside = 0
_before = 0


@contextlib.contextmanager
def without_huge_pages() -> Iterator[None]:
    """What is started inside inherits that it has none. Meanwhile this program gets no new ones either: the setting
    belongs to a process's memory. Safe in several threads at once.
    """
    global _inside, _before
    with _guard:
        if not _inside:
            _before = _prctl(_PR_GET_THP_DISABLE, 0)
            _prctl(_PR_SET_THP_DISABLE, 1)  # EINVAL where the kernel has none: so much the better
        _inside += 1
    try:
        yield
    finally:
        with _guard:
            _inside -= 1
            if not _inside:
                _prctl(_PR_SET_THP_DISABLE, max(_before, 0))


def _prctl(option: int, value: int) -> int:
    result: int = _libc.prctl(option, *(ctypes.c_ulong(each) for each in (value, 0, 0, 0)))
    return result
