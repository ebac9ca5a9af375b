"""The state machine with the verbs that people reach for by hand: holds, pruning, promotion, warm copies, single paths
brought back, sandboxes lost and picked up again, and statepoints of which nothing had changed.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from planarian_core.errors import LineageError, PlanarianError
from planarian_core.prune_choice import PrunePolicy
from planarian_core.testing.machine import PATHS, EnvironmentMachine, Saved, World
from planarian_core.testing.oracle import Description, assert_same

_WHICH, _AT = st.integers(0, 9), st.integers(0, 99)


class VerbsMachine(EnvironmentMachine):
    """The same promise: every statepoint that is still there can be had back exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()

    # --- statepoints that share ---

    @rule(which=_WHICH, count=st.integers(1, 2))
    def snapshot_again(self, which: int, count: int) -> None:
        """Nothing has changed since the last one, or not much."""
        self.snapshot(which)
        for _ in range(count):
            self.snapshot(which)

    # --- keeping and giving up ---

    @precondition(lambda self: self.saved)
    @rule(at=_AT)
    def hold(self, at: int) -> None:
        chosen = self._any(at)
        self.planarian.hold(self.planarian.registry.statepoint(chosen))
        self.held.add(chosen)

    @precondition(lambda self: self.held)
    @rule(at=_AT)
    def release(self, at: int) -> None:
        chosen = sorted(self.held)[at % len(self.held)]
        assert self.planarian.release(self.planarian.registry.statepoint(chosen))
        self.held.discard(chosen)

    @rule(which=_WHICH, keep=st.integers(0, 2), everywhere=st.booleans())
    def prune(self, which: int, keep: int, everywhere: bool) -> None:
        sandboxes = None if everywhere else [self._handle(self._world(which))]
        needed = {self.planarian.registry.branch(w.sandbox).head for w in self.worlds} | self.held
        pruned = self.planarian.prune(PrunePolicy(keep_last=keep), sandboxes).statepoints
        assert not needed & {*pruned}
        for statepoint in pruned:
            self.saved.pop(statepoint, None)
            owner = self.owners.pop(statepoint, None)
            if owner is not None:
                self._is_refused(owner, statepoint)

    def _is_refused(self, owner: str, statepoint: str) -> None:
        try:
            self.planarian.rollback(self.planarian.sandbox(owner), statepoint)
        except LineageError:
            return
        raise AssertionError("a pruned statepoint was gone back to")

    @precondition(lambda self: len(self.worlds) > 1)
    @rule(which=_WHICH)
    def remove(self, which: int) -> None:
        """A fork from which nothing grew is removed, with its statepoints."""
        world = self._world(which)
        if self.planarian.registry.branch(world.sandbox).forked_from is None:
            return
        forked = {self.planarian.registry.branch(other.sandbox).forked_from for other in self.worlds}
        if forked & {s.id for s in self.planarian.registry.statepoints(world.sandbox)}:
            return
        self.planarian.remove_sandbox(self._handle(world))
        self.worlds.remove(world)
        for statepoint in self._own(world):
            del self.saved[statepoint], self.owners[statepoint]
            self.held.discard(statepoint)

    # --- moving ---

    @precondition(lambda self: len(self.worlds) > 1)
    @rule(which=_WHICH)
    def promote(self, which: int) -> None:
        fork = self._world(which)
        origin = self.planarian.registry.branch(fork.sandbox).forked_from
        if origin is None:
            return
        owner = self.planarian.registry.statepoint(origin).sandbox_id
        source = next(world for world in self.worlds if world.sandbox == owner)
        saved = Saved(self._copy(fork.shadow), self._exact(fork), fork.count)
        promoted = self.planarian.promote(self._handle(fork), force=True).statepoint.id
        self.saved[promoted], self.owners[promoted] = saved, source.sandbox
        self._went_back(source, promoted)
        self._check_exact(fork, saved)

    @precondition(lambda self: self.saved and self.backends[0] != "directory")
    @rule(at=_AT, copies=st.integers(0, 2))
    def keep_warm(self, at: int, copies: int) -> None:
        statepoint = self.planarian.registry.statepoint(self._any(at))
        self.planarian.keep_warm(statepoint, copies, wait=True)
        assert len(self.planarian.standbys.copies(statepoint.id)) == copies

    @rule(which=_WHICH, kill=st.booleans())
    def lose(self, which: int, kill: bool) -> None:
        """All processes end, in good order or not; the sandbox is picked up again at its head."""
        world = self._world(which)
        statepoint = self.snapshot(which)
        world.count += 1
        assert self._ask(world, "add") == world.count
        handle = self._handle(world)
        live = handle.record.live
        assert live is not None
        if kill and live.init_pid > 1:
            os.kill(live.init_pid, signal.SIGKILL)
            while self.planarian.sandboxes.running(handle.record):
                time.sleep(0.01)
        else:
            handle.stop()
        assert self.planarian.attach(handle) is not None
        self._went_back(world, statepoint)

    @precondition(lambda self: self.saved)
    @rule(which=_WHICH, at=_AT, path=st.sampled_from(PATHS))
    def restore_path(self, which: int, at: int, path: str) -> None:
        """One path is as it was, what is neither in it nor above it is as it is."""
        world = self._world(which)
        own = self._own(world)
        if not own:
            return
        chosen = own[at % len(own)]
        before = self._exact(world)
        try:
            done = self.planarian.restore_paths(self._handle(world), chosen, [path])
        except PlanarianError:
            assert_same(self._exact(world), before)
            return
        now = self._exact(world)
        if not done.left_out:
            assert_same(_within(now, path), _within(self.saved[chosen].exact, path))
        assert_same(_beside(now, path), _beside(before, path))
        assert self._ask(world, "get") == world.count
        world.shadow = self._copy(self._root(world))

    # --- what they have in common ---

    def _world(self, which: int) -> World:
        return self.worlds[which % len(self.worlds)]

    def _any(self, at: int) -> str:
        return list(self.saved)[at % len(self.saved)]


def _within(tree: Description, path: str) -> Description:
    top = os.fsencode(path)
    return {name: _alone(entry) for name, entry in tree.items() if name == top or name.startswith(top + b"/")}


def _beside(tree: Description, path: str) -> Description:
    top = os.fsencode(path)
    return {
        name: _alone(entry)
        for name, entry in tree.items()
        if name != b"." and name != top and not name.startswith(top + b"/") and not top.startswith(name + b"/")
    }


def _alone(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is said of one name, without the other names of the same inode."""
    last = entry[-1]
    names = isinstance(last, tuple) and bool(last) and isinstance(last[0], bytes)
    return entry[:-1] if names else entry
