"""Claude Code, Codex and nanobot, as they are, with ``planarian mcp``: all is real but the model.

Each lists our tools, calls them, and shows the model their structured results; the model goes wrong and comes back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.testing.scripted_model import Call, Model, Script, Seen, serving
from tests.harnesses.conftest import Place

CLAUDE_CODE = "@anthropic-ai/claude-code@2.1.332"
CODEX = "@openai/codex@0.171.0"
TOOLS = (
    "run", "read_file", "write_file", "edit_file", "snapshot", "rollback", "fork", "promote", "remove_fork", "outcome",
    "ledger", "diff", "restore_paths",
)  # fmt: skip
Asked = Generator[tuple[str, dict[str, Any]], str, None]


def goes_wrong_and_comes_back() -> Asked:
    """What the model does, and what it must be shown."""
    done = _data((yield "run", {"command": "echo two >> f; cat f; echo careful >&2; exit 3"}))
    assert (done["exit_code"], done["stdout"], done["stderr"]) == (3, "one\ntwo\n", "careful\n")
    taken = _data((yield "snapshot", {"name": "good", "description": "f has two lines"}))
    assert (yield "write_file", {"path": "sub/new", "content": "made"}).count("sub/new written") == 1
    done = _data((yield "run", {"command": "rm f; seq 100000"}))
    assert done["truncated"]
    assert done["stdout"].startswith("1\n2\n")
    assert done["stdout"].endswith("\n100000\n"), "the harness cut nothing off"
    changed = _data((yield "diff", {"a": "good"}))
    assert any("sub/new" in line for line in changed["files"])
    assert "no statepoint is called 'nowhere'" in (yield "rollback", {"statepoint": "nowhere"})
    back = _data((yield "rollback", {"statepoint": "good", "outcome": "removed f by mistake"}))
    assert back["statepoint"] == taken["statepoint"]
    assert "removed f by mistake" in back["context"]
    assert "two" in (yield "read_file", {"path": "f"})
    fork = _data((yield "fork", {"statepoint": "good", "name": "other"}))
    yield "edit_file", {"path": "f", "old": "two", "new": "2", "sandbox": fork["sandbox"]}
    done = _data((yield "run", {"command": "cat f; ls"}))
    assert done["stdout"] == "one\ntwo\nf\n"
    known = _data((yield "ledger", {}))
    (good,) = (entry for entry in known["statepoints"] if entry["name"] == "good")
    assert [(o["status"], o["text"]) for o in good["outcomes"]] == [("failed", "removed f by mistake")]
    promoted = _data((yield "promote", {"fork": fork["sandbox"], "force": True}))
    assert promoted["undo"]


def _data(result: str) -> dict[str, Any]:
    """The structured result within what a harness shows."""
    found, _ = json.JSONDecoder().raw_decode(result, result.index("{"))
    assert isinstance(found, dict), result
    return found


def told(story: Asked) -> Script:
    """A story as a model's script. A request that is made again (a retry) gets the same answer."""
    answers: list[Call | str] = []

    def script(seen: Seen) -> Call | str:
        while len(answers) <= len(seen.results):
            try:
                tool, arguments = story.send(seen.results[-1]) if answers else next(story)
            except StopIteration:
                answers.append("done")
            else:
                answers.append(Call(seen.named(tool), arguments))
        return answers[len(seen.results)]

    return script


def check(place: Place, model: Model, said: str) -> None:
    """The model was offered every tool, its story came to its end, and files and ledger agree with it."""
    assert not model.problems, f"{model.problems}\n{said}"
    assert model.seen, said
    for tool in TOOLS:
        name = model.seen[0].named(tool)
        assert model.seen[0].tools[name]["type"] == "object"
    assert "done" in said
    assert (place.project / "f").read_text() == "one\n2\n"
    assert not (place.project / "sub").exists()
    with Planarian.open(place.planarian_home) as planarian:
        names = {point.name for point in planarian.registry.statepoints(planarian.sandbox("work").id)}
        assert "good" in names


@pytest.fixture
def server(place: Place) -> dict[str, Any]:
    """The MCP server as configurations name it."""
    environment = {"PLANARIAN_HOME": str(place.planarian_home), "PATH": os.environ["PATH"]}
    return {"command": place.command, "args": ["mcp", "--sandbox", "work"], "env": environment}


