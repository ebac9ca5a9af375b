"""The environments of a graph's threads: found or made, brought where the graph's state says, marked after each call.

LangGraph's own gestures move only its state: time travel (``invoke`` with an old checkpoint), ``update_state``, a
replay, a resume. The environment is not moved then, since nothing tells what will be read and what will be run. It is
compared with the state, and moved if need be, at the last moment: before a model or a tool is about to work with it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anyio import to_thread

from planarian_core import Planarian, Sandbox
from planarian_core.errors import ConfigurationError, LineageError
from planarian_core.locks import SandboxLock
from planarian_langgraph.marks import Mark
from planarian_langgraph.threads import Progress, Thread, ThreadStore

TimeTravel = Literal["rollback", "fork"]


@dataclass(frozen=True)
class Step:
    """A call and the superstep in which it is made. ``nested``: in a subgraph."""

    thread_id: str
    id: str
    call: str
    nested: bool = False


@dataclass(frozen=True)
class Entered:
    """An environment that stands where the state says. ``context``: what the model must be told of a restore."""

    thread: Thread
    sandbox: Sandbox
    context: str = ""


_entered: ContextVar[dict[str, Entered]] = ContextVar("planarian_langgraph_entered")


class Environments:
    """One environment, or a tree of forks, for each thread.

    Args:
        planarian: an open runtime; it stays the caller's to close.
        workspace: the directory that new threads' sandboxes stand on.
        on_time_travel: what a state from another moment than the environment's does: roll the environment back, or
            fork it, so that the line of work that was left goes on where it was.
        snapshot: whether statepoints are taken by the runtime's policy after calls; without, only by the tools.
        make: makes a thread's sandbox instead of ``planarian.create_sandbox(workspace, **options)``.
        options: for ``create_sandbox``.
    """

    def __init__(
        self,
        planarian: Planarian,
        workspace: str | Path = "",
        *,
        on_time_travel: TimeTravel = "rollback",
        snapshot: bool = True,
        make: Callable[[str], Sandbox] | None = None,
        **options: Any,
    ) -> None:
        if on_time_travel not in ("rollback", "fork"):
            raise ConfigurationError(f"on_time_travel={on_time_travel!r} is unknown", remedy="rollback or fork")
        if make is None and not workspace:
            raise ConfigurationError("threads need a workspace", remedy="Environments(planarian, workspace=...)")
        self.planarian = planarian
        self.store = ThreadStore(planarian)
        self.on_time_travel = on_time_travel
        self.snapshot = snapshot
        self._make = make or (lambda thread_id: planarian.create_sandbox(workspace, **options))
        self._guard = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}

    # --- for tools ---

    def sandbox(self) -> Sandbox:
        """The sandbox of the call that is under way: what a tool works in.

        Raises:
            ConfigurationError: no wrapper is around the call.
        """
        found = _entered.get({})
        if not found:
            raise ConfigurationError(
                "no environment is entered here",
                code="no-environment",
                remedy="use StatepointMiddleware, wrap_tool_calls or environment_node around the tool",
            )
        return list(found.values())[-1].sandbox

    # --- a turn: entering, leaving ---

    @contextmanager
    def call(self, step: Step, mark: Mark | None) -> Iterator[Entered]:
        """A call's time in the environment, which stands where ``mark`` says. Calls of one thread take turns, in this
        process; a call inside another one (a tool that runs an agent) is part of that one's turn.

        Raises:
            PlanarianError: it can't be brought there.
        """
        if step.thread_id in _entered.get({}):
            yield _entered.get({})[step.thread_id]
            return
        with self._turn(step.thread_id), self._inside(step, self.enter(step, mark)) as entered:
            yield entered

    @asynccontextmanager
    async def acall(self, step: Step, mark: Mark | None) -> AsyncIterator[Entered]:
        """:meth:`call` for coroutines."""
        if step.thread_id in _entered.get({}):
            yield _entered.get({})[step.thread_id]
            return
        turn = self._turn(step.thread_id)
        await to_thread.run_sync(turn.acquire)
        try:
            with self._inside(step, await to_thread.run_sync(self.enter, step, mark)) as entered:
                yield entered
        finally:
            turn.release()

    def _turn(self, thread_id: str) -> threading.Lock:
        with self._guard:
            return self._turns.setdefault(thread_id, threading.Lock())

    @contextmanager
    def _inside(self, step: Step, entered: Entered) -> Iterator[Entered]:
        token = _entered.set({**_entered.get({}), step.thread_id: entered})
        try:
            yield entered
        finally:
            _entered.reset(token)

    def enter(self, step: Step, mark: Mark | None) -> Entered:
        """Find or make the thread's environment, and bring it where the state says."""
        with self._locked(step.thread_id):
            thread = self.store.find(step.thread_id)
            if thread is not None:
                thread = self._without_removed(thread)
            if thread is None:
                thread, mark = self._begin(step.thread_id, mark)
            if mark is None and step.nested:
                return Entered(thread, self._sandbox(thread.current))
            mark = mark or Mark(sandbox=thread.sandboxes[0], statepoint=thread.origin, calls=0, order=0)
            return self._brought(thread, step, mark)

    def leave(self, step: Step, *, description: str = "") -> Mark:
        """A call has ended: take a statepoint if the policy says so, and mark where the environment is now."""
        entered = _entered.get({})[step.thread_id]
        sandbox = entered.sandbox  # the outer call's, of a nested one
        if self.snapshot:
            self.planarian.snapshot_by_policy(sandbox, description=description)
        with self._locked(step.thread_id):
            thread = self.store.find(step.thread_id) or entered.thread
            progress = thread.progress.get(sandbox.id, Progress())
            order = progress.order + 1
            finished = (*progress.finished, step.call) if progress.step == step.id else (step.call,)
            self.store.put(thread.with_progress(sandbox.id, order=order, step=step.id, finished=finished))
        return self._mark(sandbox, order)

    def pass_by(self, step: Step) -> Mark:
        """Mark where the environment is, without a call having been made."""
        entered = _entered.get({})[step.thread_id]
        with self._locked(step.thread_id):
            thread = self.store.find(step.thread_id) or entered.thread
            order = thread.progress.get(entered.sandbox.id, Progress()).order + 1
            self.store.put(thread.with_progress(entered.sandbox.id, order=order))
        return self._mark(entered.sandbox, order)

    def _mark(self, sandbox: Sandbox, order: int) -> Mark:
        head = self.planarian.registry.branch(sandbox.id).head or ""
        return Mark(sandbox=sandbox.id, statepoint=head, calls=self.planarian.calls.count(sandbox.id), order=order)

    # --- where an environment is, and where it should be ---

    def _begin(self, thread_id: str, mark: Mark | None) -> tuple[Thread, Mark | None]:
        """A thread that isn't known: with a mark, of another home's or a forgotten one; else new."""
        if mark is not None:
            source = self._sandbox(mark["sandbox"])
            thread = Thread(thread_id, source.id, mark["statepoint"], (source.id,))
            thread = thread.with_progress(source.id, order=mark["order"])
        else:
            sandbox = self._make(thread_id)
            origin = self.planarian.registry.branch(sandbox.id).head
            if origin is None:
                origin = self.planarian.snapshot(sandbox, description="the beginning of the thread").id
            thread = Thread(thread_id, sandbox.id, origin, (sandbox.id,)).with_progress(sandbox.id)
        self.store.put(thread)
        return thread, mark

    def _brought(self, thread: Thread, step: Step, mark: Mark) -> Entered:
        target = mark["sandbox"] if mark["sandbox"] in thread.sandboxes else thread.current
        target = next((id_ for id_, progress in thread.progress.items() if progress.step == step.id), target)
        sandbox, progress = self._sandbox(target), thread.progress.get(target, Progress())
        again = progress.step == step.id
        others = tuple(call for call in progress.finished if again and call != step.call)
        newest = target == mark["sandbox"] and progress.order == mark["order"]
        # Again: a further call of the superstep, or one made once more. What other ones did stays.
        there = (bool(others) if again else newest) or self._is_at(sandbox, mark)
        context = ""
        if not there and self.on_time_travel == "fork" and not again:
            thread, sandbox, context = self._fork(thread, sandbox, mark)
        elif not there:
            context = self._rollback(sandbox, mark)
        thread = thread.with_progress(sandbox.id, step=step.id, finished=others)
        self.store.put(thread)
        return Entered(thread, sandbox, context)

    def _is_at(self, sandbox: Sandbox, mark: Mark) -> bool:
        head = self.planarian.registry.branch(sandbox.id).head
        return head == mark["statepoint"] and self.planarian.calls.count(sandbox.id) == mark["calls"]

    def _rollback(self, sandbox: Sandbox, mark: Mark) -> str:
        restored = self.planarian.rollback(sandbox, mark["statepoint"])
        return restored.to_markdown() + _uncaptured(mark)

    def _fork(self, thread: Thread, source: Sandbox, mark: Mark) -> tuple[Thread, Sandbox, str]:
        fork, restored = self.planarian.fork_with_context(mark["statepoint"], of=source)
        return thread.with_sandbox(fork.id, mark["order"]), fork, restored.to_markdown() + _uncaptured(mark)

    def _without_removed(self, thread: Thread) -> Thread | None:
        """None for a thread whose sandboxes were all removed by hand: it begins anew."""
        left = []
        for sandbox in thread.sandboxes:
            try:
                self.planarian.registry.sandbox(sandbox)
            except LineageError:
                continue
            left.append(sandbox)
        if len(left) == len(thread.sandboxes):
            return thread
        if not left:
            return None
        current = thread.current if thread.current in left else left[-1]
        return Thread(thread.id, current, thread.origin, tuple(left), thread.progress)

    def _sandbox(self, sandbox_id: str) -> Sandbox:
        """A sandbox of a thread; one that was stopped, or that a reboot ended, is picked up again."""
        sandbox = self.planarian.sandbox(sandbox_id)
        if not self.planarian.sandboxes.running(sandbox.record):
            self.planarian.attach(sandbox)
        return sandbox

    def _locked(self, thread_id: str) -> Any:
        """Other processes that serve the same thread wait."""
        name = self.store._file(thread_id).stem
        timeout = self.planarian.config.lock_timeout
        return SandboxLock(self.planarian.home / "locks", f"langgraph-{name}").acquire(exclusive=True, timeout=timeout)

    # --- threads as a whole ---

    def copy(self, source_id: str, target_id: str) -> None:
        """Give a copied thread an environment of its own: a fork of the source's newest state."""
        with self._locked(source_id):
            source = self.store.find(source_id)
            if source is None or self.store.find(target_id) is not None:
                return
            sandbox = self._sandbox(source.current)
            fork = self.planarian.fork(self.planarian.snapshot(sandbox, description=f"copied to thread {target_id}"))
            order = source.progress.get(sandbox.id, Progress()).order
            self.store.put(Thread(target_id, fork.id, source.origin, (fork.id,)).with_progress(fork.id, order=order))

    def remove(self, thread_id: str) -> None:
        """Remove a thread's sandboxes with all their statepoints. Idempotent."""
        with self._locked(thread_id):
            thread = self.store.find(thread_id)
            for sandbox_id in reversed(thread.sandboxes if thread else ()):
                try:
                    self.planarian.remove_sandbox(self.planarian.sandbox(sandbox_id))
                except LineageError:
                    continue
            self.store.remove(thread_id)


def _uncaptured(mark: Mark) -> str:
    if not mark["calls"]:
        return ""
    return (
        f"\n{mark['calls']} tool calls that followed that statepoint had no statepoint of their own: what they did is "
        "not in the environment."
    )
