"""The ``criu`` process backend: a sandbox's processes with their memory, by images that hold only what changed where
the kernel tells that (paper, section 5.3; :mod:`planarian_process.criu_increments`).

CRIU runs as a worker of its own per capture and restore. Its notification ``post-dump`` is the instant: the image is
written, everything still stands still, and the caller captures files and remote positions there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from planarian_core.control_groups import refuse_frozen
from planarian_core.errors import BackendUnavailable, CaptureError, RestoreError
from planarian_core.interfaces import (
    Availability,
    Instant,
    ProcessCapabilities,
    RestoreEnvironment,
    RunningSandbox,
    SandboxCapabilities,
)
from planarian_core.model import Artefact, Network, SandboxSpec
from planarian_process import criu_images, criu_memory
from planarian_process.criu_chain import Inherited
from planarian_process.criu_engine import Dump, EngineFailure, open_directory
from planarian_process.criu_epoch import Epoch
from planarian_process.criu_finishing import artefact_of, directory_of, finish, finished
from planarian_process.criu_huge_pages import without_huge_pages
from planarian_process.criu_increments import FULL_EVERY, Increments, Plan, usable
from planarian_process.criu_log import diagnose, log_gaps, unfit_parent
from planarian_process.criu_members import Members, members
from planarian_process.criu_probe import Probe
from planarian_process.criu_rpc import Surroundings
from planarian_process.criu_shape import Shape
from planarian_process.criu_tasks import (
    Task,
    await_dumper,
    gone,
    read_tasks,
    refuse_uncapturable,
    wake,
)
from planarian_process.criu_versions import fits
from planarian_process.stillness import DETAIL, baseline, halt, still
from planarian_process.stillness_doubts import proc_is_read_only

_PATIENCE = 60.0
_AFTERMATH = 0.3
_RUNS_ON = "nothing was captured; the sandbox runs on"


class CriuBackend:
    """Captures and restores process trees with CRIU. Stateless apart from what it caches in ``home/cache``.

    Args:
        home: the home of Planarian.
        binary: the name of CRIU, or its path.
        memory: bytes of memory that an image takes at most, from the instant until it is on the disk.
        full_every: of so many images in a row at least one is full; 1: all of them.
    """

    name = "criu"
    capabilities = ProcessCapabilities(memory=True, restarts=False, incremental=True)

    def __init__(
        self, home: Path, binary: str = "criu", memory: int = criu_memory.MOST, full_every: int = FULL_EVERY
    ) -> None:
        self._memory = memory
        self._probe = Probe(home / "cache", binary)
        self._increments = Increments(home / "cache" / "criu-increments", full_every)
        self._all_full = full_every == 1

    def probe(self) -> Availability:
        """Whether CRIU can dump and restore here: a small server with a TCP socket is, once per kernel and binary."""
        return self._probe.availability()

    def serves(self, spec: SandboxSpec, sandbox: SandboxCapabilities) -> Availability:
        """Whether it can capture this kind of sandbox; ``reason`` may name a limit of one that it serves."""
        if not sandbox.process_tree:
            return Availability(
                False,
                f"the sandbox backend {spec.backend} has no process tree of its own",
                "use the sandbox backend namespace, as root",
            )
        if sandbox.managed:
            return Availability(
                False,
                f"a tree that is restored would be no container of {sandbox.managed} any more",
                f"use the process backend {sandbox.managed} or respawn",
            )
        if spec.network is Network.HOST:
            return Availability(True, "network=host: TCP connections are not captured; a restore closes them")
        return Availability(True)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """What is started inside has no transparent huge pages where images are increments. An image keeps that, too:
        so a restored tree has none either, unless a program asked for them.
        """
        with contextlib.ExitStack() as inside:
            with contextlib.suppress(BackendUnavailable, OSError):  # no CRIU, or what it can isn't known
                if self.tracks:
                    inside.enter_context(without_huge_pages())
            yield

    @contextlib.contextmanager
    def instant(self, sandbox: RunningSandbox, images: Path) -> Iterator[Instant]:
        """Stop everything, lend the moment to the caller, let everything go on.

        Raises:
            CaptureError: names the process and the cause. ``images`` is empty again; the sandbox runs on.
        """
        found = self._probe.findings()
        init = sandbox.live.init_pid
        refuse_frozen(sandbox.live.cgroups)
        tasks = await_dumper(lambda: read_tasks(init, sandbox.tasks()), _PATIENCE)
        refuse_uncapturable(tasks)
        shape = self._shape(sandbox, tasks)
        instant = Instant()
        os.chmod(images, 0o700)  # whatever the processes had in memory will lie there
        try:
            # The place of the image and the thread that empties it outlive the standstill.
            with contextlib.ExitStack() as after:
                started = time.perf_counter()
                with contextlib.ExitStack() as standstill:
                    dump, written, plan, inherited, whose = self._begin(
                        after, standstill, sandbox, images, tasks, shape
                    )
                    pool = after.enter_context(ThreadPoolExecutor(max_workers=2))
                    finishing = pool.submit(finish, written, images, shape, plan, inherited)
                    looked = pool.submit(lambda: (read_tasks(init, sandbox.tasks()), halt(sandbox)))
                    yield instant
                    stopped, halted = looked.result()
                measured = time.perf_counter() - started
                counted = {"counted": dump.counted.details()} if dump.counted else {}
                instant.frozen = dump.counted.standstill if dump.counted else measured
                proof = {**counted, DETAIL: baseline(sandbox, halted, directory_of(written))}
            manifest, plan = finished(finishing, _RUNS_ON)
            if plan.noted:
                self._increments.keep(init, usable(images, manifest.digest, plan.depth, whose))
        except BaseException as failure:
            wake(tasks)
            criu_images.clear(images)
            if isinstance(failure, EngineFailure):
                raise _capture_error(failure, tasks) from failure
            raise
        # Seen in the instant all are stopped by CRIU; the states are those of just before.
        states = {task.host: task.state for task in tasks}
        instant.process_list = tuple(replace(task, state=states.get(task.host, "R")).info() for task in stopped)
        instant.gaps = log_gaps(dump.log, stopped, not shape.private)
        instant.notes = (plan.note,) if plan.note else ()
        instant.artefact = artefact_of(self.name, images, manifest, found, shape, {**proof, "depth": plan.depth})

    def _shape(self, sandbox: RunningSandbox, tasks: Sequence[Task]) -> Shape:
        return Shape.of(sandbox, tasks)

    def _dump(
        self, sandbox: RunningSandbox, images: Path, written: int, shape: Shape, track: bool, parent: int
    ) -> AbstractContextManager[Dump]:
        """Inside the context everything stands still, and the image is in ``written``, which may be ``images``."""
        init, external = sandbox.live.init_pid, shape.to_dump()
        return self._probe.engine().dump(init, written, **shape.network, external=external, track=track, parent=parent)

    def _begin(
        self,
        after: contextlib.ExitStack,
        standstill: contextlib.ExitStack,
        sandbox: RunningSandbox,
        images: Path,
        tasks: Sequence[Task],
        shape: Shape,
    ) -> tuple[Dump, int, Plan, Inherited, Members]:
        """Stop everything and write its image: into memory, or, where that proves too small, straight to the disk; as
        an increment, or, where what that would be built on proves unfit, in full.
        """
        init = sandbox.live.init_pid
        size = criu_memory.room(tasks, self._memory)
        plan = self._plan(init, tasks)
        while True:
            known = _members(sandbox) if plan.tracked else {}
            plan, inherited = plan.lay(images, known) if plan.tracked else (plan, {})
            parent = after.enter_context(open_directory(images / criu_images.PARENT)) if inherited else -1
            written = after.enter_context(criu_memory.place(images, size))
            dump = self._dump(sandbox, images, written, shape, plan.tracked, parent)
            try:
                with contextlib.ExitStack() as attempt:
                    begun = attempt.enter_context(dump)
                    whose = _members(sandbox) if plan.tracked else {}
                    if not inherited or all(whose.get(pid, told) == told for pid, told in known.items()):
                        standstill.push(attempt.pop_all())
                        return begun, written, plan, inherited, whose
                plan = plan.full("a process became another program at that moment")
            except EngineFailure as failure:
                unfit = unfit_parent(failure) if inherited else ""
                if unfit:
                    plan = plan.full(f"CRIU finds that the image before doesn't fit: {unfit}")
                elif size and "No space left on device" in failure.log:
                    size = 0
                else:
                    raise
                wake(tasks)
            criu_images.clear(images)

    def _plan(self, init: int, tasks: Sequence[Task]) -> Plan:
        try:
            # Else a program could clear marks, and have pages left out that it wrote.
            plan = self._increments.plan(init, tracked=self.tracks and proc_is_read_only(init))
        except OSError as failure:
            raise CaptureError(
                f"it can't be noted that an image is being taken: {failure}", state=_RUNS_ON, remedy="free some space"
            ) from failure
        # CRIU brings huge pages back from a full image alone; by itself it captures them in full, too.
        return plan.full("it has huge pages") if any(task.huge for task in tasks) and not plan.tracked else plan

    @property
    def tracks(self) -> bool:
        """Whether images are increments by what the kernel says was written."""
        return not self._all_full and self._probe.findings().mem_track

    def still(self, sandbox: RunningSandbox, artefact: Artefact) -> bool:
        """Whether nothing has moved since the capture; see :mod:`planarian_process.stillness`."""
        return still(sandbox, artefact)

    def thaw(self, sandbox: RunningSandbox) -> None:
        """Wait until what a killed runtime's CRIU holds runs on: CRIU notices the death and undoes by itself."""
        with contextlib.suppress(CaptureError):  # the sandbox is gone: nothing stands still
            await_dumper(lambda: read_tasks(sandbox.live.init_pid, sandbox.tasks()), _PATIENCE)

    def verify(self, artefact: Artefact, images: Path) -> None:
        """Check names and sizes of the image's files; RestoreError names what is missing."""
        criu_images.check(images, str(artefact.details.get("manifest", "")))

    def accepts(self, artefact: Artefact) -> Availability:
        """Whether an image from another host can be restored here, as far as versions tell."""
        return fits(artefact.details, self._probe.findings().version, os.uname().release)

    def discard(self, images: Path) -> None:
        """Remove the image's files, finished or not. Idempotent."""
        criu_images.clear(images)

    def freed(self, images: Path) -> int:
        """Bytes that giving an image up now would free: what no other one is built on, or has."""
        return criu_images.exclusive(images)

    def restore(
        self,
        artefact: Artefact,
        images: Path,
        environment: RestoreEnvironment,
        kill: Sequence[int] = (),
        *,
        frozen: bool = False,
    ) -> int:
        """Bring the tree back, nothing of it running before its image was checked against its hashes; returns the host
        pid of its init. ``frozen``: nothing of it runs until ``environment.freezer`` is thawed.

        Raises:
            RestoreError: the image is damaged, or CRIU failed: then the cause is from its log. Nothing is left running.
            BackendUnavailable: ``frozen`` where the sandbox has no control group that can freeze it.
        """
        if frozen and not environment.freezer:
            raise BackendUnavailable(
                "the sandbox has no control group of version 2, which is what holds a restored tree still",
                state="nothing was restored",
                remedy="mount cgroup2 (mount -t cgroup2 none /sys/fs/cgroup/unified)",
            )
        digest = str(artefact.details.get("manifest", ""))
        shape = Shape.from_details(artefact.details)
        if shape.private != environment.private_network:
            raise RestoreError(
                "the statepoint was taken with another kind of network than the sandbox has now",
                remedy="restore it into a sandbox with the same network setting",
            )
        external = shape.to_restore(environment)
        epoch = Epoch(self.tracks)
        try:
            with criu_images.Verification(images, digest) as verification:
                init = self._probe.engine().restore(
                    images,
                    environment.root,
                    around=Surroundings(environment.enter, groups=environment.groups, small_pages=self.tracks),
                    **shape.network,
                    external=external,
                    doomed=kill,
                    freezer=environment.freezer if frozen else "",
                    check=verification.begin,
                    checked=verification.finish,
                    resuming=epoch.begin,
                )
        except EngineFailure as failure:
            raise restore_error(failure) from failure
        self._increments.keep(init, epoch.origin(usable(images, digest, int(artefact.details.get("depth", 0)), {})))
        return init


