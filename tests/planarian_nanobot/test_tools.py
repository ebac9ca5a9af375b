"""The tools in nanobot's own loop, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from loguru import logger
from nanobot import Nanobot

from planarian_core import Planarian
from planarian_core.testing.scripted_model import Seen, serving
from planarian_nanobot import Environments
from tests.planarian_nanobot.conftest import Bots, bash, ended, run, script

NAMES = {
    "exec", "read_file", "write_file", "edit_file", "snapshot", "rollback", "ledger", "outcome", "fork", "promote",
    "remove_fork", "diff", "restore_paths",
}  # fmt: skip


def test_the_entry_points_bring_all_tools(bots: Bots) -> None:
    said, model = bots.run(
        ("write_file", {"path": "sub/f", "content": "one\ntwo\n"}),
        ("edit_file", {"path": "sub/f", "old_text": "two", "new_text": "2"}),
        ("read_file", {"path": "sub/f", "offset": 2}),
        bash("echo out; echo err >&2; exit 3"),
        ("snapshot", {"name": "here"}),
        bash("rm -r sub"),
        ("restore_paths", {"statepoint": "here", "paths": ["sub"]}),
        ("outcome", {"statepoint": "here", "text": "removed sub", "status": "failed"}),
        ("ledger", {}),
        "all done",
    )
    assert said == "all done"
    assert set(model.seen[0].tools) >= NAMES
    results = model.seen[-1].results
    assert results[2] == "2\t2"
    assert results[3] == "out\nSTDERR:\nerr\nExit code: 3"
    assert "restored: sub" in results[6]
    assert "failed: removed sub" in results[8]
    assert (bots.workspace / "sub/f").read_text() == "one\n2\n"
    with Planarian.open(bots.home) as planarian:
        points = planarian.registry.statepoints(planarian.sandbox().id)
    assert [p.description for p in points if p.automatic][:3] == [
        "wrote sub/f",
        "changed sub/f",
        "after: echo out; echo err >&2; exit 3",
    ]


def test_forks_are_tried_and_one_is_promoted(bots: Bots) -> None:
    def forked(seen: Seen) -> str:
        return str(re.findall(r"sandbox: (sb-\w+)", "\n".join(seen.results))[-1])

    _, model = bots.run(
        ("snapshot", {"name": "start"}),
        ("fork", {"statepoint": "start"}),
        lambda seen: ("write_file", {"path": "f", "content": "tried", "sandbox": forked(seen)}),
        lambda seen: ("promote", {"fork": forked(seen)}),
        lambda seen: ("remove_fork", {"fork": forked(seen)}),
        ("remove_fork", {"fork": "nanobot"}),
        bash("cat f"),
    )
    results = model.seen[-1].results
    assert "took over a fork's state" in results[3]
    assert results[4].endswith(" removed")
    assert "Next: " in results[5], "a failure says what to do"
    assert results[6] == "tried\nExit code: 0"


def test_a_command_may_print_error(bots: Bots) -> None:
    """nanobot takes plain strings that begin so for failures of the tool."""
    _, model = bots.run(bash("echo Error: none of ours"))
    assert model.seen[-1].results == ("Error: none of ours\nExit code: 0",)


def test_results_fit_into_what_nanobot_shows(bots: Bots) -> None:
    _, model = bots.run(
        bash("seq 1 30000 > long; cat long; cat long >&2"), ("read_file", {"path": "long", "limit": 5000})
    )
    shown, page = model.seen[-1].results
    assert shown.startswith("1\n2\n")
    assert shown.endswith("\n(the middle of the output is cut out)\nExit code: 0")
    assert re.search(r"\(cut here: read on with offset=\d+\)$", page)
    assert max(len(shown), len(page)) < 16_000


def test_a_command_that_takes_too_long_ends(bots: Bots) -> None:
    _, model = bots.run(bash("sleep 31.41 & sleep 31.41", timeout=0.5), bash("echo still there"))
    first, second = model.seen[-1].results
    assert "it took longer than 0.5 seconds" in first
    assert second.startswith("still there")
    assert ended("31.41")


def test_a_run_that_is_cancelled_ends_its_command(bots: Bots, environments: Environments) -> None:
    async def story() -> None:
        with bots.looping([bash("touch begun; sleep 31.42; touch late")], environments) as (loop, _):
            task = asyncio.create_task(loop.process_direct("go"))
            while not (bots.workspace / "begun").exists():
                await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await loop.aclose()
        with bots.looping([bash("echo usable")], environments) as (loop, model):
            await loop.process_direct("go on", session_key="cli:direct")
            assert model.seen[-1].results[-1] == "usable\nExit code: 0"
            await loop.aclose()

    run(story())
    assert ended("31.42")
    assert not (bots.workspace / "late").exists()


def test_sessions_have_sandboxes_of_their_own(bots: Bots, environments: Environments) -> None:
    """Two at once; each name is its session's, whatever characters are in the key."""

    async def story() -> None:
        def steps(seen: Seen) -> str:
            who = "a" if "I am a" in str(seen.raw["messages"]) else "b"
            return f"echo {who} >> mine; sleep 0.2; cat mine"

        step = [lambda seen: bash(steps(seen))] * 3
        with serving(lambda seen: script(step)(seen) if len(seen.results) < 3 else "done") as model:
            file = bots.configure(model)
            async with Nanobot.from_config(file) as bot:
                one, two = bot.run("I am a", session_key="x:1"), bot.run("I am b", session_key="x:1/../2")
                await asyncio.gather(one, two)
        ends = [seen.results for seen in model.seen if len(seen.results) == 3]
        assert sorted(results[-1].split("\nExit")[0] for results in ends) == ["a\na\na", "b\nb\nb"]

    bots.settings |= {"sandbox": "namespace"}
    run(story())
    with Planarian.open(bots.home) as planarian:
        names = sorted(record.name for record in planarian.registry.sandboxes())
    assert len(names) == 2
    assert all(re.fullmatch(r"nanobot-x-1(-\.\.-2)?-[0-9a-f]{8}", name) for name in names), names


