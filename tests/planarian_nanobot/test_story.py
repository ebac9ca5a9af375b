"""The whole story: act, break, go back by the tool; files, memory and rows agree; fork and compare. In nanobot's own
loop with a service's rows, and by entry point alone without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian, Sandbox
from planarian_core.testing import served_notes
from planarian_core.testing.scripted_model import Seen
from planarian_core.testing.served_notes import TOOL, ServedNotes
from planarian_core.testing.workloads import ask_counter, remove_all, start_counter
from planarian_nanobot import Environments
from tests.planarian_nanobot.conftest import Bots, Step, bash, run

ASK = """python3 -c "
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect('counter')
client.sendall(b'{what}')
print('count', client.recv(16).decode())"
"""


def _sql(statement: str) -> tuple[str, dict[str, Any]]:
    return TOOL, {"sql": statement}


def _in_the_fork(name: str, **arguments: Any) -> Step:
    """A call that works in the fork that was made before it."""

    def step(seen: Seen) -> tuple[str, dict[str, Any]]:
        forked = next(result for result in seen.results if result.startswith("sandbox: "))
        return name, {**arguments, "sandbox": forked.split()[1]}

    return step


@pytest.mark.needs("namespaces", "criu")
@pytest.mark.parametrize("kind", served_notes.KINDS)
def test_files_memory_and_rows_go_back_by_the_tool(
    bots: Bots, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    with served_notes.serve(kind, tmp_path, request) as notes, Planarian.open(notes.home) as planarian:
        bots.home = notes.home
        chosen = {"sandbox": "namespace", "filesystem": "copy", "process": "criu"}
        environments = Environments(planarian, bots.workspace, per_session=False, **chosen)
        try:
            _story(bots, environments, notes)
        finally:
            remove_all(planarian)


def _results(bots: Bots, environments: Environments, *steps: Step) -> list[str]:
    """What the calls of one run of nanobot's loop came to."""

    async def story() -> list[str]:
        with bots.looping(steps, environments, "notes") as (loop, model):
            await loop.process_direct("go")
            await loop.aclose()
            assert not model.problems, model.problems
            return list(model.seen[-1].results[-len(steps) :])

    return run(story())


def _story(bots: Bots, environments: Environments, notes: ServedNotes) -> None:
    planarian = environments.planarian

    async def enter() -> Sandbox:
        async with environments.of_session(None).turn() as sandbox:
            return sandbox

    def seen(sandbox: Sandbox) -> tuple[str, int, list[str]]:
        """File, memory and rows; the rows read past Planarian."""
        return sandbox.run("cat f").stdout, ask_counter(sandbox, "counter", "get"), notes.rows(sandbox)

    sandbox = run(enter())
    start_counter(sandbox, "counter")
    add, ask = ASK.format(what="add"), ASK.format(what="get")
    results = _results(
        bots,
        environments,
        bash(f"echo -n good > f; {add}"),
        _sql("INSERT INTO notes (id, text) VALUES (1, 'milk'), (2, 'bread')"),
        ("snapshot", {"name": "good", "description": "two notes, the counter stands at 1"}),
        bash(f"echo -n bad > f; {add}"),
        _sql("DELETE FROM notes WHERE id > 0"),
        _sql("SELECT text FROM nowhere"),
        ("rollback", {"statepoint": "good", "outcome": "bad was bad"}),
        bash(f"cat f; {ask}"),
        _sql("SELECT text FROM notes ORDER BY id"),
    )
    assert "count 2" in results[3]
    assert "nowhere" in results[5], "the model reads what the service says of a mistake"
    assert "Remote effects undone" in results[6]
    assert "goodcount 1" in results[7]
    assert "milk" in results[8]
    assert seen(sandbox) == ("good", 1, ["milk", "bread"])

    results = _results(
        bots,
        environments,
        ("fork", {"statepoint": "good", "name": "other"}),
        _in_the_fork("exec", command=f"echo -n other > f; {add}"),
        _in_the_fork(TOOL, sql="INSERT INTO notes (id, text) VALUES (3, 'tea')"),
        ("diff", {"a": "good"}),
    )
    fork = planarian.sandbox("other")
    assert seen(sandbox) == ("good", 1, ["milk", "bread"]), "the other line of work is as it was"
    assert (fork.run("cat f").stdout, ask_counter(fork, "counter", "get")) == ("other", 2)
    if notes.branches:
        assert notes.rows(fork) == ["milk", "bread", "tea"], "on a branch of its own"
    else:
        assert "fenced off" in results[2], "the model reads why it can't write there"
    compared = planarian.diff("good", planarian.snapshot(fork), of=sandbox)
    assert "f" in [Path(change.path).name for change in compared.files]


@pytest.mark.needs("namespaces", "criu")
def test_files_and_memory_go_back_by_entry_point_alone(bots: Bots) -> None:
    bots.settings |= {"sandbox": "namespace", "process": "criu"}
    bots.run(bash("echo -n start > f"))
    with Planarian.open(bots.home) as planarian:
        sandbox = planarian.sandbox()
        start_counter(sandbox, "counter")

        _, model = bots.run(
            bash("echo -n good > f"),
            bash(ASK.format(what="add")),
            ("snapshot", {"name": "good", "description": "f is good, the counter stands at 1"}),
            bash(f"echo -n bad > f; {ASK.format(what='add')}"),
            ("rollback", {"statepoint": "good", "outcome": "bad was bad"}),
            bash(f"cat f; {ASK.format(what='get')}"),
        )
        results = model.seen[-1].results
        assert "count 2" in results[-3]
        assert "bad was bad" in results[-2]
        assert "goodcount 1" in results[-1]
        assert (sandbox.run("cat f").stdout, ask_counter(sandbox, "counter", "get")) == ("good", 1)

        _, model = bots.run(
            ("fork", {"statepoint": "good", "name": "other"}),
            _in_the_fork("exec", command=f"echo -n other > f; {ASK.format(what='add')}"),
            bash(f"cat f; {ASK.format(what='get')}"),
            ("diff", {"a": "good"}),
            ("ledger", {}),
        )
        results = model.seen[-1].results
        assert "count 2" in results[-4]
        assert "goodcount 1" in results[-3]
        assert "bad was bad" in results[-1]
        fork = planarian.sandbox("other")
        assert (fork.run("cat f").stdout, ask_counter(fork, "counter", "get")) == ("other", 2)
        assert (sandbox.run("cat f").stdout, ask_counter(sandbox, "counter", "get")) == ("good", 1)
        compared = planarian.diff("good", planarian.snapshot(fork), of=sandbox)
        assert [change.path for change in compared.files if change.path.endswith("f")]
