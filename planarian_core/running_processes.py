"""What runs in a sandbox at this moment, as statepoints list it. All that is read was written by the sandbox."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from planarian_core.model import ProcessInfo, SandboxRecord
from planarian_core.plugin_manager import PluginManager

_LARGEST = 1024 * 1024


def running_processes(plugins: PluginManager, record: SandboxRecord) -> tuple[ProcessInfo, ...]:
    """The living processes of a running sandbox, without its init; none where it doesn't run."""
    backend = plugins.sandbox(record.spec.backend)
    if record.live is None or not backend.alive(record.spec, record.live):
        return ()
    read = _of_proc if sys.platform == "linux" else _of_psutil
    found = [process for pid in backend.tasks(record.spec, record.live) if (process := read(pid)) is not None]
    hidden = {1} if backend.capabilities.process_tree else set()
    return tuple(process for process in found if process.pid not in hidden)


def _of_proc(pid: int) -> ProcessInfo | None:
    with suppress(OSError, ValueError):
        status = _read(f"/proc/{pid}/status").decode("utf-8", "replace")
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        argv = _read(f"/proc/{pid}/cmdline")
        state = lines.get("State", "?")[0]
        if state not in "ZX":
            inside = int(lines.get("NSpid", str(pid)).split()[-1])
            words = argv.removesuffix(b"\0").split(b"\0") if argv else []
            return ProcessInfo(inside, tuple(map(os.fsdecode, words)), "", state)
    return None


def _of_psutil(pid: int) -> ProcessInfo | None:
    import psutil

    with suppress(psutil.Error):
        return ProcessInfo(pid, tuple(psutil.Process(pid).cmdline()))
    return None


def _read(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(_LARGEST)
