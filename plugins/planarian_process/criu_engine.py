"""One dump and one restore with CRIU: which options, and what is done while it waits for us."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planarian_process.criu_freezer import freeze
from planarian_process.criu_messages import messages
from planarian_process.criu_namespaces import CLONE_NEWNET, loopback_up, shares_network, stop_thread
from planarian_process.criu_rpc import DEADLINE, LOG_NAME, PATIENCE, StartCache, Surroundings, Worker, WorkerLost
from planarian_process.criu_statistics import NAME as STATISTICS
from planarian_process.criu_statistics import Statistics, statistics
from planarian_process.criu_tasks import inside_pids

GHOST_LIMIT = 1 << 30
"""Bytes: files that were deleted but are still open are kept in the image up to this size each."""

# Written to memory, so they cost little: 3 names the task that CRIU is busy with, 4 the directories that it makes.
_DUMP_LOG, _RESTORE_LOG = 3, 4


class EngineFailure(Exception):
    """CRIU failed. ``log`` is all that it logged, ``errors`` its standard error; ``lost``: it gave no answer.

    What it had stopped or started it has let go again.
    """

    def __init__(
        self, reason: str, worker: Worker | None = None, *, lost: bool = False, log: str = "", errors: str = ""
    ) -> None:
        super().__init__(reason)
        self.log = worker.log() if worker else log
        self.errors = worker.errors() if worker else errors
        self.lost = lost


@dataclass
class Dump:
    """A dump under way. ``log`` is complete when the context has ended, and what CRIU counted is there then."""

    log: str = ""
    counted: Statistics | None = None


@dataclass(frozen=True)
class Engine:
    """CRIU's binary and its start-up cache."""

    binary: str
    cache: StartCache

    def features(self) -> dict[str, Any]:
        """CRIU's version and whether the kernel can track memory changes (what incremental images need)."""
        with self._worker() as worker:
            request = messages().criu_req()
            request.type = messages().VERSION
            request.keep_open = True
            worker.send(request)
            version = worker.receive().version
            request = messages().criu_req()
            request.type = messages().FEATURE_CHECK
            request.features.mem_track = True
            worker.send(request)
            found = worker.receive()
        return {
            "version": f"{version.major_number}.{version.minor_number}.{version.sublevel}",
            "mem_track": bool(found.success and found.features.mem_track),
        }

    @contextlib.contextmanager
    def dump(
        self,
        pid: int,
        images: int,
        *,
        private_network: bool,
        external: Sequence[str],
        keep_network: bool = False,
        track: bool = False,
        parent: int = -1,
    ) -> Iterator[Dump]:
        """Capture the tree below ``pid``; inside the context everything in it stands still and the image is written.

        The tree runs on when the context ends, in any way. ``images``: a descriptor on the directory for the image.
        ``private_network``: it has its own network namespace; ``keep_network``: that one has more than ``lo`` in it,
        or there are several. With the first and without the second the image needs
        :func:`planarian_process.criu_inventory.add_network`. ``track``: what is written from now on is marked, so that
        the next image can be an increment; ``parent``: a descriptor on the directory that this one is built on, if any.

        Raises:
            EngineFailure: CRIU could not do it.
        """
        dump = Dump()
        if self.cache.empty:
            self.features()
        # CRIU walks the kernel's whole table of connections for each network namespace that it dumps, twice: a third
        # of the time. It leaves its own out, and of one with ``lo`` alone there is nothing to keep.
        around = Surroundings(network_of=pid if private_network and not keep_network else 0)
        # A dump is never cut short: CRIU must take itself out of the processes.
        with self._worker(around, DEADLINE) as worker:
            worker.spare()
            request = _request(worker, messages().DUMP, images, external)
            request.opts.pid = pid
            request.opts.leave_running = True
            request.opts.tcp_skip_in_flight = True
            request.opts.ghost_limit = GHOST_LIMIT
            request.opts.track_mem = track
            if parent >= 0:
                request.opts.parent_img = f"/proc/{os.getpid()}/fd/{parent}"  # wherever its namespace has the folder
            response = _converse(worker, request, until="post-dump")
            if response.type != messages().NOTIFY:
                raise EngineFailure("CRIU failed", worker)
            try:
                yield dump
            except BaseException:
                with contextlib.suppress(WorkerLost):  # the caller's own failure is what counts
                    worker.answer(False)
                    worker.converse(_agree)
                raise
            try:
                worker.answer()
                response = worker.converse(_agree)
            except WorkerLost as lost:
                raise EngineFailure(str(lost), worker, lost=True) from lost
            dump.log = worker.log()
            dump.counted = statistics(worker.read(STATISTICS))
            if not response.success:
                raise EngineFailure("CRIU failed", worker)

    def restore(
        self,
        images: Path,
        root: str,
        *,
        around: Surroundings = Surroundings(),  # noqa: B008  # a frozen value
        private_network: bool,
        external: Sequence[str],
        keep_network: bool = False,
        doomed: Sequence[int] = (),
        freezer: str = "",
        check: Callable[[], object] = lambda: None,
        checked: Callable[[], object] = lambda: None,
        resuming: Callable[[int], object] = lambda init: None,
    ) -> int:
        """Bring a tree back; returns the host pid of its init. The inside pids ``doomed`` never run an instruction.

        With a ``freezer``, one of the control groups in ``around``, nothing runs until that is thawed. ``check`` is
        called before CRIU is told of the images, ``checked`` when all is ready and nothing has run yet, and then
        ``resuming`` with the host pid of its init: what they raise ends the restore.

        Raises:
            EngineFailure: CRIU could not do it; nothing of the tree is left.
        """
        around = replace(around, keep=(Path(root), *around.keep))
        with self._worker(around) as worker, open_directory(images) as descriptor:
            tree = _Restored(worker, doomed, private_network, checked, resuming, freezer)
            try:
                check()
                request = _request(worker, messages().RESTORE, descriptor, external)
                request.opts.root = root
                if private_network and not keep_network:
                    request.opts.empty_ns = CLONE_NEWNET
                if not private_network:
                    request.opts.tcp_close = True
                response = _converse(worker, request, tree)
                if not response.success:
                    raise EngineFailure("CRIU failed", worker)
                tree.end_doomed()
            except BaseException as failure:
                worker.abandon()
                tree.kill()
                if isinstance(failure, OSError):
                    raise EngineFailure(f"what is restored could not be set up: {failure}", worker) from failure
                raise
            finally:
                tree.close()
        return int(response.restore.pid)

    def _worker(
        self,
        around: Surroundings = Surroundings(),  # noqa: B008  # a frozen value
        patience: float = PATIENCE,
    ) -> Worker:
        try:
            return Worker(self.binary, self.cache, around, patience)
        except OSError as failure:
            raise EngineFailure(f"CRIU could not be started: {failure}", lost=True) from failure