def _members(sandbox: RunningSandbox) -> Members:
    return members((task.host, task.inside) for task in read_tasks(sandbox.live.init_pid, sandbox.tasks()))


def _quoted(lines: Sequence[str]) -> str:
    return "".join(f"\n  criu: {line}" for line in lines)


def restore_error(failure: EngineFailure) -> RestoreError:
    """What a failed restore means."""
    found = diagnose(failure)
    return RestoreError(
        f"the processes could not be restored: {found.cause}{_quoted(found.lines)}",
        code="restore-processes",
        state="nothing of the statepoint's processes is running",
        remedy=found.remedy,
    )


def _capture_error(failure: EngineFailure, tasks: Sequence[Task]) -> CaptureError:
    found = diagnose(failure, tasks)
    state, remedy = _RUNS_ON, found.remedy
    if failure.lost:
        # CRIU works inside the processes while it dumps them: one can end with it when it is killed there.
        time.sleep(_AFTERMATH)
        ended = gone(tasks)
        if ended:
            state = f"nothing was captured; the sandbox runs on without {', '.join(task.label for task in ended)}"
            remedy = "roll back to a statepoint"
        if tasks[0] in ended:
            state = "nothing was captured; the sandbox's init ended with CRIU, so the sandbox does not run"
    return CaptureError(
        f"the processes could not be captured: {found.cause}{_quoted(found.lines)}",
        code="capture-processes",
        state=state,
        remedy=remedy,
    )
