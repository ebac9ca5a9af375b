"""Brings a thread's environment where the graph's state says, and tells what that has changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from planarian_core import Planarian, Sandbox
from planarian_core.errors import LineageError
from planarian_langgraph.marks import Mark
from planarian_langgraph.threads import Begun, Progress, Thread, ThreadStore

TimeTravel = Literal["rollback", "fork"]


@dataclass(frozen=True)
class Step:
    """A call and the superstep in which it is made. ``nested``: in a subgraph. ``looks``: nothing will be done in the
    environment, as by a model call.
    """

    thread_id: str
    id: str
    call: str
    nested: bool = False
    looks: bool = False

    @property
    def checkpoint(self) -> str:
        """The checkpoint that the superstep began with."""
        return self.id.rpartition("@")[2]


@dataclass(frozen=True)
class Entered:
    """An environment that stands where the state says. ``context``: what the model must be told of a restore."""

    thread: Thread
    sandbox: Sandbox
    context: str = ""


class Bringer:
    """Whoever asks has the thread's turn."""

    def __init__(self, planarian: Planarian, store: ThreadStore, on_time_travel: TimeTravel) -> None:
        self._planarian = planarian
        self._store = store
        self._on_time_travel = on_time_travel

    def stay(self, thread: Thread, step: Step) -> Entered:
        """Enter the thread's newest environment as it is."""
        sandbox, revived = self.running(thread.current)
        return self._entered(thread, step, sandbox, thread.progress.get(sandbox.id, Progress()), [revived])

    def bring(self, thread: Thread, step: Step, mark: Mark) -> Entered:
        """Enter the environment of a mark, brought back or forked unless it is there.

        What other calls of the same superstep did stays. A call that was cut off is undone: no state knows of it.
        """
        target = mark["sandbox"] if mark["sandbox"] in thread.sandboxes else thread.current
        target = next((id_ for id_, progress in thread.progress.items() if progress.step == step.id), target)
        sandbox, revived = self.running(target)
        progress = thread.progress.get(target, Progress())
        again = progress.step == step.id
        others = again and any(call != step.call for call in progress.finished)
        newest = mark["sandbox"] in (target, thread.copied) and progress.order == mark["order"]
        told = [revived]
        if others:
            told.append(self._without_cut_off(sandbox, progress.begun))
        elif progress.begun is not None or not (self._is_at(sandbox, mark) or (newest and not revived)):
            elsewhere = self._on_time_travel == "fork" and not again and not newest
            if elsewhere or self._is_foreign(sandbox, mark):
                thread, sandbox, context = self._fork(thread, step, mark)
                progress = thread.progress[sandbox.id]
            else:
                context = _cut_off(progress.begun, newest) + self._rollback(sandbox, step, mark)
            told = [context]
        return self._entered(thread, step, sandbox, progress, told)

    def _entered(self, thread: Thread, step: Step, sandbox: Sandbox, progress: Progress, told: list[str]) -> Entered:
        finished = tuple(call for call in progress.finished if progress.step == step.id and call != step.call)
        begun = None if step.looks else Begun(step.call, self._head(sandbox), self._planarian.calls.count(sandbox.id))
        thread = thread.with_progress(sandbox.id, step=step.id, finished=finished, begun=begun)
        self._store.put(thread)
        return Entered(thread, sandbox, "\n\n".join(text for text in told if text))

    def running(self, sandbox_id: str) -> tuple[Sandbox, str]:
        """A sandbox of a thread; one that was stopped, or that a reboot ended, is picked up again, which is told."""
        sandbox = self._planarian.sandbox(sandbox_id)
        restored = None
        if not self._planarian.sandboxes.running(sandbox.record):
            restored = self._planarian.attach(sandbox)
        return sandbox, restored.to_markdown() if restored else ""

    def without_removed(self, thread: Thread) -> Thread | None:
        """None for a thread whose sandboxes were all removed by hand: it begins anew."""
        left = []
        for sandbox in thread.sandboxes:
            try:
                self._planarian.registry.sandbox(sandbox)
            except LineageError:
                continue
            left.append(sandbox)
        if len(left) == len(thread.sandboxes):
            return thread
        if not left:
            return None
        current = thread.current if thread.current in left else left[-1]
        return replace(thread, current=current, sandboxes=tuple(left))

    def _head(self, sandbox: Sandbox) -> str:
        return self._planarian.registry.branch(sandbox.id).head or ""

    def _is_at(self, sandbox: Sandbox, mark: Mark) -> bool:
        return self._head(sandbox) == mark["statepoint"] and self._planarian.calls.count(sandbox.id) == mark["calls"]

    def _without_cut_off(self, sandbox: Sandbox, begun: Begun | None) -> str:
        """Undo what a call did that was cut off, so that it is made again from where it began."""
        if begun is None:
            return ""
        if begun.calls:
            return (
                f"The tool call {begun.call} was cut off. What it had done is still there: there is no statepoint "
                "between it and the call before it."
            )
        return _cut_off(begun, True) + self._planarian.rollback(sandbox, begun.statepoint).to_markdown()

    def _rollback(self, sandbox: Sandbox, step: Step, mark: Mark) -> str:
        restored = self._planarian.rollback(sandbox, mark["statepoint"])
        return restored.to_markdown() + _belongs(step, mark)

    def _is_foreign(self, sandbox: Sandbox, mark: Mark) -> bool:
        """Whether the statepoint is one of the thread that this one was copied from: it can only be forked from."""
        try:
            self._planarian.resolve(sandbox, mark["statepoint"])
        except LineageError as error:
            if error.code == "statepoint-foreign":
                return True
            raise
        return False

    def _fork(self, thread: Thread, step: Step, mark: Mark) -> tuple[Thread, Sandbox, str]:
        source = self._planarian.owner_of(mark["statepoint"])
        fork, restored = self._planarian.fork_with_context(mark["statepoint"], of=source)
        return thread.with_sandbox(fork.id, mark["order"]), fork, restored.to_markdown() + _belongs(step, mark)


def _cut_off(begun: Begun | None, newest: bool) -> str:
    if begun is not None:
        return f"The tool call {begun.call} was cut off before its result was known; what it had done is undone.\n\n"
    return "" if newest else "The environment had gone on without this conversation; it is brought back.\n\n"


def _belongs(step: Step, mark: Mark) -> str:
    """Which statepoint belongs to the checkpoint, and what no statepoint holds."""
    text = f"\nThe checkpoint {step.checkpoint} of this conversation belongs to {mark['statepoint']}."
    if mark["calls"]:
        text += (
            f" {mark['calls']} tool calls that followed that statepoint had no statepoint of their own: what they did "
            "is not in the environment."
        )
    return text
