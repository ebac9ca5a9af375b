"""Whether CRIU works here, judged by doing it: dump and restore a small server in namespaces of its own.

``criu check`` and version numbers mislead: CRIU 4.1 says "Looks good" on kernels where it can't dump a TCP socket.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from planarian_core.errors import BackendUnavailable
from planarian_core.interfaces import Availability
from planarian_process import criu_namespaces as namespaces
from planarian_process.criu_engine import Engine, EngineFailure
from planarian_process.criu_images import clear
from planarian_process.criu_inventory import add_network
from planarian_process.criu_log import diagnose
from planarian_process.criu_memory import place
from planarian_process.criu_messages import INSTALL, messages
from planarian_process.criu_rpc import StartCache, WorkerLost, find_binary

_CHECKPOINT_SUPPORT = Path("/proc/sys/kernel/ns_last_pid")  # exists with CONFIG_CHECKPOINT_RESTORE alone
_STARTED = 10.0


@dataclass(frozen=True)
class Findings:
    """What was found out about one kernel and one binary."""

    works: bool
    reason: str = ""
    remedy: str = ""
    version: str = ""
    mem_track: bool = False


class Probe:
    """Finds out once per kernel and binary, keeps it in ``cache``, and makes the engine that goes with it."""

    def __init__(self, cache: Path, binary: str) -> None:
        self._cache = cache
        self._name = binary
        self._lock = threading.Lock()
        self._known: tuple[str, Findings] | None = None

    def availability(self) -> Availability:
        """Why not, and the command that mends it; or that it works, with its limits."""
        obstacle = self._obstacle()
        if obstacle is not None:
            return obstacle
        found = self.findings()
        if not found.works:
            return Availability(False, found.reason, found.remedy)
        limit = (
            "; increments: this kernel tracks memory changes"
            if found.mem_track
            else "; full images only: this kernel does not track memory changes"
        )
        return Availability(True, f"CRIU {found.version}{limit}")

    def engine(self) -> Engine:
        """Raises BackendUnavailable when there is no CRIU at all."""
        binary = find_binary(self._name)
        if binary is None:
            raise BackendUnavailable(f"{self._name} is not installed", remedy=INSTALL)
        self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Engine(binary, StartCache(self._cache))

    def findings(self) -> Findings:
        """What was found out; tries it if nobody did yet."""
        engine = self.engine()
        key = _digest(f"{os.uname().release} {os.uname().version} {_identity(engine.binary)}")
        with self._lock:
            if self._known is None or self._known[0] != key:
                self._known = key, self._read(key) or self._find(engine, key)
            return self._known[1]

    def _obstacle(self) -> Availability | None:
        """What can be seen without trying, and may change at any time: so it isn't cached."""
        if sys.platform != "linux":
            return Availability(False, "CRIU needs Linux", "use the process backend respawn")
        if find_binary(self._name) is None:
            return Availability(False, f"{self._name} is not installed", INSTALL)
        if os.geteuid() != 0:
            return Availability(False, "CRIU needs root", "run as root, or use the process backend respawn")
        if not _CHECKPOINT_SUPPORT.exists():
            return Availability(
                False, "the kernel has no checkpoint support (CONFIG_CHECKPOINT_RESTORE)", "boot a kernel with it"
            )
        try:
            messages()
        except BackendUnavailable as failure:
            return Availability(False, failure.message, failure.remedy)
        return None

    def _file(self, key: str) -> Path:
        return self._cache / f"criu-probe-{key}.json"

    def _read(self, key: str) -> Findings | None:
        try:
            return Findings(**json.loads(self._file(key).read_text()))
        except (OSError, ValueError, TypeError):  # not there, or not ours any more: try again
            return None

    def _find(self, engine: Engine, key: str) -> Findings:
        try:
            found = _try(engine, self._cache)
        except (
            OSError,
            ValueError,
            subprocess.SubprocessError,
            WorkerLost,
            EngineFailure,
        ) as failure:  # says nothing about the next time
            return Findings(False, f"CRIU could not be tried: {failure}", "planarian doctor, as the host's root")
        draft = self._file(key).with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(asdict(found)))
        draft.rename(self._file(key))
        return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _identity(binary: str) -> str:
    found = os.stat(binary)
    return f"{os.path.realpath(binary)} {found.st_mtime_ns} {found.st_size}"


