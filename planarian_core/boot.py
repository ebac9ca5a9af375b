"""Which run of the host's system this is."""

from __future__ import annotations

from functools import cache


@cache
def boot_id() -> str:
    """The identifier of this boot of the host."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:  # not Linux
        import psutil

        return str(int(psutil.boot_time()))
