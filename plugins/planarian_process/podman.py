"""The ``podman`` process backend: a container's memory, by its runtime's checkpoint and ``podman container restore``.

The container stays one of Podman's: what comes back is restored by Podman, in a container that was made anew. The
sandbox backend has it done (:class:`planarian_core.interfaces.TakesCheckpoints`); what an image is, that it is an
increment, and how it is kept and checked are the ``criu`` backend's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from planarian_core.errors import BackendUnavailable, CaptureError, RestoreError
from planarian_core.interfaces import (
    Availability,
    CheckpointFailed,
    RestoreEnvironment,
    RunningSandbox,
    SandboxCapabilities,
)
from planarian_core.model import Artefact, SandboxSpec
from planarian_process import criu_images
from planarian_process.criu import CriuBackend, restore_error
from planarian_process.criu_engine import Dump, EngineFailure
from planarian_process.criu_epoch import Epoch
from planarian_process.criu_huge_pages import without_huge_pages
from planarian_process.criu_increments import FULL_EVERY, usable
from planarian_process.criu_shape import Shape
from planarian_process.criu_statistics import statistics
from planarian_process.criu_tasks import Task


class PodmanMemory(CriuBackend):
    """See the module. Images are written to the disk by the runtime, so none is kept in memory meanwhile.

    Args:
        home: the home of Planarian.
        full_every: of so many images in a row at least one is full; 1: all of them.
    """

    name = "podman"

    def __init__(self, home: Path, full_every: int = FULL_EVERY) -> None:
        super().__init__(home, memory=0, full_every=full_every)

    def serves(self, spec: SandboxSpec, sandbox: SandboxCapabilities) -> Availability:
        """Only containers of Podman's."""
        if sandbox.managed != "podman":
            return Availability(
                False, f"a {spec.backend} sandbox is no container of podman", "use criu, or the sandbox backend podman"
            )
        return Availability(True)

    def _shape(self, sandbox: RunningSandbox, tasks: Sequence[Task]) -> Shape:
        """The runtime has CRIU take the container's network namespace into the image, whatever is in it."""
        return replace(Shape.of(sandbox, tasks), keep=True)

    @contextlib.contextmanager
    def _dump(
        self, sandbox: RunningSandbox, images: Path, written: int, shape: Shape, track: bool, parent: int
    ) -> Iterator[Dump]:
        if sandbox.checkpoint is None:
            raise CaptureError(f"{sandbox.spec.id} is no container of podman", state="nothing was captured")
        dump = Dump()
        try:
            with sandbox.checkpoint(images, track, parent >= 0) as standstill:
                yield dump
        except CheckpointFailed as failure:
            raise EngineFailure(str(failure), log=failure.log, errors=failure.said) from failure
        dump.log, dump.counted = standstill.log, statistics(standstill.statistics)

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
        if environment.revive is None:
            raise RestoreError("only a podman sandbox can take this image", remedy="restore it into one")
        digest = str(artefact.details.get("manifest", ""))
        with criu_images.Verification(images, digest) as verification:
            verification.begin()
            verification.finish()
        epoch = Epoch(self.tracks)
        try:
            with without_huge_pages() if self.tracks else contextlib.nullcontext():
                init = environment.revive(images, kill, frozen, epoch.begin)
        except CheckpointFailed as failure:
            raise restore_error(EngineFailure(str(failure), log=failure.log, errors=failure.said)) from failure
        depth = int(artefact.details.get("depth", 0))
        self._increments.keep(init, epoch.origin(usable(images, digest, depth, {})))
        return init