class _Restored:
    """The tree as it comes up: what is done to it at CRIU's notifications."""

    def __init__(
        self,
        worker: Worker,
        doomed: Sequence[int],
        private_network: bool,
        checked: Callable[[], object],
        resuming: Callable[[int], object],
        freezer: str,
    ) -> None:
        self._worker = worker
        self._doomed = frozenset(doomed)
        self._private_network = private_network
        self._checked = checked
        self._resuming = resuming
        self._freezer = freezer
        self._init = 0
        self._init_handle = -1
        self._stopped: list[int] = []

    def __call__(self, event: str, pid: int) -> bool:
        if event == "pre-restore":
            self._worker.settle()  # from here on it makes processes
        elif event == "setup-namespaces":
            self._init, self._init_handle = pid, os.pidfd_open(pid)
            if not self._worker.settled:
                raise OSError(errno.EPERM, "what is restored would be outside of its control groups")
            if self._private_network:
                if shares_network(pid):
                    raise OSError(errno.EPERM, "what is restored would be in the host's network")
                loopback_up(pid)
        elif event == "pre-resume":
            self._checked()
            self._stop_doomed()
            self._resuming(self._init)
            if self._freezer:
                freeze(self._freezer, self._worker)
        elif event == "post-resume":
            self.end_doomed()
        return True

    def _stop_doomed(self) -> None:
        """Queue a stop for each thread that must not run on.

        CRIU still holds them at the end of their last system call and would give up if one was killed now. A thread
        takes a queued stop before it returns to its own code, so it can be killed after CRIU has let go of it.
        """
        for host, inside in inside_pids(self._init).items() if self._doomed else ():
            if inside in self._doomed and host != self._init:
                handle = os.pidfd_open(host)
                self._stopped.append(handle)
                for thread in os.listdir(f"/proc/{host}/task"):
                    stop_thread(host, int(thread))

    def end_doomed(self) -> None:
        while self._stopped:
            handle = self._stopped.pop()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)

    def kill(self) -> None:
        """End the whole tree and wait for it: with its init goes the pid namespace."""
        if self._init_handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_handle, signal.SIGKILL)
            watcher = select.poll()
            watcher.register(self._init_handle, select.POLLIN)
            watcher.poll(PATIENCE * 1000)

    def close(self) -> None:
        for handle in (*self._stopped, *([self._init_handle] if self._init_handle >= 0 else [])):
            os.close(handle)


def _agree(event: str, pid: int) -> bool:
    return True


def _converse(worker: Worker, request: Any, notified: Any = _agree, until: str = "") -> Any:
    try:
        worker.send(request)
        return worker.converse(notified, until)
    except WorkerLost as lost:
        raise EngineFailure(str(lost), worker, lost=True) from lost


@contextlib.contextmanager
def open_directory(path: Path) -> Iterator[int]:
    """A descriptor on a directory, for as long as the context lasts."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _request(worker: Worker, kind: int, images: int, external: Sequence[str]) -> Any:
    request = messages().criu_req()
    request.type = kind
    options = request.opts
    options.images_dir_fd = images
    options.work_dir_fd = worker.scratch
    options.log_file = LOG_NAME
    options.log_level = _DUMP_LOG if kind == messages().DUMP else _RESTORE_LOG
    options.external.extend(external)
    options.notify_scripts = True
    options.tcp_established = True
    options.ext_unix_sk = True
    options.file_locks = True
    options.link_remap = True
    options.manage_cgroups_mode = messages().IGNORE
    options.network_lock = messages().SKIP
    return request