def _try(engine: Engine, cache: Path) -> Findings:
    features = engine.features()
    version, mem_track = str(features["version"]), bool(features["mem_track"])
    with _folder(cache) as (root, images):
        try:
            namespaces.in_thread(lambda: _round_trip(engine, root, images))
        except EngineFailure as failure:
            if failure.lost:
                raise
            found = diagnose(failure)
            lines = "; ".join(found.lines[:2])
            return Findings(False, f"CRIU {version}: {found.cause} ({lines})", _remedy(version), version, mem_track)
    return Findings(True, version=version, mem_track=mem_track)


@contextlib.contextmanager
def _folder(cache: Path) -> Iterator[tuple[Path, Path]]:
    """A mount point and a directory for images. Taken away by name: nothing here ever walks down from ``root``, on
    which the host's root is bound in the probe's own mount namespace.
    """
    folder = Path(tempfile.mkdtemp(dir=cache, prefix="criu-probe-"))
    root, images = folder / "root", folder / "images"
    root.mkdir()
    images.mkdir()
    try:
        yield root, images
    finally:
        clear(images)
        images.rmdir()
        root.rmdir()
        folder.rmdir()


def _remedy(version: str) -> str:
    older = tuple(int(part) for part in version.split(".")[:2]) < (4, 2)
    return f"{INSTALL} (Debian 13's 4.1 can't dump a TCP socket on new kernels)" if older else "see the reason"


def _round_trip(engine: Engine, root: Path, images: Path) -> None:
    """Runs in a thread of its own, whose mount namespace holds the server's root and ends with the thread."""
    namespaces.own_mounts()
    namespaces.mount("/", str(root), None, namespaces.MS_BIND)
    extra = [point for point in _needed_mounts() if point != "/"]
    for point in extra:
        namespaces.mount(point, f"{root}{point}", None, namespaces.MS_BIND)
    externals = {"/": "root", **{point: f"extra-{number}" for number, point in enumerate(extra)}}
    with _server(root) as init:
        dumping = [f"mnt[{point}]:{name}" for point, name in externals.items()]
        with place(images, 0) as descriptor, engine.dump(init, descriptor, private_network=True, external=dumping):
            pass
    add_network(images)
    restoring = [f"mnt[{name}]:{root}{point.rstrip('/')}" for point, name in externals.items()]
    restored = engine.restore(images, str(root), private_network=True, external=restoring)
    try:
        _wait_for_server(restored)
    finally:
        _end(restored)


def _needed_mounts() -> list[str]:
    """Mount points of what a Python interpreter needs, outermost first."""
    needed = [sys.base_prefix, os.path.realpath(sys.executable), "/usr", "/etc"]
    points: set[str] = set()
    for path in needed:
        while not os.path.ismount(path):
            path = os.path.dirname(path)
        points.add(path)
    return sorted(points)


@contextlib.contextmanager
def _server(root: Path) -> Iterator[int]:
    """A server with a listening TCP socket as init of its own namespaces, ended on leaving."""
    process = namespaces.in_thread(lambda: _start_server(root))
    assert process.stderr is not None
    try:
        with process.stderr:
            # The server closes it once it listens; what is in it is why it could not.
            trouble = process.stderr.read(2000).decode(errors="replace").strip()
        if trouble:
            raise OSError(trouble.splitlines()[-1])
        _wait_for_server(process.pid)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _start_server(root: Path) -> subprocess.Popen[bytes]:
    namespaces.unshare(
        namespaces.CLONE_NEWPID | namespaces.CLONE_NEWNET | namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWUTS
    )
    # Handed over as text: the file may lie on a mount that the server's root does not have.
    source = Path(__file__).with_name("criu_probe_server.py").read_text()
    return subprocess.Popen(
        [os.path.realpath(sys.executable), "-I", "-S", "-c", source, str(root)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _wait_for_server(pid: int) -> None:
    deadline = time.monotonic() + _STARTED
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
            if any(line.split()[3] == "0A" for line in lines):
                return
        time.sleep(0.002)
    raise OSError("the probe's server does not listen")


def _end(pid: int) -> None:
    """Kill a restored tree and wait until it has ended; it is not our child, so nobody here reaps it."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        watcher = select.poll()
        watcher.register(handle, select.POLLIN)
        watcher.poll(_STARTED * 1000)
    finally:
        os.close(handle)
