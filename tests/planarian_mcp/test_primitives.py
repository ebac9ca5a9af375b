"""``planarian mcp`` with the SDK's own client as the harness: the tools, their forms, and what they do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from planarian_core import Planarian
from planarian_core.testing.workloads import remove_all

pytest.importorskip("mcp.server.runner", reason="needs planarian[mcp]")

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

PLANARIAN = Path(sys.executable).with_name("planarian")
Story = Callable[["Harness"], Awaitable[None]]


class Harness:
    """An agent's side: calls tools by name."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        """The structured result; the tool must not fail."""
        result = await self.session.call_tool(tool, arguments)
        assert not result.is_error, result.content
        structured = result.structured_content
        assert structured is not None
        return structured["result"] if set(structured) == {"result"} else structured

    async def fails(self, tool: str, **arguments: Any) -> str:
        result = await self.session.call_tool(tool, arguments)
        assert result.is_error
        return "".join(block.text for block in result.content)  # type: ignore[union-attr]  # our tools give text


class World:
    def __init__(self, tmp_path: Path) -> None:
        self.home, self.workspace = tmp_path / "home", tmp_path / "workspace"
        self.workspace.mkdir()
        (self.workspace / "f").write_text("one\ntwo\n")
        with Planarian.open(self.home) as planarian:
            planarian.with_config(filesystem="copy")
            planarian.create_sandbox(
                self.workspace, name="box", sandbox="directory", filesystem="copy", process="respawn"
            )

    @asynccontextmanager
    async def serving(self, *arguments: str) -> AsyncIterator[Harness]:
        environment = {"PLANARIAN_HOME": str(self.home), "PATH": os.environ["PATH"], "HOME": str(self.home.parent)}
        server = StdioServerParameters(command=str(PLANARIAN), args=["mcp", *arguments], env=environment)
        with open(os.devnull, "w") as nowhere:
            async with stdio_client(server, errlog=nowhere) as (read, write), ClientSession(read, write) as session:
                await session.initialize()
                yield Harness(session)

    def tell(self, story: Story, *arguments: str) -> None:
        async def told() -> None:
            async with self.serving(*arguments) as harness:
                await story(harness)

        anyio.run(told)


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    with Planarian.open(made.home) as planarian:
        remove_all(planarian)


def test_an_agent_goes_wrong_and_comes_back(world: World) -> None:
    async def story(agent: Harness) -> None:
        taken = await agent("snapshot", name="start", description="as given")
        assert taken["name"] == "start"
        done = await agent("run", command="echo three >> f; cat f; echo careful >&2; exit 3")
        assert (done["exit_code"], done["stdout"], done["stderr"]) == (3, "one\ntwo\nthree\n", "careful\n")
        await agent("write_file", path="sub/new", content="made")
        await agent("edit_file", path="f", old="two", new="2")
        assert await agent("read_file", path="f", first_line=2) == "2\t2\n3\tthree"
        changed = await agent("diff", a="start")
        assert any("sub/new" in line for line in changed["files"])
        assert "-two" in changed["text"]
        back = await agent("rollback", statepoint="start", outcome="three was one too many")
        assert back["statepoint"] == taken["statepoint"]
        assert "three was one too many" in back["context"]
        assert (world.workspace / "f").read_text() == "one\ntwo\n"
        assert not (world.workspace / "sub").exists()
        known = await agent("ledger")
        (start,) = (entry for entry in known["statepoints"] if entry["name"] == "start")
        assert (start["statepoint"], start["description"], start["restorable"]) == (
            taken["statepoint"],
            "as given",
            True,
        )
        assert [(o["status"], o["text"]) for o in start["outcomes"]] == [("failed", "three was one too many")]
        assert known["head"] == taken["statepoint"]
        await agent("rollback", statepoint=back["undo"])
        assert (world.workspace / "f").read_text() == "one\n2\nthree\n"
        restored = await agent("restore_paths", statepoint="start", paths=["f"])
        assert restored["restored"] == ["f"]
        assert ((world.workspace / "f").read_text(), (world.workspace / "sub/new").read_text()) == (
            "one\ntwo\n",
            "made",
        )

    world.tell(story, "--sandbox", "box")


def test_forks_are_tried_and_one_is_promoted(world: World) -> None:
    async def story(agent: Harness) -> None:
        await agent("snapshot", name="start")
        one = await agent("fork", statepoint="start", name="one")
        two = await agent("fork", statepoint="start", name="two")
        await agent("run", command="echo -n 1 > f", sandbox=one["sandbox"])
        await agent("run", command="echo -n 2 > f", sandbox=two["sandbox"])
        assert (world.workspace / "f").read_text() == "one\ntwo\n"
        promoted = await agent("promote", fork=two["sandbox"])
        assert promoted["sandbox"] != two["sandbox"]
        assert (world.workspace / "f").read_text() == "2"
        await agent("remove_fork", fork=one["sandbox"])
        assert "no sandbox" in await agent.fails("run", command="true", sandbox=one["sandbox"])
        assert "your own sandbox" in await agent.fails("remove_fork", fork=promoted["sandbox"])

    world.tell(story, "--sandbox", "box")


