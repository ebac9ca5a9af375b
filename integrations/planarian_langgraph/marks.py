"""The state channel ``planarian``: which environment a graph's state belongs to. It is what makes time travel work.

A checkpoint holds the graph's state, and with it the mark of the environment as it was then. Whoever is about to touch
the environment compares the two (:class:`planarian_langgraph.environments.Environments`).
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

CHANNEL = "planarian"


class Mark(TypedDict):
    """Where an environment stood: ``calls`` tool calls after ``statepoint`` of ``sandbox``.

    ``order`` grows with each mark of a sandbox: the mark with the highest one is where its environment is now.
    ``context``: what a model must be told of a restore; ``told``: a message has told it.
    """

    sandbox: str
    statepoint: str
    calls: int
    order: int
    context: NotRequired[str]
    told: NotRequired[bool]


def newer(one: Mark | None, other: Mark | None) -> Mark | None:
    """The reducer: parallel tool calls write one mark each, and the last one taken holds them all. What a model must be
    told is kept until a mark says that it was.
    """
    if not one or not other:
        return other or one
    if one["sandbox"] == other["sandbox"] and one["order"] > other["order"]:
        one, other = other, one
    contexts = () if other.get("told") else (one.get("context"), other.get("context"))
    context = "\n\n".join(dict.fromkeys(context for context in contexts if context))
    newest = Mark(sandbox=other["sandbox"], statepoint=other["statepoint"], calls=other["calls"], order=other["order"])
    return {**newest, "context": context} if context else newest


class StatepointState(TypedDict):
    """Mix this into a graph's state, so that its checkpoints know their environment."""

    planarian: NotRequired[Annotated[Mark | None, newer]]


def mark_of(state: Any) -> Mark | None:
    """The mark in a graph's state, if it has one: of a mapping, or of an object with attributes."""
    found = state.get(CHANNEL) if isinstance(state, dict) else getattr(state, CHANNEL, None)
    return found if isinstance(found, dict) and "sandbox" in found else None  # type: ignore[return-value]  # as checked
