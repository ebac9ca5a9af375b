"""What is done about an image while, and after, everything stands still: put right, shared, hashed, made durable."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from planarian_core.errors import CaptureError
from planarian_core.model import Artefact, Domain
from planarian_process import criu_images, criu_sharing
from planarian_process.criu_chain import Inherited
from planarian_process.criu_increments import Plan
from planarian_process.criu_inventory import add_network
from planarian_process.criu_probe import Findings
from planarian_process.criu_shape import Shape
from planarian_process.criu_timers import revive_timers


def directory_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


def finish(
    written: int, images: Path, shape: Shape, plan: Plan, inherited: Inherited
) -> tuple[criu_images.Manifest, Plan]:
    """Bring what CRIU has written to ``images``; its manifest, and how it came to be stored."""
    place = directory_of(written)
    revive_timers(place)
    if shape.private and not shape.keep:
        add_network(place)
    if plan.origin is not None and not plan.tracked:
        plan, inherited = _share(place, images, plan)
    return criu_images.seal(place, images, inherited), plan


def _share(place: Path, images: Path, plan: Plan) -> tuple[Plan, Inherited]:
    """Leave to the image before what that has; where it can't be or isn't worth it, the image stays full."""
    if criu_sharing.memory_of(place) < criu_sharing.LEAST:
        return plan.full("it is small"), {}
    plan, inherited = plan.lay(images)
    with contextlib.suppress(OSError, ValueError):  # a full image serves as well
        if inherited and criu_sharing.share(place, images / criu_images.PARENT):
            return replace(plan, compared=True), inherited
    shutil.rmtree(images / criu_images.PARENT, ignore_errors=True)
    return plan.full(plan.reason or "too little of it is the same"), {}


def finished(finishing: Future[tuple[criu_images.Manifest, Plan]], state: str) -> tuple[criu_images.Manifest, Plan]:
    """Wait for :func:`finish`.

    Raises:
        CaptureError: the disk is full or failed, or this CRIU is unknown. ``state`` is what is true then.
    """
    try:
        return finishing.result()
    except OSError as failure:
        why = "the disk is full" if failure.errno in (errno.ENOSPC, errno.EDQUOT) else "the disk failed"
        raise CaptureError(
            f"the process image could not be made durable: {why}: {failure}", state=state, remedy="free some space"
        ) from failure
    except ValueError as failure:
        raise CaptureError(
            f"this CRIU writes images of another form: {failure}", state=state, remedy="use CRIU 4.2"
        ) from failure


def artefact_of(
    backend: str, images: Path, manifest: criu_images.Manifest, found: Findings, shape: Shape, proof: Mapping[str, Any]
) -> Artefact:
    """The image as the registry will know it; ``proof``: what else its details hold."""
    return Artefact(
        Domain.PROCESSES,
        backend,
        images.name,
        stored=manifest.added,
        logical=manifest.size,
        details={
            "files": len(manifest.files),
            "manifest": manifest.digest,
            "kernel": os.uname().release,
            "criu": found.version,
            "mem_track": found.mem_track,
            **shape.network,
            "mounts": list(shape.mounts),
            **proof,
        },
    )