def test_claude_code(place: Place, server: dict[str, Any], from_npm: Callable[[str, str], str]) -> None:
    command = from_npm(CLAUDE_CODE, "claude")
    configuration = place.home / "mcp.json"
    configuration.write_text(json.dumps({"mcpServers": {"planarian": server}}))
    ours = [
        "--mcp-config",
        str(configuration),
        "--strict-mcp-config",
        "--tools",
        "",
        "--allowedTools",
        "mcp__planarian",
    ]
    with serving(told(goes_wrong_and_comes_back())) as model:
        done = place.run(
            [command, "-p", "go", *ours, "--output-format", "stream-json", "--verbose"],
            ANTHROPIC_API_KEY="none", ANTHROPIC_BASE_URL=model.url, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            CLAUDE_CONFIG_DIR=str(place.home / "claude"), DISABLE_AUTOUPDATER="1", ENABLE_TOOL_SEARCH="false",
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check(place, model, done.stdout)


def test_claude_code_has_the_tools_at_once(
    place: Place, server: dict[str, Any], from_npm: Callable[[str, str], str]
) -> None:
    """It leaves tools of MCP servers out until its model looks for them, but not those that the agent works with."""
    command = from_npm(CLAUDE_CODE, "claude")
    configuration = place.home / "mcp.json"
    configuration.write_text(json.dumps({"mcpServers": {"planarian": server}}))
    with serving(lambda seen: "done") as model:
        done = place.run(
            [command, "-p", "go", "--mcp-config", str(configuration), "--strict-mcp-config"],
            ANTHROPIC_API_KEY="none", ANTHROPIC_BASE_URL=model.url, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            CLAUDE_CONFIG_DIR=str(place.home / "claude"), DISABLE_AUTOUPDATER="1", ENABLE_TOOL_SEARCH="true",
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (seen,) = model.seen
    offered = {tool for tool in TOOLS if f"mcp__planarian__{tool}" in seen.tools}
    assert {"run", "read_file", "write_file", "edit_file", "snapshot", "rollback", "outcome", "ledger"} <= offered


def test_codex(place: Place, server: dict[str, Any], from_npm: Callable[[str, str], str]) -> None:
    command = from_npm(CODEX, "codex")
    with serving(told(goes_wrong_and_comes_back())) as model:
        folder = place.home / ".codex"
        folder.mkdir()
        folder.joinpath("config.toml").write_text(_codex_configuration(model.url, server))
        done = place.run([command, "exec", "--skip-git-repo-check", "--json", "go"])
    assert done.returncode == 0, done.stdout + done.stderr
    check(place, model, done.stdout)


def _codex_configuration(url: str, server: dict[str, Any]) -> str:
    text = json.dumps  # TOML's basic strings and arrays of them are JSON's
    environment = ", ".join(f"{key} = {text(value)}" for key, value in server["env"].items())
    return f"""
model = "scripted"
model_provider = "scripted"
approval_policy = "never"

[features]
shell_tool = false
unified_exec = false

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"

[mcp_servers.planarian]
command = {text(server["command"])}
args = {text(server["args"])}
env = {{ {environment} }}
required = true
default_tools_approval_mode = "approve"
tool_timeout_sec = 700
"""


def test_nanobot(place: Place, server: dict[str, Any]) -> None:
    command = os.environ.get("PLANARIAN_NANOBOT", "")
    if not command:
        pytest.skip("NOT RUN: PLANARIAN_NANOBOT names no nanobot; `nox -s harnesses` installs one")
    with serving(told(goes_wrong_and_comes_back())) as model:
        configuration = place.home / "config.json"
        configuration.write_text(json.dumps(_nanobot_configuration(place.home, model.url, server)))
        done = place.run([command, "agent", "--config", str(configuration), "--no-markdown", "-m", "go"])
    assert done.returncode == 0, done.stdout + done.stderr
    check(place, model, done.stdout)


def _nanobot_configuration(home: Path, url: str, server: dict[str, Any]) -> dict[str, Any]:
    defaults = {"provider": "custom", "model": "scripted", "workspace": str(home / "workspace")}
    tools = {
        "exec": {"enable": False},
        "file": {"enable": False},
        "mcpServers": {"planarian": {**server, "toolTimeout": 700}},
    }
    provider = {"apiKey": "none", "apiBase": f"{url}/v1"}
    return {"agents": {"defaults": defaults}, "providers": {"custom": provider}, "tools": tools}
