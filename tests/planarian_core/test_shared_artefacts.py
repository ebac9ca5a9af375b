"""What is proven unchanged is shared, restorable by every statepoint that shares it, and goes with the last of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.prune_choice import PrunePolicy
from planarian_core.sandbox import Sandbox
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter

SOCKET = "counter.sock"

pytestmark = pytest.mark.needs("root", "criu", "namespaces")


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield planarian
        remove_all(planarian)
    assert list((tmp_path / "home" / "statepoints").iterdir()) == []


@pytest.fixture
def box(planarian: Planarian, workspace: Path) -> Sandbox:
    box = planarian.create_sandbox(workspace, sandbox="namespace", filesystem="copy", process="criu")
    start_counter(box, SOCKET)
    return box


def _ask(sandbox: Sandbox, what: str) -> int:
    return ask_counter(sandbox, SOCKET, what)


def _images(planarian: Planarian) -> set[str]:
    """The statepoints under whose ids process images lie."""
    return {path.parent.name for path in (planarian.home / "statepoints").glob("*/images") if any(path.iterdir())}


def test_an_image_is_shared_until_something_runs(planarian: Planarian, box: Sandbox) -> None:
    assert _ask(box, "add") == 1
    first = planarian.snapshot(box)
    box.run("echo text > file")
    second = planarian.snapshot(box, automatic=True)
    third = planarian.snapshot(box, name="third")
    assert second.processes
    assert second.processes.owner == first.id, "the server has not run"
    assert second.processes.stored == 0
    assert third.processes
    assert third.processes.owner == first.id, "not a chain: the owner is the one that has it"
    assert second.timings["frozen"] == 0
    assert f"unmoved since {first.id}" in " ".join(second.coverage.captured)
    assert _images(planarian) == {first.id}
    assert _ask(box, "add") == 2
    fourth = planarian.snapshot(box)
    assert fourth.processes
    assert not fourth.processes.owner, "it has run"
    planarian.rollback(box, second)
    assert _ask(box, "add") == 2
    assert box.run("cat file").stdout == "text\n"
    planarian.rollback(box, first)
    assert box.run("test -e file").exit_code == 1


def test_a_shared_image_goes_with_the_last_that_needs_it(planarian: Planarian, box: Sandbox) -> None:
    assert _ask(box, "add") == 1
    first = planarian.snapshot(box)
    box.run("echo text > file")
    second = planarian.snapshot(box)
    assert second.processes
    assert second.processes.owner == first.id
    assert _ask(box, "add") == 2
    third = planarian.snapshot(box)
    planarian.prune(PrunePolicy(keep_last=2), [box])
    assert planarian.registry.statepoint(first.id).status == "pruned"
    assert first.id in _images(planarian), "the second still needs what the first had captured"
    planarian.rollback(box, second, safety=False)
    assert _ask(box, "add") == 2
    planarian.rollback(box, third, safety=False)
    planarian.prune(PrunePolicy(keep_last=1), [box])
    assert _images(planarian) == {third.id}


def test_nothing_is_shared_with_a_head_of_other_processes(planarian: Planarian, box: Sandbox) -> None:
    first = planarian.snapshot(box)
    planarian.rollback(box, first)
    again = planarian.snapshot(box)
    assert again.processes
    assert not again.processes.owner, "these are not the processes that were captured"
    fork = planarian.fork(first)
    point = planarian.snapshot(fork)
    assert point.processes
    assert not point.processes.owner


def test_unchanged_is_said_only_where_it_is_proven(planarian: Planarian, box: Sandbox) -> None:
    assert not planarian.statepoints.unchanged(box.record), "there is no head yet"
    planarian.snapshot(box)
    box.run("echo changed > file")
    assert not planarian.statepoints.unchanged(box.record)
