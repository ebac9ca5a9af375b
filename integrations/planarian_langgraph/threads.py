"""What is known of each thread on the host's side: its sandboxes, and how far each one's environment went.

Small JSON files in the home, written whole. The state channel says where a *checkpoint* belongs; these say where the
environments *are*.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from planarian_core import Planarian
from planarian_core.locks import SandboxLock


@dataclass(frozen=True)
class Begun:
    """A call under way, or one that was cut off: no mark followed it. It began ``calls`` tool calls after
    ``statepoint``.
    """

    call: str
    statepoint: str
    calls: int


@dataclass(frozen=True)
class Progress:
    """How far a sandbox's environment went. ``order``: of the newest mark. ``step``: the superstep that works in it
    now or did last; ``finished``: the calls of that step that have ended; ``begun``: the one that hasn't.
    """

    order: int = 0
    step: str = ""
    finished: tuple[str, ...] = ()
    begun: Begun | None = None


@dataclass(frozen=True)
class Thread:
    """A thread's sandboxes, oldest first; ``current`` is the one that a state without a mark belongs to. ``origin`` is
    the statepoint that the first one began with. ``copied``: the sandbox that it is a copy of, whose marks the copied
    checkpoints hold.
    """

    id: str
    current: str
    origin: str
    sandboxes: tuple[str, ...] = ()
    progress: dict[str, Progress] = field(default_factory=dict)
    copied: str = ""

    def with_progress(self, sandbox: str, **changes: object) -> Thread:
        """The thread, after a sandbox went on."""
        changed = replace(self.progress.get(sandbox, Progress()), **changes)  # type: ignore[arg-type]  # its fields
        return replace(self, progress={**self.progress, sandbox: changed})

    def with_sandbox(self, sandbox: str, order: int = 0) -> Thread:
        """The thread, with a further sandbox that is now the current one."""
        more = replace(self, current=sandbox, sandboxes=(*self.sandboxes, sandbox))
        return more.with_progress(sandbox, order=order)


class ThreadStore:
    """The threads of one home."""

    def __init__(self, planarian: Planarian) -> None:
        self._folder = planarian.home / "langgraph"

    def _file(self, thread_id: str) -> Path:
        return self._folder / f"{_key(thread_id)}.json"

    def lock(self, thread_id: str) -> SandboxLock:
        """What processes that serve the same thread have in common."""
        return SandboxLock(self._folder.parent / "locks", f"langgraph-{_key(thread_id)}")

    def find(self, thread_id: str) -> Thread | None:
        """What is known of a thread, if it is known."""
        try:
            data = json.loads(self._file(thread_id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        progress = {sandbox: _progress(values) for sandbox, values in data["progress"].items()}
        sandboxes = tuple(data["sandboxes"])
        return Thread(data["id"], data["current"], data["origin"], sandboxes, progress, data.get("copied", ""))

    def has_sandbox(self, sandbox_id: str) -> bool:
        """Whether a sandbox is some thread's."""
        files = self._folder.glob("*.json")
        return any(sandbox_id in json.loads(file.read_text(encoding="utf-8"))["sandboxes"] for file in files)

    def put(self, thread: Thread) -> None:
        """Keep it, durably, in place of what was known."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        file = self._file(thread.id)
        new = file.with_name(f"{file.name}.{os.getpid()}.{id(thread)}")
        with open(new, "w", encoding="utf-8") as stream:
            json.dump(asdict(thread), stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, file)

    def remove(self, thread_id: str) -> None:
        """Forget a thread. Idempotent."""
        self._file(thread_id).unlink(missing_ok=True)

    # --- sandboxes of removed threads that can't be removed yet ---

    def left_over(self) -> list[str]:
        return sorted(file.name for file in (self._folder / "left-over").glob("sb-*"))

    def leave_over(self, sandbox_id: str) -> None:
        (self._folder / "left-over").mkdir(mode=0o700, exist_ok=True)
        (self._folder / "left-over" / sandbox_id).touch()

    def forget_left_over(self, sandbox_id: str) -> None:
        (self._folder / "left-over" / sandbox_id).unlink(missing_ok=True)


def _key(thread_id: str) -> str:
    return hashlib.sha256(thread_id.encode()).hexdigest()[:32]


def _progress(values: dict[str, Any]) -> Progress:
    begun = values.get("begun")
    finished = tuple(values["finished"])
    return Progress(values["order"], values["step"], finished, Begun(**begun) if begun else None)
