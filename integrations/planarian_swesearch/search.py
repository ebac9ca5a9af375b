"""A Monte Carlo tree search over statepoints, for terminal tasks: no git, no framework.

::

    with TreeSearch(planarian, sandbox, propose=propose, value=value, path="tree.json", forks=4) as search:
        best = search.run(Budget(iterations=50, target=1.0))
        print(search.tree.render())
        if best is not None:
            search.take(best)

The paper (section 7.2, "Harness-driven exploration") extends SWE-search, which keeps its states in git, to statepoints;
the search itself is that of arXiv 2410.20285 with plain UCT (:mod:`planarian_swesearch.selection`).
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from planarian_core import Planarian, Sandbox
from planarian_core.errors import ConfigurationError, LineageError, PlanarianError
from planarian_core.faults import reach
from planarian_core.model import RestoreContext, new_id
from planarian_swesearch.attempt import Act, Attempt, Callables, Propose, Value
from planarian_swesearch.selection import select
from planarian_swesearch.states import InForks, InPlace, Place, description_of
from planarian_swesearch.storage import TreeFile
from planarian_swesearch.tree import Node, NodeStatus, Tree
from planarian_swesearch.upkeep import Upkeep
from planarian_swesearch.values import Action, Budget, Event, in_shell

_log = logging.getLogger(__name__)
_EXPLORATION = 2**0.5


class TreeSearch:
    """One search, begun or gone on with: a tree that ``path`` holds already is taken up as it is.

    Args:
        planarian: an open runtime; it stays the caller's to close.
        sandbox: what is searched; its present state is the root. With forks it isn't touched until :meth:`take`.
        propose: the actions to try from a node, best first; none when there are no more. Asked again when all were
            tried, until there are ``width``, so it sees in ``node.outcomes`` how they ended. Those that were proposed
            before are passed over, so one that always gives the same list is fine. Runs while states are captured.
        value: what a node is worth, right after its action: ``node.action``, ``node.observation``, ``node.path()``, and
            the sandbox as the action left it. A command in it waits for the capture; what it changes is not in the
            state.
        act: does an action in a sandbox. What it returns is the node's observation, as text; a
            :class:`~planarian_core.model.CommandResult` shows its output. An exception, or a command that timed out, is
            a failed node. It must end by itself: give commands a ``timeout``.
        path: where the tree is saved after each round; outside of what the sandbox can write.
        forks: how many forks at a time; 0 works in the sandbox itself, by rollback.
        exploration: the constant of UCT.
        worst: what a failed action is worth.
        seed: for ties. The same seed and callables that give the same give the same tree, whatever takes how long.
        accept_pivots: without forks: go back past remote effects that can't be undone.
        on_event: gets an :class:`Event` for each thing that happens, in the thread that called :meth:`run`.

    ``propose``, ``act`` and ``value`` run in threads, up to ``forks`` at once; they read nodes, and change none.

    Raises:
        ConfigurationError, PlanarianError: the path can't be used, or its tree is another sandbox's, or in use.
        CaptureError: there is no root.
    """

    def __init__(
        self,
        planarian: Planarian,
        sandbox: Sandbox,
        *,
        propose: Propose,
        value: Value,
        path: str | Path,
        act: Act | None = None,
        forks: int = 0,
        exploration: float = _EXPLORATION,
        worst: float = 0.0,
        seed: int = 0,
        accept_pivots: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if not 0 <= forks <= 256:
            raise ConfigurationError(f"{forks} forks at a time can't be meant", code="search-forks", remedy="0 to 256")
        self._planarian = planarian
        self._sandbox = sandbox
        self._callables = Callables(propose, act or in_shell(), value, worst)
        self._forks = forks
        self._exploration = exploration
        self._on_event = on_event
        self._file = TreeFile(path, sandbox.record)
        try:
            found = self._file.load()
            self.tree = self._begun(seed) if found is None else self._own(found)
        except BaseException:
            self._file.close()
            raise
        self._upkeep = Upkeep(planarian, sandbox, self.tree, self._tell)
        self._place: Place = (
            InForks(planarian, sandbox, self.tree.id)
            if forks
            else InPlace(planarian, sandbox, accept_pivots=accept_pivots)
        )

    def _begun(self, seed: int) -> Tree:
        tree = Tree(new_id("search"), str(self._planarian.home), self._sandbox.id, seed)
        description = description_of(tree.id, 0, "root")
        root = self._planarian.snapshot(self._sandbox, description=description, automatic=True)
        self._planarian.hold(root, description)
        tree.root.statepoint = root.id
        self._file.save(tree)
        return tree

    def _own(self, tree: Tree) -> Tree:
        if (tree.home, tree.sandbox) != (str(self._planarian.home), self._sandbox.id):
            raise ConfigurationError(
                f"{self._file.path} is the tree of sandbox {tree.sandbox} in {tree.home}",
                code="search-foreign",
                state="nothing was changed",
                remedy="search that sandbox, or give this search a path of its own",
            )
        return tree

    # --- searching ---

    def run(self, budget: Budget | None = None) -> Node | None:
        """Search until the budget is used up; the best node, None where there is none. May be called again, and after a
        restart with the same path: it goes on.

        Raises:
            LineageError: ``search-root-lost``: somebody removed the root's state.
            PlanarianError: the environment failed (``code`` is that of its error), or a callable did
                (``search-callable``). What was done until then is saved; the action in question is tried again by the
                next :meth:`run`.
        """
        budget = budget or Budget()
        deadline = None if budget.seconds is None else time.monotonic() + budget.seconds
        self._upkeep.take_stock()
        with ThreadPoolExecutor(max(self._forks, 1), thread_name_prefix="search") as pool:
            try:
                self._rounds(pool, budget, deadline)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                self._clear_up()
                raise
        spent = self._upkeep.mark_spent(budget, at_least=1)
        self._file.save(self.tree)
        self._upkeep.release(spent)
        return self.tree.best()

    def _rounds(self, pool: ThreadPoolExecutor, budget: Budget, deadline: float | None) -> None:
        """The states of a round are captured, and kept, while the proposals for the next one are made."""
        attempts: list[Attempt] = []
        while True:
            picked = [] if self._enough(budget, deadline) else self._pick(budget)
            asked = {node.id: node for node in picked if not node.untried}
            for node in asked.values():
                node.outcomes = self._upkeep.outcomes(node, budget.target)
            proposing = [(node, pool.submit(self._callables.proposals, node)) for node in asked.values()]
            errors: list[BaseException] = self._keep(attempts, budget)
            errors += self._collect(proposing)
            self._check(errors)
            if not picked:
                return
            self._fill(budget, picked)
            attempts, failed = self._try(pool, picked)
            if failed:
                self._check([*failed, *self._keep(attempts, budget)])

    def _enough(self, budget: Budget, deadline: float | None) -> bool:
        if deadline is not None and time.monotonic() >= deadline:
            return True
        values = [node.value for node in self.tree.nodes.values() if node.value is not None]
        if budget.target is not None and values and max(values) >= budget.target:
            return True
        return budget.stop is not None and budget.stop(self.tree)

    def _pick(self, budget: Budget) -> list[Node]:
        """The nodes to go on from in this round, one for each action."""
        picked: list[Node] = []
        while (node := self._next(budget, picked)) is not None:
            picked.append(node)
            _reserve(node, 1)
        return picked

    def _fill(self, budget: Budget, picked: list[Node]) -> None:
        """Where nothing was proposed there is nothing to try; where more was than one action, more can be."""
        for empty in [node for node in picked if not node.untried]:
            picked.remove(empty)
            _reserve(empty, -1)
        while (node := self._next(budget, picked)) is not None and len(node.untried) > node.reserved:
            picked.append(node)
            _reserve(node, 1)

    def _next(self, budget: Budget, picked: Sequence[Node]) -> Node | None:
        if len(picked) >= min(max(self._forks, 1), budget.iterations - (len(self.tree.nodes) - 1)):
            return None
        chance = random.Random(f"{self.tree.seed}:{len(self.tree.nodes)}:{len(picked)}")  # noqa: S311  # ties
        return select(self.tree, budget, self._exploration, chance)

    def _collect(self, proposing: Sequence[tuple[Node, Future[list[Action]]]]) -> list[BaseException]:
        errors: list[BaseException] = []
        for node, future in proposing:
            try:
                new = future.result()
            except BaseException as error:
                errors.append(self._stopped(f"when actions for node {node.id} were proposed", error))
                continue
            node.untried += new
            node.exhausted = not new
            self._tell("proposed", node, f"{len(new)} actions")
        if proposing:
            self._file.save(self.tree)
            reach("search.proposed")
        return errors

    def _try(self, pool: ThreadPoolExecutor, picked: Sequence[Node]) -> tuple[list[Attempt], list[BaseException]]:
        """Try an action from each; those that went well count from now on."""
        attempts: list[Attempt] = []
        number = self.tree.next_id()
        for node in picked:
            child = Node(number + len(attempts), node, node.untried.pop(0))
            attempts.append(Attempt(self._planarian, self._place, self._callables, self.tree.id, child))
        running = [(attempt, pool.submit(attempt.run)) for attempt in attempts]
        done: list[Attempt] = []
        errors: list[BaseException] = []
        for attempt, future in running:
            error = future.exception()
            if error is None:
                done.append(attempt)
            else:
                errors.append(self._stopped(f"at {attempt.node.label()!r} from node {_parent(attempt).id}", error))
        for attempt, future in reversed(running):
            if future.exception() is not None:
                _parent(attempt).untried.insert(0, attempt.node.action)
        for node in picked:
            _reserve(node, -1)
        for attempt in done:
            attempt.node.capturing = attempt.capture is not None
            self.tree.add(attempt.node)
        return done, errors

    def _keep(self, attempts: Sequence[Attempt], budget: Budget) -> list[BaseException]:
        """What a round brought becomes durable: its states, the tree, then the outcomes."""
        errors: list[BaseException] = []
        for attempt in attempts:
            node = attempt.node
            try:
                if node.capturing:
                    attempt.keep()
            except Exception as error:
                self.tree.take_out(node)
                errors.append(self._stopped(f"when the state of node {node.id} was captured", error))
            finally:
                node.capturing = False
        if attempts:
            spent = self._upkeep.mark_spent(budget)
            self._file.save(self.tree)
            reach("search.saved")
            kept = [attempt.node for attempt in attempts if attempt.node.id in self.tree.nodes]
            self._upkeep.add_outcomes(kept, budget.target)
            for node in kept:
                failed = node.status is NodeStatus.FAILED
                self._tell("failed" if failed else "judged", node, node.observation if failed else node.text)
            self._upkeep.release(spent)
        return errors

    def _clear_up(self) -> None:
        """An error ends the run: what is under way is let go of; the next run does it again."""
        for node in [node for node in self.tree.nodes.values() if node.capturing]:
            self.tree.take_out(node)
        try:
            self._upkeep.sweep()
        except (PlanarianError, OSError) as error:
            _log.warning("Forks of the search are left for its next run to remove: %s", error)

    # --- the result ---

    def take(self, node: Node | None = None, *, force: bool = False, files_only: bool = False) -> RestoreContext:
        """Bring the searched sandbox to a node's state, the best one's if None. A safety statepoint keeps what was.

        Args:
            force: also where the sandbox was worked in since the search began.
            files_only: as in :meth:`planarian_core.Planarian.rollback`.

        Raises:
            LineageError: ``search-nothing``: there is no such state (any more).
            RestoreError, CompensationError: ``state`` says where the sandbox is.
        """
        chosen = node or self.tree.best()
        if chosen is None or not chosen.held:
            raise LineageError(
                "there is no state to take" if chosen is None else f"the state of node {chosen.id} was given up",
                code="search-nothing",
                state="nothing was changed",
                remedy="search on, or choose a node whose state is held",
            )
        head = self._planarian.registry.branch(self._sandbox.id).head
        own = {each.statepoint for each in self.tree.nodes.values()}
        worked = head not in own or self._planarian.calls.count(self._sandbox.id)
        if self._forks and worked and not force:
            raise LineageError(
                f"{self._sandbox.id} was worked in since the search began",
                code="search-source-moved",
                state="nothing was changed",
                remedy="take(force=True): a safety statepoint keeps what is set aside",
            )
        return self._planarian.rollback(self._sandbox, chosen.statepoint, files_only=files_only)

    def end(self, keep: Iterable[Node] = ()) -> None:
        """The search is over: give up every state but those of ``keep``, the root's too. The tree stays as a record."""
        kept = {node.id for node in keep}
        nodes = [node for node in self.tree.nodes.values() if node.held and node.id not in kept]
        for node in nodes:
            node.released = True
        self._file.save(self.tree)
        self._upkeep.release(nodes)

    def close(self) -> None:
        """Let the tree's file go. States stay, for a search that goes on. Idempotent."""
        self._file.close()

    def __enter__(self) -> TreeSearch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- telling ---

    def _tell(self, kind: str, node: Node | None, text: str) -> None:
        if self._on_event is not None:
            self._on_event(Event(kind, None if node is None else node.id, text))

    def _stopped(self, when: str, error: BaseException) -> BaseException:
        """An error as the caller gets it: with what is true of the search, and how it goes on."""
        if not isinstance(error, Exception):
            return error
        saved = f"the tree is saved in {self._file.path}"
        if not isinstance(error, PlanarianError):
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free disk space" if full else "see the cause"
            known = PlanarianError(f"{type(error).__name__}: {error}", code="search-environment", remedy=remedy)
        else:
            known = error
        stopped = PlanarianError(
            f"the search stopped {when}: {known.message}",
            code=known.code,
            state="; ".join(filter(None, (known.state, saved))),
            remedy=f"{known.remedy or 'mend the cause'}; then run() the search again: it goes on",
        )
        stopped.__cause__ = error
        return stopped

    def _check(self, errors: Sequence[BaseException]) -> None:
        """Raise the first of some errors; the others are said with it."""
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and: {other}")
            raise errors[0]


def _parent(attempt: Attempt) -> Node:
    assert attempt.node.parent is not None
    return attempt.node.parent


def _reserve(node: Node, count: int) -> None:
    node.reserved += count
    for each in node.path():
        each.passing += count