def test_no_other_sandbox_can_be_named(world: World, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with Planarian.open(world.home) as planarian:
        planarian.create_sandbox(other, name="other", sandbox="directory", filesystem="copy", process="respawn")

    async def story(agent: Harness) -> None:
        for tool, arguments in (("run", {"command": "true"}), ("ledger", {}), ("snapshot", {}), ("diff", {})):
            assert "is no fork of" in await agent.fails(tool, **arguments, sandbox="other")
        assert "is no fork of" in await agent.fails("remove_fork", fork="other")

    world.tell(story, "--sandbox", "box")


def test_errors_say_what_is_true_and_what_to_do(world: World) -> None:
    async def story(agent: Harness) -> None:
        said = await agent.fails("rollback", statepoint="nowhere")
        assert "nowhere" in said
        assert "Next: " in said
        assert "occurs 0 times" in await agent.fails("edit_file", path="f", old="nine", new="9")
        assert (await agent("run", command="sleep 60", timeout=0.2))["timed_out"]
        assert (await agent("run", command="echo still there"))["stdout"] == "still there\n"

    world.tell(story, "--sandbox", "box")


def test_tools_teach_and_say_what_they_do_to_the_world(world: World) -> None:
    async def story(agent: Harness) -> None:
        tools = {tool.name: tool for tool in (await agent.session.list_tools()).tools}
        assert len(tools) == 13
        for tool in tools.values():
            assert len(tool.description or "") > 30
            assert tool.output_schema is not None
            assert tool.annotations is not None
            for name, argument in tool.input_schema["properties"].items():
                assert argument.get("description") or name in ("first_line", "lines", "content"), (tool.name, name)
        hints = {name: tool.annotations for name, tool in tools.items() if tool.annotations}
        assert {n for n, h in hints.items() if h.read_only_hint} == {"read_file", "ledger", "diff"}
        destroy = {"run", "write_file", "edit_file", "remove_fork"}  # a rollback keeps what it leaves
        assert {n for n, h in hints.items() if h.destructive_hint} == destroy
        assert hints["run"].open_world_hint  # a directory sandbox doesn't confine
        assert [n for n, h in hints.items() if h.open_world_hint] == ["run"]
        assert {"run", "rollback"} <= {n for n, t in tools.items() if (t.meta or {}).get("anthropic/alwaysLoad")}

    world.tell(story, "--sandbox", "box")


def test_no_result_is_longer_than_harnesses_take(world: World) -> None:
    async def story(agent: Harness) -> None:
        done = await agent("run", command="seq 1 30000; seq 1 30000 >&2; seq 1 30000 > long; tr '\\n' x < long > f")
        assert done["truncated"]
        assert done["stdout"].startswith("1\n2\n")
        assert done["stdout"].endswith("\n30000\n")
        assert len(done["stdout"]) + len(done["stderr"]) < 15_000
        page = await agent("read_file", path="long", lines=5000)
        assert len(page) < 11_000
        going_on = int(page.rpartition("first_line=")[2].rstrip(")"))
        assert f"\n{going_on - 1}\t{going_on - 1}\n" in page
        assert (await agent("read_file", path="long", first_line=going_on)).startswith(f"{going_on}\t{going_on}\n")
        assert len(await agent("read_file", path="f")) < 11_000

    world.tell(story, "--sandbox", "box")


def test_a_call_that_is_given_up_ends_its_command(world: World) -> None:
    async def story(agent: Harness) -> None:
        with anyio.move_on_after(1.5):
            await agent("run", command="echo $$ > pid; sleep 300; echo late > f")
        pid = int((world.workspace / "pid").read_text())
        gone = f"while kill -0 {pid} 2>/dev/null; do sleep 0.1; done"
        assert not (await agent("run", command=gone, timeout=60))["timed_out"]
        assert (world.workspace / "f").read_text() == "one\ntwo\n"

    world.tell(story, "--sandbox", "box")


def test_calls_leave_statepoints_by_the_policy(world: World) -> None:
    async def story(agent: Harness) -> None:
        await agent("run", command="echo -n x > f")
        await agent("read_file", path="f")

    world.tell(story, "--sandbox", "box")
    with Planarian.open(world.home) as planarian:
        points = planarian.registry.statepoints(planarian.sandbox("box").id)
        assert [p.description for p in points] == ["after: echo -n x > f"]


def test_a_sandbox_is_made_and_found_again(world: World, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (world.home / "planarian.toml").write_text('sandbox = "directory"\nfilesystem = "copy"\nprocess = "respawn"\n')

    async def first(agent: Harness) -> None:
        await agent("write_file", path="g", content="kept")

    async def second(agent: Harness) -> None:
        assert await agent("read_file", path="g") == "1\tkept"

    world.tell(first, "--new", str(place), "--name", "work")
    world.tell(second, "--new", str(place), "--name", "work")
    with Planarian.open(world.home) as planarian:
        assert [r.name for r in planarian.registry.sandboxes()].count("work") == 1


def test_it_ends_with_its_harness(world: World) -> None:
    environment = {**os.environ, "PLANARIAN_HOME": str(world.home)}
    assert shutil.which(str(PLANARIAN))
    process = subprocess.Popen(
        [PLANARIAN, "mcp", "--sandbox", "box"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 0


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir(mode=0o755)
    example = Path(__file__).parents[2] / "examples" / "mcp_agent.py"
    done = subprocess.run(
        [sys.executable, str(example)],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removed numbers; nothing came of it" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []
