"""The whole story by entry point alone: act, break, go back by the tool; files and memory agree; fork and compare."""

from __future__ import annotations

from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.testing.scripted_model import Seen
from planarian_core.testing.workloads import ask_counter, start_counter
from tests.planarian_nanobot.conftest import Bots, Step, bash

ASK = """python3 -c "
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect('counter')
client.sendall(b'{what}')
print('count', client.recv(16).decode())"
"""


@pytest.mark.needs("namespaces", "criu")
def test_files_and_memory_go_back_by_the_tool(bots: Bots) -> None:
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

        def in_the_fork(command: str) -> Step:
            def step(seen: Seen) -> tuple[str, dict[str, Any]]:
                forked = next(result for result in seen.results if result.startswith("sandbox: "))
                return bash(command, sandbox=forked.split()[1])

            return step

        _, model = bots.run(
            ("fork", {"statepoint": "good", "name": "other"}),
            in_the_fork(f"echo -n other > f; {ASK.format(what='add')}"),
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