def test_one_sandbox_for_all_sessions(bots: Bots) -> None:
    bots.settings["perSession"] = False
    bots.run(bash("echo -n a > f"), session="x:1")
    _, model = bots.run(bash("cat f"), session="x:2")
    assert model.seen[-1].results == ("a\nExit code: 0",)
    with Planarian.open(bots.home) as planarian:
        assert [record.name for record in planarian.registry.sandboxes()] == ["nanobot"]


def test_what_a_user_did_between_turns_is_told(bots: Bots) -> None:
    bots.run(bash("echo -n one > f"), ("snapshot", {"name": "one"}), bash("echo -n two > f"))
    with Planarian.open(bots.home) as planarian:
        planarian.rollback(planarian.sandbox(), "one")
        planarian.sandbox().stop()
    _, model = bots.run(bash("cat f"))
    asked = str(model.seen[0].raw["messages"][-1])
    assert "was picked up again at" in asked
    assert model.seen[-1].results[-1] == "one\nExit code: 0"


def test_tools_of_nanobot_itself_are_not_mixed_with_ours(bots: Bots) -> None:
    said: list[str] = []
    sink = logger.add(said.append, level="ERROR")
    try:
        bots.tools["exec"]["enable"] = True
        _, model = bots.run()
    finally:
        logger.remove(sink)
    assert not {"rollback", "snapshot"} & set(model.seen[0].tools)
    assert "set tools.exec.enable to false in config.json" in "".join(said)


def test_a_wrong_setting_is_said(bots: Bots) -> None:
    said: list[str] = []
    sink = logger.add(said.append, level="ERROR")
    try:
        bots.settings["persession"] = False
        _, model = bots.run()
    finally:
        logger.remove(sink)
    assert "rollback" not in model.seen[0].tools
    assert "persession" in "".join(said)


def test_without_the_file_nanobot_stays_as_it_is(bots: Bots, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PLANARIAN_NANOBOT_CONFIG")
    _, model = bots.run()
    assert not {"exec", "rollback", "snapshot"} & set(model.seen[0].tools)
