"""What the memory of a process tree was last equal to: the image that its next one can be an increment against.

The kernel marks the pages that are written (soft-dirty); a dump takes the marked ones and clears the marks, and so does
a restore (:mod:`planarian_process.criu_epoch`). So the next image may only be built on the very last one, of these very
processes. Which that is, is noted per tree in a file of ``home/cache``, for whichever runtime takes the next image. The
note says from before a dump touches any mark until its image is durable that there is none to build on.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from planarian_core.boot import boot_id
from planarian_process.criu_chain import Broken, Inherited, inherit
from planarian_process.criu_members import Members, unchanged

FULL_EVERY = 16
"""Of so many images in a row at least one is full, where nothing else is configured."""
_CUT_SHORT = "the capture before was cut short"
_UNKNOWN = "none was taken of these processes before"


@dataclass(frozen=True)
class Origin:
    """An image by its directory and the digest of its manifest. ``depth``: how many it is built on itself. ``uptime``:
    microseconds after the boot from when on processes are not in it, 0 where its inventory says so rightly. ``broken``:
    why nothing can be built on it. ``members``: whose memory is in it.
    """

    images: str = ""
    digest: str = ""
    depth: int = 0
    uptime: int = 0
    broken: str = ""
    members: Members = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How an image is to be taken. ``reason``: why in full. ``tracked``: the kernel tells what was written, and is
    asked for it; else pages are compared afterwards (:mod:`planarian_process.criu_sharing`), and ``compared`` says that
    some were equal. ``noted``: what the next one can be built on is to be noted.
    """

    origin: Origin | None = None
    reason: str = ""
    tracked: bool = False
    noted: bool = True
    compared: bool = False

    @property
    def depth(self) -> int:
        return self.origin.depth + 1 if self.origin else 0

    @property
    def note(self) -> str:
        """For the statepoint's coverage; empty where nothing is to be said."""
        if self.compared:
            return "memory in full, of which the disk has once what equals the image before"
        if not self.tracked:
            return ""
        return f"memory in full: {self.reason}" if self.reason else "memory as it differs from the image before"

    def full(self, reason: str) -> Plan:
        """The same without anything to build on."""
        return replace(self, origin=None, reason=reason, compared=False)

    def lay(self, images: Path, now: Members | None = None) -> tuple[Plan, Inherited]:
        """Put what is built on into ``images``; where that fails, the plan is another one. ``now``: the processes of
        which there is to be an image; None where it doesn't matter whose pages those before were.
        """
        if self.origin is None:
            return self, {}
        pids = None if now is None else unchanged(self.origin.members, now)
        try:
            return self, inherit(Path(self.origin.images), self.origin.digest, self.origin.uptime, images, pids)
        except Broken as broken:
            return self.full(f"the image before can't be built on: {broken}"), {}


class Increments:
    """The notes of one home, in ``folder``."""

    def __init__(self, folder: Path, full_every: int) -> None:
        self._folder = folder
        self._full_every = full_every

    def plan(self, init: int, *, tracked: bool) -> Plan:
        """How to take an image of the tree below ``init``, now. Where the kernel's marks are used (``tracked``) nothing
        can be built on what was noted from here on.

        Raises:
            OSError: that could not be noted; nothing may be dumped then.
        """
        if self._full_every == 1:
            return Plan(noted=False)
        note = self._note(init)
        try:
            origin = Origin(**json.loads(note.read_text()))
        except FileNotFoundError:
            return Plan(reason=_UNKNOWN, tracked=tracked)
        except (ValueError, TypeError):  # written by another version, or damaged
            origin = Origin(broken=_UNKNOWN)
        if tracked:
            try:
                self._write(note, Origin(broken=_CUT_SHORT))
            except OSError:  # a full disk: what matters is that it isn't there any more
                note.unlink(missing_ok=True)
        if origin.broken:
            return Plan(reason=origin.broken, tracked=tracked)
        if origin.depth + 1 >= self._full_every:
            return Plan(reason=f"every {self._full_every} images, at the latest", tracked=tracked)
        return Plan(origin, tracked=tracked)

    def keep(self, init: int, origin: Origin) -> None:
        """Note what images of the tree below ``init`` can be built on now. What can't be noted costs a full image."""
        if self._full_every == 1:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._note(init), origin)
            self._forget_ended()

    def _note(self, init: int) -> Path:
        return self._folder / f"{boot_id()}-{init}-{start_ticks(init, init)}.json"

    @staticmethod
    def _write(note: Path, origin: Origin) -> None:
        # No sync: a crash of the host ends the processes that it is about.
        draft = note.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        draft.write_text(json.dumps(asdict(origin)))
        draft.replace(note)

    def _forget_ended(self) -> None:
        for note in self._folder.glob("*.json"):
            boot, init, start = note.stem.rsplit("-", 2)
            try:
                lives = boot == boot_id() and start_ticks(int(init), int(init)) == int(start)
            except OSError:
                lives = False
            if not lives:
                note.unlink(missing_ok=True)


def start_ticks(process: int, thread: int) -> int:
    """When a thread was started: clock ticks after the boot. OSError when it is gone."""
    try:
        return int(Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()[19])
    except IndexError as failure:
        raise ProcessLookupError(f"process {process} is gone") from failure


def usable(images: Path, digest: str, depth: int, members: Members) -> Origin:
    """An image that was just taken or restored."""
    return Origin(str(images.absolute()), digest, depth, members=members)
