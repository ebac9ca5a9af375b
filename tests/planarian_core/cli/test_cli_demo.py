"""``planarian demo`` tells the stories that plugins have, and ends as what they claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TELLER = """
from planarian_core.hookspecs import hookimpl

def tell(demonstration):
    with demonstration.open('policy = "manual"') as planarian:
        demonstration.chapter("A short story")
        demonstration.prove("the configuration is the story's own", planarian.config.policy == "manual", "policy")
        demonstration.prove("two and two are %d", 2 + 2 == %d, "4")
        demonstration.not_covered.append("the moral")

class Plugin:
    @hookimpl
    def planarian_demos(self):
        return {"%s": tell}

plugin = Plugin()
"""


def test_a_plugin_tells_a_story(process: Any, install: Any, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    process.env["TMPDIR"] = str(tmp_path / "temporary")
    install("teller", TELLER % (4, 4, "remote"))
    text = process("demo", "--remote")
    assert "proven: two and two are 4" in text
    assert "not covered: the moral" in text
    told = json.loads(process("demo", "--remote", "--json"))
    assert told["proven"]
    assert [proof["holds"] for proof in told["proofs"]] == [True, True]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_claim_that_does_not_hold_fails_the_demo(process: Any, install: Any) -> None:
    install("teller", TELLER % (5, 5, "remote"))
    done = process.run("demo", "--remote")
    assert done.returncode == 1
    assert b"NOT TRUE: two and two are 5" in done.stdout
