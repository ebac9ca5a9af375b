"""What a caller and a search tell each other: budgets, judgements, events; what a command shows of itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planarian_core.context import clip
from planarian_core.errors import ConfigurationError
from planarian_core.model import CommandResult
from planarian_core.sandbox import Sandbox

if TYPE_CHECKING:
    from planarian_swesearch.tree import Tree

Action = Any
"""JSON-safe (a string, or a mapping of such), because the tree is saved. Equal JSON is the same action."""

OBSERVATION_LIMIT = 4000
"""Characters of an observation that a tree keeps; the middle of more is cut out."""


@dataclass(frozen=True)
class Budget:
    """How far a search goes. What is reached first ends it.

    ``iterations`` counts the actions tried, in earlier runs too; ``seconds`` is for one run, looked at between rounds:
    what is under way is finished. ``depth`` actions from the root at most, ``width`` from any one node. ``keep`` is how
    many states are kept at a time, the root's apart: beyond it those that are worth least are given up. ``target``:
    enough is a node worth this. ``stop`` is asked between rounds.
    """

    iterations: int = 50
    seconds: float | None = None
    depth: int = 20
    width: int = 3
    keep: int = 64
    target: float | None = None
    stop: Callable[[Tree], bool] | None = None

    def __post_init__(self) -> None:
        for name, least in (("iterations", 0), ("depth", 1), ("width", 1), ("keep", 2)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"a search's {name} can't be {getattr(self, name)}", code="search-budget")


@dataclass(frozen=True)
class Judgement:
    """What a node is worth: more is better. UCT's ``exploration`` is meant for values from 0 to 1.

    ``terminal``: there is nothing to try from here. ``text`` says why it is worth that: it is kept as an outcome of the
    state that the action was tried from, where later proposals see it.
    """

    value: float
    terminal: bool = False
    text: str = ""


@dataclass(frozen=True)
class Event:
    """Something that a search did: ``proposed``, ``judged``, ``failed``, ``released``, ``lost`` or ``removed`` (what a
    killed search left behind). ``node`` is its id; None for what belongs to none.
    """

    kind: str
    node: int | None
    text: str


def in_shell(timeout: float = 600.0) -> Callable[[Sandbox, Action], CommandResult]:
    """Acts by running the action, a string, in the sandbox with bash.

    Args:
        timeout: seconds, after which the command with all that it started is ended, and the action has failed.
    """

    def act(sandbox: Sandbox, action: Action) -> CommandResult:
        return sandbox.run(str(action), timeout=timeout, output_limit=64 * 1024, forks="none")

    return act


class ActionTimedOut(Exception):
    """The command of an action did not end in time; what it printed is the text."""


def observed(acted: object) -> str:
    """What an action's result shows, as text.

    Raises:
        ActionTimedOut: a command's result says so.
    """
    if not isinstance(acted, CommandResult):
        return "" if acted is None else clip(str(acted), OBSERVATION_LIMIT)
    text = acted.stdout + acted.stderr
    if acted.timed_out:
        raise ActionTimedOut(clip(f"timed out after {acted.duration:.0f} s\n{text}", OBSERVATION_LIMIT))
    return clip(text if acted.exit_code == 0 else f"exit code {acted.exit_code}\n{text}", OBSERVATION_LIMIT)


def judged(found: Judgement | float) -> Judgement:
    """A judgement with a finite value.

    Raises:
        ValueError, TypeError: it isn't one.
    """
    made = found if isinstance(found, Judgement) else Judgement(float(found))
    if not math.isfinite(made.value):
        raise ValueError(f"a value has to be finite, not {made.value}")
    return Judgement(float(made.value), bool(made.terminal), clip(made.text, OBSERVATION_LIMIT))


def key_of(action: Action) -> str:
    """Equal for equal actions, whatever the order of their keys.

    Raises:
        TypeError, ValueError: it is no JSON.
    """
    return json.dumps(action, sort_keys=True, allow_nan=False)
