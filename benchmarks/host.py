"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil

import planarian_core


def describe(folder: Path) -> dict[str, str]:
    """The machine and the versions that matter, as words."""
    return {
        "planarian": planarian_core.__version__,
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "cpus": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "files on": _filesystem(folder),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "criu": _criu(),
        "load before": f"{os.getloadavg()[0]:.2f}",
        **({"scheduling": "real-time"} if _realtime() else {}),
    }


def _realtime() -> bool:
    """Whether what else runs gets out of our way (``chrt -r 1``)."""
    return hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO)


def _filesystem(folder: Path) -> str:
    mounts = [m for m in psutil.disk_partitions(all=True) if folder.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else "unknown"


def _criu() -> str:
    found = shutil.which("criu")
    if found is None:
        return "not installed"
    done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.splitlines()[0].removeprefix("Version: ") if done.stdout else "unknown"
