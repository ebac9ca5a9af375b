"""A checkpoint of a container by its own OCI runtime, which CRIU's hook (:mod:`planarian_sandbox.podman_hook`) stops at
the instant.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from planarian_core.errors import CaptureError
from planarian_core.interfaces import CheckpointFailed, Standstill
from planarian_core.model import LiveSandbox
from planarian_sandbox.podman_control import Control

_PATIENCE = 120.0
_RUNS_ON = "nothing was captured; the sandbox runs on"
_MOST_SAID = 1500
_PARENT = "parent"


@contextlib.contextmanager
def checkpoint(control: Control, live: LiveSandbox, images: Path, track: bool, parent: bool) -> Iterator[Standstill]:
    """See :data:`planarian_core.interfaces.TakeCheckpoint`."""
    standstill = Standstill()
    try:
        work = control.work()
        if track:
            control.configure(track)
    except OSError as error:
        raise CaptureError(
            f"CRIU can't be told what to do: {error}", state=_RUNS_ON, remedy="free some space"
        ) from error
    try:
        with control.fifos() as (reached, go):
            process = _begin(live, images, work, parent)
            try:
                _await(process, reached, work)
                yield standstill
                os.write(go, b"g")
                _wait(process)
            except BaseException:
                if process.poll() is None:
                    with contextlib.suppress(OSError):
                        os.write(go, b"n")
                    _wait(process)
                raise
        if process.returncode:
            raise _failure(work)
        standstill.log = _text(work / "dump.log")
        with contextlib.suppress(OSError):
            standstill.statistics = (work / "stats-dump").read_bytes()
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if track:
            with contextlib.suppress(OSError):
                control.configure(False)  # a checkpoint by hand should not take marks away


def _begin(live: LiveSandbox, images: Path, work: Path, parent: bool) -> subprocess.Popen[bytes]:
    # The control groups must be in the image: a restore in a container of another name has CRIU rename them.
    argv = [str(live.details.get("runtime", "runc")), "checkpoint", "--leave-running", "--file-locks"]
    argv += ["--tcp-established", "--ext-unix-sk", f"--image-path={images}", f"--work-path={work}"]
    argv += [f"--parent-path={_PARENT}"] if parent else []  # as seen from the image
    argv.append(str(live.details.get("container", "")))
    quiet = subprocess.DEVNULL
    try:
        with open(work / "runtime.log", "wb") as log:
            return subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=log, start_new_session=True)
    except OSError as error:
        raise CaptureError(
            f"{argv[0]} can't be run: {error}",
            state=_RUNS_ON,
            remedy=f"apt-get install {argv[0]}",
        ) from error


def _await(process: subprocess.Popen[bytes], reached: int, work: Path) -> None:
    """Until all stands still."""
    poll = select.poll()
    poll.register(reached, select.POLLIN)
    deadline = time.monotonic() + _PATIENCE
    while not poll.poll(5):
        if process.poll() is not None:
            raise _failure(work)
        if time.monotonic() > deadline:
            raise CheckpointFailed("the runtime does not finish its checkpoint", _text(work / "dump.log"))


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failure(work: Path) -> CheckpointFailed:
    said = _text(work / "runtime.log")[-_MOST_SAID:].strip()
    return CheckpointFailed("the runtime's checkpoint failed", _text(work / "dump.log"), said)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
