"""What a saver passes on, and what threads as a whole do to environments: copies, deletion, pruning, durability."""

from __future__ import annotations

import asyncio
import copy
import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph", reason="needs planarian[langgraph]")

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph

from planarian_core import Planarian
from planarian_langgraph import Environments, StatepointSaver, StatepointState, environment_node

Make = Callable[..., Environments]


class Whole(InMemorySaver):
    """In memory, with the methods on whole threads that LangGraph leaves to its savers; remembers its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, Any]] = []

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.storage[target_thread_id] = copy.deepcopy(self.storage[source_thread_id])
        for thread_id, namespace, checkpoint in list(self.writes):
            if thread_id == source_thread_id:
                found = copy.deepcopy(self.writes[thread_id, namespace, checkpoint])
                self.writes[target_thread_id, namespace, checkpoint] = found
        for key in [key for key in self.blobs if key[0] == source_thread_id]:
            self.blobs[(target_thread_id, *key[1:])] = self.blobs[key]

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.copy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for checkpoints in self.storage[thread_id].values():
                for old in sorted(checkpoints)[:-1]:
                    del checkpoints[old]

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        self.prune(thread_ids, strategy=strategy)

    def delete_for_runs(self, run_ids: Any) -> None:
        self.asked.append(("delete_for_runs", list(run_ids)))

    async def adelete_for_runs(self, run_ids: Any) -> None:
        self.asked.append(("adelete_for_runs", list(run_ids)))


class Seen(StatepointState):
    seen: Annotated[list[str], operator.add]
    said: str


def _config(thread_id: str = "T", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread_id, **more}}


def _graph(environments: Environments, saver: Any) -> Any:
    """One node that appends what it is told to the file ``f``."""

    @environment_node(environments)
    def append(state: Seen) -> dict[str, Any]:
        return {"seen": [environments.sandbox().run(f"echo -n {state['said']} >> f; cat f").stdout]}

    graph = StateGraph(Seen)
    graph.add_node("append", append)
    graph.add_edge(START, "append")
    graph.add_edge("append", END)
    return graph.compile(checkpointer=StatepointSaver(saver, environments))


def _say(graph: Any, said: str, config: Any = None, **options: Any) -> str:
    return str(graph.invoke({"said": said, "seen": []}, config or _config(), **options)["seen"][-1])


@pytest.mark.parametrize("mode", ["rollback", "fork"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_going_on_from_an_old_checkpoint(make: Make, durability: str, mode: str) -> None:
    environments = make(on_time_travel=mode)
    graph = _graph(environments, InMemorySaver())
    _say(graph, "a", durability=durability)
    old = graph.get_state(_config()).config
    assert _say(graph, "b", durability=durability) == "ab"
    list(graph.get_state_history(_config()))
    tip = graph.get_state(_config()).config
    assert _say(graph, "c", old, durability=durability) == "ac"
    sandboxes = environments.planarian.registry.sandboxes()
    assert len(sandboxes) == (1 if mode == "rollback" else 2)
    assert _say(graph, "d", tip, durability=durability) == "abd", "and the line that was left goes on too"
    updated = graph.update_state(old, {"said": "e"}, as_node=START)
    assert graph.invoke(None, updated, durability=durability)["seen"][-1] == "ae"


def test_a_copied_thread_goes_on_in_a_fork(make: Make, planarian: Planarian) -> None:
    environments = make()
    graph = _graph(environments, Whole())
    _say(graph, "1")
    old = graph.get_state(_config()).config["configurable"]["checkpoint_id"]
    _say(graph, "a")
    graph.checkpointer.copy_thread("T", "U")
    assert _say(graph, "b") == "1ab"
    assert _say(graph, "c", _config("U")) == "1ac"
    assert _say(graph, "x", _config("U", checkpoint_id=old)) == "1x", "back to before it was copied"
    assert _say(graph, "y") == "1aby", "which is nothing to the one that it was copied from"
    graph.checkpointer.inner.copy_thread("T", "W")  # by somebody who knows of no environment
    assert _say(graph, "z", _config("W")) == "1abyz"
    assert _say(graph, "b") == "1abyb"
    graph.checkpointer.delete_thread("T")
    assert _say(graph, "d", _config("U")) == "1xd", "a fork outlives the thread that it came from"
    asyncio.run(graph.checkpointer.acopy_thread("U", "V"))
    assert _say(graph, "e", _config("V")) == "1xde"
    for thread_id in "UWV":
        asyncio.run(graph.checkpointer.adelete_thread(thread_id))
    assert planarian.registry.sandboxes() == [], "and in the end nothing is left over"


@pytest.mark.parametrize("face", ["sync", "async"])
def test_pruning_releases_what_no_checkpoint_names(make: Make, planarian: Planarian, face: str) -> None:
    environments = make()
    graph = _graph(environments, Whole())

    def prune(strategy: str) -> None:
        if face == "sync":
            graph.checkpointer.prune(["T"], strategy=strategy)
        else:
            asyncio.run(graph.checkpointer.aprune(["T"], strategy=strategy))

    for said in "abc":
        _say(graph, said)
    sandbox = planarian.sandbox()
    named = planarian.snapshot(sandbox, name="by hand").id
    before = {point.id for point in planarian.registry.statepoints(sandbox.id) if point.status == "committed"}
    prune("keep_latest")
    left = {point.id for point in planarian.registry.statepoints(sandbox.id) if point.status == "committed"}
    mark = graph.get_state(_config()).values["planarian"]
    assert {named, mark["statepoint"]} <= left < before
    assert planarian.registry.holds.all() == {}
    assert _say(graph, "d") == "abcd"
    prune("delete")
    assert planarian.registry.sandboxes() == []


def test_runs_are_forgotten_by_the_saver_inside() -> None:
    inner = Whole()
    saver = StatepointSaver(inner)
    saver.delete_for_runs(["one"])
    asyncio.run(saver.adelete_for_runs(["two"]))
    assert inner.asked == [("delete_for_runs", ["one"]), ("adelete_for_runs", ["two"])]


def test_what_the_saver_inside_can_t_do_stays_undone(make: Make, planarian: Planarian) -> None:
    environments = make()
    graph = _graph(environments, InMemorySaver())
    _say(graph, "a")
    with pytest.raises(NotImplementedError):
        graph.checkpointer.copy_thread("T", "U")
    with pytest.raises(NotImplementedError):
        graph.checkpointer.prune(["T"], strategy="delete")
    assert len(planarian.registry.sandboxes()) == 1


def test_versions_are_those_of_the_saver_inside() -> None:
    inner = InMemorySaver()
    first = StatepointSaver(inner).get_next_version(None, None)
    assert isinstance(first, str)
    assert first.partition(".")[0] == inner.get_next_version(None, None).partition(".")[0]


def test_an_allowlist_reaches_the_saver_inside(make: Make) -> None:
    environments = make()
    inner = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=[("here", "One")]))
    saver = StatepointSaver(inner, environments).with_allowlist([("somewhere", "Thing")])
    assert isinstance(saver, StatepointSaver)
    assert saver.environments is environments
    assert saver.serde is saver.inner.serde
    assert type(saver.inner) is InMemorySaver
    allowed: Any = saver.inner.serde
    given: Any = inner.serde
    assert ("somewhere", "Thing") in allowed._allowed_msgpack_modules
    assert ("somewhere", "Thing") not in given._allowed_msgpack_modules, "the one that was given stays as it is"


class Deltas(TypedDict):
    words: Annotated[list[str], DeltaChannel(lambda old, writes: [*(old or []), *(w for ws in writes for w in ws)])]


def test_delta_channels_are_read_through_both_faces() -> None:
    graph = StateGraph(Deltas)
    graph.add_node("one", lambda state: {"words": ["b"]})
    graph.add_node("two", lambda state: {"words": ["c"]})
    for before, after in ((START, "one"), ("one", "two"), ("two", END)):
        graph.add_edge(before, after)
    inner = InMemorySaver()
    saver = StatepointSaver(inner)
    app = graph.compile(checkpointer=saver)
    assert app.invoke({"words": ["a"]}, _config())["words"] == ["a", "b", "c"]
    assert app.get_state(_config()).values["words"] == ["a", "b", "c"], "read back from the writes"
    config = app.get_state(_config()).config
    expected = inner.get_delta_channel_history(config=config, channels=["words"])
    assert expected["words"]["writes"]
    assert saver.get_delta_channel_history(config=config, channels=["words"]) == expected
    assert asyncio.run(saver.aget_delta_channel_history(config=config, channels=["words"])) == expected
