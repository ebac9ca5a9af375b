"""One action that is tried: in a thread of its own, from the state of its parent to a judgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from planarian_core import Planarian, Sandbox
from planarian_core.context import clip
from planarian_core.errors import PlanarianError, SandboxError
from planarian_core.faults import reach
from planarian_core.model import Statepoint
from planarian_swesearch.states import Place, description_of
from planarian_swesearch.tree import Node, NodeStatus
from planarian_swesearch.values import OBSERVATION_LIMIT, Action, ActionTimedOut, Judgement, judged, key_of, observed

Propose = Callable[[Node], Sequence[Action]]
Act = Callable[[Sandbox, Action], object]
Value = Callable[[Node, Sandbox], Judgement | float]


@dataclass(frozen=True)
class Callables:
    """What the caller of a search brings: see :class:`planarian_swesearch.search.TreeSearch`."""

    propose: Propose
    act: Act
    value: Value
    worst: float

    def proposals(self, node: Node) -> list[Action]:
        """What is proposed from a node and was not before, each once.

        Raises:
            PlanarianError: ``search-callable``.
        """
        seen = {key_of(action) for action in (*node.untried, *(child.action for child in node.children))}
        new: list[Action] = []
        try:
            for action in self.propose(node):
                key = key_of(action)
                if key not in seen:
                    seen.add(key)
                    new.append(action)
        except Exception as error:
            raise _failed("propose", error) from error
        return new

    def judgement(self, node: Node, sandbox: Sandbox) -> Judgement:
        """What a node is worth. PlanarianError: ``search-callable``."""
        try:
            return judged(self.value(node, sandbox))
        except PlanarianError:
            raise
        except Exception as error:
            raise _failed("value", error) from error


def _failed(name: str, error: Exception) -> PlanarianError:
    return PlanarianError(f"{name}: {type(error).__name__}: {error}", code="search-callable", remedy=f"mend {name}")


@dataclass
class Attempt:
    """A node that is coming to be. ``capture`` is that of its state; None where the action failed."""

    planarian: Planarian
    place: Place
    callables: Callables
    search_id: str
    node: Node
    sandbox: Sandbox | None = None
    capture: Future[Statepoint] | None = None

    @property
    def description(self) -> str:
        return description_of(self.search_id, self.node.id, self.node.label())

    def run(self) -> None:
        """Try the action. While the new state is being captured, it is judged.

        Raises:
            PlanarianError: the environment failed, and not the action.
            Exception: the judgement failed.
        """
        assert self.node.parent is not None
        self.sandbox = self.place.enter(self.node.parent.statepoint, self.node.id)
        reach("search.entered")
        if not self._act(self.sandbox):
            self.leave()
            return
        reach("search.acted")
        self.capture = self.planarian.snapshot(self.sandbox, description=self.description, automatic=True, wait=False)
        try:
            judgement = self.callables.judgement(self.node, self.sandbox)
        except BaseException:
            self.capture.exception()
            self.leave()
            raise
        self.node.value, self.node.text = judgement.value, judgement.text
        if judgement.terminal:
            self.node.status = NodeStatus.TERMINAL

    def _act(self, sandbox: Sandbox) -> bool:
        """Whether the action could be done; if not, that is what the node is: failed."""
        try:
            self.node.observation = observed(self.callables.act(sandbox, self.node.action))
            return True
        except SandboxError as error:
            if self.planarian.sandboxes.running(sandbox.record):
                raise
            why = f"the sandbox ended: {error.message}"  # the action did that: its parent's state isn't touched
        except PlanarianError:
            raise
        except ActionTimedOut as error:
            why = str(error)
        except Exception as error:  # whatever the caller's code raises
            why = f"{type(error).__name__}: {error}"
        self.node.status, self.node.value = NodeStatus.FAILED, self.callables.worst
        self.node.observation = clip(why, OBSERVATION_LIMIT)
        return False

    def keep(self) -> None:
        """Give the node its state, and let go of the sandbox.

        Raises:
            CaptureError: it has none.
        """
        assert self.capture is not None
        try:
            kept = self.place.keep(self.capture, self.description)
        finally:
            self.leave()
        self.planarian.hold(kept, self.description)
        self.node.statepoint = kept.id
        self.node.missing = tuple(f"{gap.subject}: {gap.reason}" for gap in kept.coverage.missing)
        reach("search.kept")

    def leave(self) -> None:
        """Let go of the sandbox. Idempotent."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            self.place.leave(sandbox)
