"""Talks to CRIU: one worker process per request, over its RPC socket.

pycriu's own ``dump()`` and ``restore()`` fork the caller and don't answer notifications, so only its message classes
are used and the exchange is written here.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planarian_core.boot import boot_id
from planarian_process.criu_huge_pages import without_huge_pages
from planarian_process.criu_messages import messages
from planarian_process.criu_namespaces import begin_in_thread, enter_network, mount, own_mounts

LOG_NAME = "criu.log"
_ERRORS_NAME = "stderr"
PATIENCE = 60.0
"""Seconds that CRIU has to end after we hung up."""
DEADLINE = 900.0
"""Seconds that CRIU may take for one step; far above any real dump, so that a hang ends in an error."""

_ADMINISTRATOR_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_CACHE_NAME = "criu.kdat"
_MOUNT_YARD = re.compile(r"^\([\d.]+\) mnt: \t*Will mount \d+ @ (/tmp/\.criu\.mntns\.\w{6})/", re.MULTILINE)


class WorkerLost(Exception):
    """The CRIU process went away in the middle of a request, or did not answer in time."""


def find_binary(name: str = "criu") -> str | None:
    """The path of CRIU, also where PATH leaves out the administrator's directories."""
    found = shutil.which(name)
    return found or shutil.which(name, path=os.pathsep.join(_ADMINISTRATOR_PATH))


class StartCache:
    """What CRIU found out about the kernel, kept between runs: it saves half of a dump's time.

    CRIU keeps it in /run when that is a tmpfs. It knows a cache of another build of itself, but not one of another
    kernel: so the file's name carries the boot. A sandbox backend may use the same file (``criu-BOOT.kdat``).
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"criu-{boot_id()}.kdat"

    @property
    def empty(self) -> bool:
        """Whether CRIU has yet to find out all by itself."""
        return not self._file.exists()

    def fill(self, target: Path) -> None:
        """Put what is known into ``target``, a directory that CRIU will see as /run."""
        with contextlib.suppress(OSError):  # a cache: without it CRIU is slower, not wrong
            shutil.copyfile(self._file, target / _CACHE_NAME)

    def keep(self, directory: int) -> None:
        """Save what a finished worker left in ``directory`` (a descriptor), if it is news."""
        with contextlib.suppress(OSError):  # as above
            descriptor = os.open(_CACHE_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            with open(descriptor, "rb") as source:
                content = source.read()
            if not self._file.exists() or self._file.read_bytes() != content:
                draft = self._file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
                draft.write_bytes(content)
                draft.rename(self._file)


@dataclass(frozen=True)
class Surroundings:
    """Where a worker works. ``enter`` mounts what it needs, in its mount namespace; ``keep``: paths that must stay
    visible to it; ``groups``: directories of control groups that it is put into; ``network_of``: the process in whose
    network namespace it is, 0 for ours. ``small_pages``: neither it nor what it makes is given transparent huge pages.
    """

    enter: Callable[[], None] = lambda: None
    keep: tuple[Path, ...] = ()
    groups: tuple[str, ...] = ()
    network_of: int = 0
    small_pages: bool = False

    def holds(self, directory: str) -> bool:
        """Whether something that must stay visible lies in ``directory``, which then can't be covered."""
        return any(path.resolve().is_relative_to(directory) for path in self.keep)


