"""Boots the guest with a disk of what it is to do, and brings back what that left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from pathlib import Path

from .commands import GuestError, run, say
from .root import make_disk

_RESULTS = "256M"
_SCRATCH = "24G"
_END = 3000
_QEMU = (
    *("/usr/bin/qemu-system-x86_64", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"),
    *("-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot", "-serial", "stdio"),
    *("-device", "virtio-rng-pci", "-kernel", "vmlinux", "-initrd", "first.gz"),
    *("-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check"),
    *("-drive", "file=root.ext4,if=virtio,format=raw,snapshot=on"),
    *("-drive", "file=payload.ext4,if=virtio,format=raw,readonly=on"),
    *("-drive", "file=results,if=virtio,format=raw,cache=unsafe"),
)
_WITH_SCRATCH = ("-drive", "file=scratch.ext4,if=virtio,format=raw,cache=unsafe,discard=unmap")


def boot(
    tools: Path, disk: Path, payload: Path, results: Path, *, limit: float, memory: int = 4096, scratch: bool = False
) -> int:
    """Run ``payload/run`` in the guest and return its exit code; what it left in ``/tmp/out`` is in ``results`` then.

    Args:
        limit: seconds after which the machine is switched off.
        memory: MB.
        scratch: whether it has a fourth disk, large and empty, which takes space of the host's as it is filled.

    Raises:
        GuestError: it didn't boot, or took too long; the end of its console is in the message.
    """
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=tools / "tmp"))
    try:
        for name in ("vmlinux", "first.gz", "root.ext4"):
            os.link(disk / name, folder / name)
        _make_payload(tools, payload, folder / "payload.ext4")
        run(["truncate", "-s", _RESULTS, str(folder / "results")])
        if scratch:
            (folder / "empty").mkdir()
            run(["truncate", "-s", _SCRATCH, str(folder / "scratch.ext4")])
            make_disk(tools, folder / "scratch.ext4", folder / "empty")
        console = _emulate(tools, folder, limit, [*(_WITH_SCRATCH if scratch else ()), "-m", str(memory)])
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir(parents=True)
        (results / "console.txt").write_text(console)
        return _fetch(folder / "results", results, console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_payload(tools: Path, payload: Path, disk: Path) -> None:
    used = int(run(["du", "-sk", "--apparent-size", str(payload)]).split()[0])
    run(["truncate", "-s", f"{used * 2 // 1024 + 64}M", str(disk)])
    make_disk(tools, disk, payload)


def _emulate(tools: Path, folder: Path, limit: float, more: list[str]) -> str:
    """Run QEMU in its chroot to the end; its console is shown as it comes, and returned."""
    inside = f"/{folder.relative_to(tools)}"
    processors = str(min(os.cpu_count() or 1, 4))
    enter = ["chroot", str(tools), "/usr/bin/env", f"--chdir={inside}", f"TMPDIR={inside}"]
    machine = subprocess.Popen(
        [*enter, *_QEMU, "-smp", processors, *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    late = threading.Event()

    def switch_off() -> None:
        late.set()
        os.killpg(machine.pid, signal.SIGKILL)

    alarm = threading.Timer(limit, switch_off)
    alarm.start()
    said: list[str] = []
    try:
        assert machine.stdout is not None
        while piece := os.read(machine.stdout.fileno(), 65536):  # not by lines: pytest's dots are on one for minutes
            said.append(piece.decode(errors="replace").replace("\r", ""))
            print(said[-1], end="", flush=True)
        code = machine.wait()
    finally:
        alarm.cancel()
        if machine.poll() is None:
            os.killpg(machine.pid, signal.SIGKILL)
            machine.wait()
    console = "".join(said)
    if late.is_set():
        raise GuestError(f"the guest was switched off after {limit:.0f} s; it said last:\n{console[-_END:]}")
    if code != 0:
        raise GuestError(f"QEMU ended with {code}:\n{console[-_END:]}")
    return console


def _fetch(disk: Path, results: Path, console: str) -> int:
    try:
        with tarfile.open(disk, "r:") as archive:
            archive.extractall(results, filter="data")
        code = int((results / "exit-code").read_text())
    except (tarfile.TarError, OSError, ValueError) as error:
        raise GuestError(f"the guest left no results ({error}); its console ends with:\n{console[-_END:]}") from error
    say(f"exit code {code}; results in {results}")
    return code
