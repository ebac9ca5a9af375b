"""The ``podman`` process backend: a container's memory, by its own OCI runtime's checkpoint and Podman's restore.

The container stays one of Podman's: what comes back is restored by ``podman container restore``, in a container that
was made anew. CRIU is reached through a hook of its own (:mod:`planarian_sandbox.podman_hook`), so that the instant is
that of the ``criu`` backend.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planarian_core.control_groups import refuse_frozen
from planarian_core.durable import sync_directory
from planarian_core.errors import BackendUnavailable, CaptureError, PlanarianError, RestoreError
from planarian_core.interfaces import (
    Availability,
    Instant,
    ProcessCapabilities,
    RestoreEnvironment,
    RunningSandbox,
    SandboxCapabilities,
)
from planarian_core.model import Artefact, Domain, ProcessInfo, SandboxSpec
from planarian_sandbox.podman_control import Control
from planarian_sandbox.podman_engine import Engine, finished

_PATIENCE = 120.0
_RUNS_ON = "nothing was captured; the sandbox runs on"
_LARGEST = 1024 * 1024


@dataclass(frozen=True)
class ContainerEnvironment(RestoreEnvironment):
    """Where an image comes back as a container: ``revive`` makes one of it, given the images, the inside pids that must
    not run again, and whether it is to stand still; it gives the host pid of its init.
    """

    revive: Callable[[Path, Sequence[int], bool], int] = lambda *_: 0


class PodmanMemory:
    """See the module.

    Args:
        home: the home of Planarian.
        runtime: the OCI runtime; empty for the one that fits the host.
    """

    name = "podman"
    capabilities = ProcessCapabilities(memory=True, restarts=False)

    def __init__(self, home: Path, runtime: str = "") -> None:
        self._home = home
        self._runtime = runtime

    def probe(self) -> Availability:
        """Whether podman, a runtime and a CRIU that works are there."""
        if os.geteuid() != 0:
            return Availability(False, "podman: only root can take checkpoints", "run as root")
        if not (criu := shutil.which("criu")):
            return Availability(False, "podman: criu is not installed", "apt-get install criu")
        try:
            engine = Engine.find(self._runtime)
            finished([criu, "check"], 20.0)
        except PlanarianError as error:
            return Availability(False, f"podman: {error.message}", error.remedy)
        return Availability(True, f"podman: checkpoints by {engine.runtime}")

    def serves(self, spec: SandboxSpec, sandbox: SandboxCapabilities) -> Availability:
        """Only containers of Podman's."""
        if sandbox.managed != "podman":
            return Availability(
                False, f"a {spec.backend} sandbox is no container of podman", "use criu, or the sandbox backend podman"
            )
        return Availability(True)

    @contextlib.contextmanager
    def instant(self, sandbox: RunningSandbox, images: Path) -> Iterator[Instant]:
        """Stop everything, lend the moment to the caller, let everything go on.

        Raises:
            CaptureError: the cause, from CRIU's log. ``images`` is empty again; the sandbox runs on.
        """
        refuse_frozen(sandbox.live.cgroups)
        control = Control.of_live(self._home, sandbox.spec, sandbox.live)
        before = {pid: _info(pid) for pid in sandbox.tasks()}
        work = control.work()
        instant = Instant()
        os.chmod(images, 0o700)
        started = time.perf_counter()
        with control.fifos() as (reached, go):
            process = self._checkpoint(sandbox, images, work)
            try:
                _await(process, reached, work)
                stopped = [_info(pid, before.get(pid)) for pid in sandbox.tasks()]
                yield instant
                os.write(go, b"g")
                _wait(process)
                instant.frozen = time.perf_counter() - started
                if process.returncode:
                    raise _failure(work, "dump.log")
                manifest = _seal(images)
            except BaseException as error:
                if process.poll() is None:
                    with contextlib.suppress(OSError):
                        os.write(go, b"n")
                    _wait(process)
                self.discard(images)
                if isinstance(error, OSError) and not isinstance(error, PlanarianError) and process.returncode == 0:
                    message = f"the process image could not be made durable: {error}"
                    raise CaptureError(message, state=_RUNS_ON, remedy="free some space") from error
                raise
            finally:
                shutil.rmtree(work, ignore_errors=True)
        size = sum(int(file["size"]) for file in manifest.values())
        instant.process_list = tuple(info for info in stopped if info is not None)
        details = {"files": manifest, "kernel": os.uname().release}
        instant.artefact = Artefact(Domain.PROCESSES, self.name, images.name, size, size, details)

    def _checkpoint(self, sandbox: RunningSandbox, images: Path, work: Path) -> subprocess.Popen[bytes]:
        details = sandbox.live.details
        # The control groups must be in the image: a restore in a container of another name has CRIU rename them.
        argv = [str(details.get("runtime", "runc")), "checkpoint", "--leave-running", "--file-locks"]
        argv += ["--tcp-established", "--ext-unix-sk", f"--image-path={images}", f"--work-path={work}"]
        argv.append(str(details.get("container", "")))
        quiet = subprocess.DEVNULL
        try:
            with open(work / "runtime.log", "wb") as log:
                return subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=log, start_new_session=True)
        except OSError as error:
            raise CaptureError(
                f"{argv[0]} can't be run: {error}", state=_RUNS_ON, remedy=f"apt-get install {argv[0]}"
            ) from error

    def verify(self, artefact: Artefact, images: Path) -> None:
        """Check names and sizes of the image's files; RestoreError names what is missing."""
        for name, wanted in _files(artefact).items():
            try:
                size = os.lstat(images / name).st_size
            except OSError as error:
                raise _damaged(name, f"is missing: {error.strerror}") from error
            if size != wanted["size"]:
                raise _damaged(name, "has another size")

    def discard(self, images: Path) -> None:
        """Remove the image's files, finished or not. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            for path in list(images.iterdir()):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def restore(
        self,
        artefact: Artefact,
        images: Path,
        environment: RestoreEnvironment,
        kill: Sequence[int] = (),
        *,
        frozen: bool = False,
    ) -> int:
        """Bring the container back, after its image was checked against its hashes; the host pid of its init.

        Raises:
            RestoreError: the image is damaged, or CRIU failed. Nothing is left running.
            BackendUnavailable: ``frozen`` where there is no control group that can freeze it.
        """
        if frozen and not environment.freezer:
            raise BackendUnavailable(
                "the sandbox has no control group of version 2, which is what holds a restored container still",
                state="nothing was restored",
            )
        if not isinstance(environment, ContainerEnvironment):
            raise RestoreError("only a podman sandbox can take this image", remedy="restore it into one")
        self.verify(artefact, images)
        for name, wanted in _files(artefact).items():
            if _digest(images / name) != wanted["sha256"]:
                raise _damaged(name, "has been changed")
        return environment.revive(images, kill, frozen)


def _await(process: subprocess.Popen[bytes], reached: int, work: Path) -> None:
    """Until all stands still."""
    poll = select.poll()
    poll.register(reached, select.POLLIN)
    deadline = time.monotonic() + _PATIENCE
    while not poll.poll(5):
        if process.poll() is not None:
            raise _failure(work, "dump.log")
        if time.monotonic() > deadline:
            raise CaptureError("the runtime does not finish its checkpoint", state=_RUNS_ON, remedy="try again")


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failure(work: Path, log: str) -> CaptureError:
    lines: list[str] = []
    for name, wanted in ((log, "Error"), ("runtime.log", "")):
        with contextlib.suppress(OSError):
            text = (work / name).read_text(encoding="utf-8", errors="replace")
            lines += [line.strip() for line in text.splitlines() if wanted in line][-4:]
    said = "; ".join(lines)[:1500] or "no reason given"
    return CaptureError(f"the container's processes can't be captured: {said}", state=_RUNS_ON)


def _seal(images: Path) -> dict[str, dict[str, Any]]:
    """Make an image durable; name, size and hash of each of its files."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(images.iterdir()):
        if path.is_symlink() or not path.is_file():
            continue
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        found[path.name] = {"size": path.stat().st_size, "sha256": _digest(path)}
    sync_directory(images)
    return found


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(artefact: Artefact) -> Mapping[str, Mapping[str, Any]]:
    files: Mapping[str, Mapping[str, Any]] = artefact.details["files"]
    return files


def _damaged(name: str, how: str) -> RestoreError:
    return RestoreError(
        f"the process image's {name} {how}", code="image-damaged", state="nothing was restored",
        remedy="choose another statepoint, or --files-only",
    )  # fmt: skip


def _info(pid: int, before: ProcessInfo | None = None) -> ProcessInfo | None:
    """A process as the sandbox knows it, its state as it was before all was stopped; None when it is gone."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            lines = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        with open(f"/proc/{pid}/cmdline", "rb") as raw:
            argv = raw.read(_LARGEST)
        words = argv.removesuffix(b"\0").split(b"\0") if argv else []
        state = before.state if before is not None else lines["State"][0]
        cwd = os.readlink(f"/proc/{pid}/cwd")
        return ProcessInfo(int(lines["NSpid"].split()[-1]), tuple(map(os.fsdecode, words)), cwd, state)
    return None