class Worker:
    """One ``criu swrk``, in a mount namespace of its own whose /run is a small tmpfs with the start-up cache.

    ``scratch`` is a descriptor on that tmpfs: CRIU writes its log there, so that it can be read even when the disk of
    the images is full. Use as a context manager: leaving it ends whatever still runs.
    """

    def __init__(
        self,
        binary: str,
        cache: StartCache,
        around: Surroundings = Surroundings(),  # a frozen value
        patience: float = PATIENCE,
    ) -> None:
        """``patience`` is how many seconds it has to end after we hung up."""
        self._cache = cache
        self._around = around = replace(around, keep=(*around.keep, Path(binary)))
        self._patience = patience
        self.settled = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = ours
        command = (binary, "--no-default-config", "swrk", str(theirs.fileno()))
        hidden = around.holds("/run")

        spawned: Future[tuple[subprocess.Popen[bytes], int]] = Future()

        def start() -> None:
            try:
                own_mounts()
                spawned.set_result(self._start(command, theirs.fileno(), hidden))
            except BaseException as failure:  # raised below
                spawned.set_exception(failure)
            else:
                around.enter()  # while CRIU starts up
                if not hidden and not around.holds("/tmp"):  # noqa: S108  # where CRIU makes its directories
                    mount("planarian-criu", "/tmp", "tmpfs", 0, "mode=0700,size=64m")  # noqa: S108  # as above

        entered = begin_in_thread(start)
        try:
            self.process, self.scratch = spawned.result()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._handle = os.pidfd_open(self.process.pid)
        self._moved = begin_in_thread(self._join)
        try:
            entered.result()
        except BaseException:
            self.__exit__()
            raise

    def _start(self, command: Sequence[str], channel: int, hidden: bool) -> tuple[subprocess.Popen[bytes], int]:
        # What ends us must not end CRIU in the middle of a process; its children's masks come from the image.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        # Where /run can't be covered the tmpfs only holds the log, and CRIU starts without its cache.
        target = Path("/tmp" if hidden else "/run")  # noqa: S108  # a mount of our own, seen by the worker alone
        mount("planarian-criu", str(target), "tmpfs", 0, "mode=0700,size=64m")
        self._cache.fill(target)
        if self._around.network_of:
            enter_network(self._around.network_of)
        scratch = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with without_huge_pages() if self._around.small_pages else contextlib.nullcontext():
                return _spawn(command, channel, scratch), scratch
        except BaseException:
            os.close(scratch)
            raise

    def _join(self) -> None:
        for group in self._around.groups:
            self.move(group)

    def settle(self) -> None:
        """Wait until it is in its control groups: the kernel takes some milliseconds. Before it makes anything."""
        self._moved.result()
        self.settled = True

    def move(self, group: str) -> None:
        """Put the worker, without what it has made, into a control group."""
        Path(group, "cgroup.procs").write_text(str(self.process.pid))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *unused: object) -> None:
        self.abandon()
        self._tidy()
        if not self._around.network_of:  # what it finds out there holds for that network only
            self._cache.keep(self.scratch)
        os.close(self.scratch)
        os.close(self._handle)

    def abandon(self) -> None:
        """Hang up and wait until it has ended: CRIU undoes by itself what it can't finish. Idempotent."""
        self.channel.close()
        self._moved.exception()  # not to meet another process of this number
        self._wait(self._patience)
        self.kill()

    def kill(self) -> None:
        """End the worker and what is left in its process group. Idempotent."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def send(self, request: Any) -> None:
        try:
            self.channel.send(request.SerializeToString())
        except OSError as failure:
            raise self._lost() from failure

    def receive(self) -> Any:
        """The next message. WorkerLost when CRIU is gone or silent for :data:`DEADLINE` seconds."""
        watcher = select.poll()
        watcher.register(self.channel, select.POLLIN)
        watcher.register(self._handle, select.POLLIN)  # what it had started may keep the channel open after its death
        data = b""
        ready = [descriptor for descriptor, _ in watcher.poll(DEADLINE * 1000)]
        if self.channel.fileno() in ready:
            with contextlib.suppress(ConnectionError):
                data = self.channel.recv(1 << 20)
        if not ready:
            self.kill()
            raise WorkerLost(f"CRIU was silent for {DEADLINE:.0f} seconds and was ended")
        if not data:
            raise self._lost()
        response = messages().criu_resp()
        response.ParseFromString(data)
        return response

    def _lost(self) -> WorkerLost:
        self._wait(self._patience)
        self.kill()
        code = self.process.returncode
        return WorkerLost(f"CRIU ended early ({f'signal {-code}' if code < 0 else f'exit code {code}'})")

    def _wait(self, seconds: float) -> bool:
        """Whether it ends within that time; not reaped, so that its process group stays its own."""
        watcher = select.poll()
        watcher.register(self._handle, select.POLLIN)
        return bool(watcher.poll(seconds * 1000))

    def answer(self, success: bool = True) -> None:
        """Answer a notification; ``success=False`` makes CRIU give up and undo."""
        reply = messages().criu_req()
        reply.type = messages().NOTIFY
        reply.notify_success = success
        self.send(reply)

    def converse(self, notified: Callable[[str, int], bool], until: str = "") -> Any:
        """Answer notifications by ``notified(name, pid)`` until the final response, or until the one named ``until``:
        that one is returned unanswered.
        """
        while True:
            response = self.receive()
            if response.type != messages().NOTIFY or (until and response.notify.script == until):
                return response
            try:
                success = notified(response.notify.script, response.notify.pid)
            except BaseException:
                self.answer(False)
                raise
            self.answer(success)

    def log(self) -> str:
        """What CRIU logged so far."""
        return self._text(LOG_NAME)

    def errors(self) -> str:
        """What CRIU wrote to standard error."""
        return self._text(_ERRORS_NAME)

    def _tidy(self) -> None:
        """Remove the empty directory in the host's /tmp that a CRIU which was killed in a restore leaves there."""
        if self.process.returncode != 0:
            for path in set(_MOUNT_YARD.findall(self.log())):
                with contextlib.suppress(OSError):
                    os.rmdir(path)

    def spare(self) -> None:
        """Let the kernel end anything else first when memory runs out: a killed dump can take a process with it."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.process.pid}/oom_score_adj").write_text("-1000")

    def _text(self, name: str) -> str:
        return self.read(name).decode("utf-8", "replace")

    def read(self, name: str) -> bytes:
        """A file of its working directory; empty where there is none."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.scratch)
        except FileNotFoundError:
            return b""
        with open(descriptor, "rb") as file:
            return file.read()


def _spawn(command: Sequence[str], channel: int, scratch: int) -> subprocess.Popen[bytes]:
    errors = os.open(_ERRORS_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=scratch)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(channel,),
            cwd="/",
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
    finally:
        os.close(errors)
