"""A team of AutoGen whose saved state holds its environment, with a model that says what a script says.

``pip install 'planarian[autogen]' autogen-ext``, then ``python autogen_team.py``. A coder starts a server and writes a
file; the team is saved; it goes on wrongly; it is loaded: file and server are as they were, and the coder knows.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

from planarian_autogen import Environment, SandboxWorkbench, load_state, save_state
from planarian_core import Planarian

SERVER = "python3 -m http.server --bind 127.0.0.1 $PORT >server.log 2>&1 & echo $! >server.pid"
ASK = """until python3 -c "
from urllib.request import urlopen
print(urlopen('http://127.0.0.1:$PORT/page').read().decode())" 2>/dev/null; do sleep 0.1; done"""


def bash(command: str) -> CreateResult:
    """What a model says that calls the tool ``bash``."""
    call = FunctionCall(id="1", name="bash", arguments=json.dumps({"command": command}))
    usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
    return CreateResult(finish_reason="function_calls", content=[call], usage=usage, cached=False)


def team(environment: Environment, *turns: CreateResult) -> RoundRobinGroupChat:
    """One coder with tools in the environment."""
    info = ModelInfo(
        vision=False, function_calling=True, json_output=True, structured_output=True, family=ModelFamily.UNKNOWN
    )
    model = ReplayChatCompletionClient(list(turns), model_info=info)
    coder = AssistantAgent("coder", model_client=model, workbench=SandboxWorkbench(environment))
    return RoundRobinGroupChat([coder], max_turns=1)


async def say(team: RoundRobinGroupChat, text: str) -> str:
    answer = (await team.run(task=text)).messages[-1].to_text().strip()
    print(f"user:  {text}\ncoder: {answer}")
    return answer


async def story(planarian: Planarian, project: Path) -> bool:
    environment = Environment(planarian, project)
    port = str(free_port())
    start, ask = SERVER.replace("$PORT", port), ASK.replace("$PORT", port)

    first = team(environment, bash(f"printf hello >page; {start}"), bash("kill $(cat server.pid); rm page; ls"))
    await say(first, "Write a page and serve it.")
    saved: dict[str, Any] = json.loads(json.dumps(await save_state(first, environment)))
    print(f"       (saved with statepoint {saved['planarian']['statepoint']})")
    await say(first, "Tidy up.")

    second = team(environment, bash(ask))
    restored = await load_state(second, environment, saved)
    assert restored is not None
    print(f"       (loaded: {restored.files_changed} files changed, running: {', '.join(restored.processes_running)})")
    return await say(second, "What does the server say?") == "hello"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main(folder: Path) -> bool:
    (folder / "project").mkdir()
    with Planarian.open(folder / "home") as planarian:
        try:
            return asyncio.run(story(planarian, folder / "project"))
        finally:
            for record in planarian.registry.sandboxes():
                planarian.remove_sandbox(planarian.sandbox(record.id))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(not main(Path(place)))
