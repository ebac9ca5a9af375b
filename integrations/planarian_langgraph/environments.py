"""The environments of a graph's threads: found or made, brought where the graph's state says, marked after each call.

LangGraph's own gestures move only its state: time travel (``invoke`` with an old checkpoint), ``update_state``, a
replay, a resume. The environment is not moved then, since nothing tells what will be read and what will be run. It is
compared with the state, and moved if need be, at the last moment: before a model or a tool is about to work with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from planarian_core import Planarian, Sandbox
from planarian_core.coroutines import in_thread
from planarian_core.errors import ConfigurationError, LineageError
from planarian_core.model import Status
from planarian_core.prune_choice import PrunePolicy
from planarian_langgraph.bringing import Bringer, Entered, Step, TimeTravel
from planarian_langgraph.marks import Mark
from planarian_langgraph.threads import Progress, Thread, ThreadStore
from planarian_langgraph.turns import Turns

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
        self._bringer = Bringer(planarian, self.store, on_time_travel)
        self._turns = Turns(self.store.lock, planarian.config.lock_timeout)

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
        """A call's time in the environment, which stands where ``mark`` says. Calls of one thread take turns; a call
        inside another one (a tool that runs an agent) is part of that one's turn.

        Raises:
            PlanarianError: it can't be brought there.
        """
        if step.thread_id in _entered.get({}):
            yield _entered.get({})[step.thread_id]
            return
        with self._turns.turn(step.thread_id), self._inside(step, self.enter(step, mark)) as entered:
            yield entered

    @asynccontextmanager
    async def acall(self, step: Step, mark: Mark | None) -> AsyncIterator[Entered]:
        """:meth:`call` for coroutines."""
        if step.thread_id in _entered.get({}):
            yield _entered.get({})[step.thread_id]
            return
        async with self._turns.aturn(step.thread_id):
            with self._inside(step, await in_thread(partial(self.enter, step, mark))) as entered:
                yield entered

    @contextmanager
    def _inside(self, step: Step, entered: Entered) -> Iterator[Entered]:
        token = _entered.set({**_entered.get({}), step.thread_id: entered})
        try:
            yield entered
        finally:
            _entered.reset(token)

    def enter(self, step: Step, mark: Mark | None) -> Entered:
        """Find or make the thread's environment, and bring it where the state says. The caller has the turn."""
        thread = self.store.find(step.thread_id)
        if thread is not None:
            thread = self._bringer.without_removed(thread)
        if thread is None:
            thread, mark = self._begin(step.thread_id, mark)
        if mark is None and step.nested:
            return self._bringer.stay(thread, step)
        mark = mark or Mark(sandbox=thread.sandboxes[0], statepoint=thread.origin, calls=0, order=0)
        return self._bringer.bring(thread, step, mark)

    def leave(self, step: Step, *, description: str = "") -> Mark:
        """A call has ended: take a statepoint if the policy says so, and mark where the environment is now."""
        entered = _entered.get({})[step.thread_id]
        sandbox = entered.sandbox  # the outer call's, of a nested one
        if self.snapshot:
            self.planarian.snapshot_by_policy(sandbox, description=description)
        thread = self.store.find(step.thread_id) or entered.thread
        progress = thread.progress.get(sandbox.id, Progress())
        order = progress.order + 1
        finished = (*progress.finished, step.call) if progress.step == step.id else (step.call,)
        # What a nested call did is known when the call around it has ended.
        begun = progress.begun if progress.begun and progress.begun.call != step.call else None
        changes = {"order": order, "step": step.id, "finished": finished, "begun": begun}
        self.store.put(thread.with_progress(sandbox.id, **changes))
        return self._mark(sandbox, order)

    def pass_by(self, step: Step) -> Mark:
        """Mark where the environment is, without a call having been made."""
        entered = _entered.get({})[step.thread_id]
        thread = self.store.find(step.thread_id) or entered.thread
        order = thread.progress.get(entered.sandbox.id, Progress()).order + 1
        self.store.put(thread.with_progress(entered.sandbox.id, order=order))
        return self._mark(entered.sandbox, order)

    def _mark(self, sandbox: Sandbox, order: int) -> Mark:
        head = self.planarian.registry.branch(sandbox.id).head or ""
        return Mark(sandbox=sandbox.id, statepoint=head, calls=self.planarian.calls.count(sandbox.id), order=order)

    def _begin(self, thread_id: str, mark: Mark | None) -> tuple[Thread, Mark | None]:
        """A thread that isn't known: with a mark, a copy of another one or one that was forgotten; else new."""
        if mark is not None:
            source, _ = self._bringer.running(mark["sandbox"])
            own = source
            if self.store.has_sandbox(source.id):
                own = self.planarian.fork(mark["statepoint"], of=source)
            thread = Thread(thread_id, own.id, mark["statepoint"], (own.id,), copied=source.id)
            thread = thread.with_progress(own.id, order=mark["order"])
        else:
            sandbox = self._make(thread_id)
            origin = self.planarian.registry.branch(sandbox.id).head
            if origin is None:
                origin = self.planarian.snapshot(sandbox, description="the beginning of the thread").id
            thread = Thread(thread_id, sandbox.id, origin, (sandbox.id,)).with_progress(sandbox.id)
        self.store.put(thread)
        return thread, mark

    # --- threads as a whole ---

    def copy(self, source_id: str, target_id: str) -> None:
        """Give a copied thread an environment of its own: a fork of the source's newest state."""
        with self._turns.turn(source_id):
            source = self.store.find(source_id)
            if source is None or self.store.find(target_id) is not None:
                return
            sandbox, _ = self._bringer.running(source.current)
            fork = self.planarian.fork(self.planarian.snapshot(sandbox, description=f"copied to thread {target_id}"))
            order = source.progress.get(sandbox.id, Progress()).order
            target = Thread(target_id, fork.id, source.origin, (fork.id,), copied=sandbox.id)
            self.store.put(target.with_progress(fork.id, order=order))

    def remove(self, thread_id: str) -> None:
        """Remove a thread's sandboxes with all their statepoints. Idempotent."""
        with self._turns.turn(thread_id):
            thread = self.store.find(thread_id)
            for sandbox_id in reversed(thread.sandboxes if thread else ()):
                self._give_up(sandbox_id)
            self.store.remove(thread_id)
        left: list[str] = []
        while (now := self.store.left_over()) != left:  # each that goes may free another
            left = now
            for sandbox_id in left:
                self._give_up(sandbox_id)

    def _give_up(self, sandbox_id: str) -> None:
        """Remove a sandbox, if it is there. One that another thread's was forked from is stopped, and goes with that
        one.
        """
        try:
            sandbox = self.planarian.sandbox(sandbox_id)
            self.planarian.remove_sandbox(sandbox)
        except LineageError as error:
            if error.code == "sandbox-needed":
                sandbox.stop()
                self.store.leave_over(sandbox_id)
                return
            if error.code != "sandbox-unknown":
                raise
        self.store.forget_left_over(sandbox_id)

    def prune(self, thread_id: str, keep: Sequence[str]) -> None:
        """Give up a thread's statepoints but those to keep, heads, named ones, and what forks grew from."""
        with self._turns.turn(thread_id):
            thread = self.store.find(thread_id)
            thread = self._bringer.without_removed(thread) if thread else None
            if thread is None:
                return
            held = [self._held(statepoint) for statepoint in {*keep, thread.origin}]
            try:
                sandboxes = [self.planarian.sandbox(sandbox) for sandbox in thread.sandboxes]
                self.planarian.prune(PrunePolicy(keep_last=1), sandboxes)
            finally:
                for statepoint in filter(None, held):
                    self.planarian.release(statepoint)

    def _held(self, statepoint: str) -> str:
        """The statepoint if it is there and was not held before."""
        known = self.planarian.registry.find(statepoint)
        if known is None or known.status is not Status.COMMITTED or self.planarian.registry.holds.get(statepoint):
            return ""
        self.planarian.hold(known, "named by a checkpoint of LangGraph")
        return statepoint
