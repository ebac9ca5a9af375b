"""Code blocks in a sandbox: results, files, time limits, cancellation, statepoints, components."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("autogen_core", reason="needs planarian[autogen]")

from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor

from planarian_autogen import Environment, SandboxCodeExecutor

Run = Callable[[Any], Any]


def _execute(executor: SandboxCodeExecutor, *blocks: tuple[str, str], token: CancellationToken | None = None) -> Any:
    code = [CodeBlock(language=language, code=text) for language, text in blocks]
    return executor.execute_code_blocks(code, token or CancellationToken())


def _listed(environment: Environment) -> list[str]:
    return sorted(path.name for path in Path(environment.sandbox.workspace).iterdir())


def test_blocks_run_in_the_workspace_up_to_one_that_fails(environment: Environment, run: Run) -> None:
    executor = SandboxCodeExecutor(environment)
    done = run(
        _execute(
            executor,
            ("Python", "import sys; print('out'); print('err', file=sys.stderr)"),
            ("bash", "echo ${BASH_VERSION:+bash} > f"),
            ("sh", "cat f; exit 3"),
            ("sh", "touch never"),
        )
    )
    assert done.exit_code == 3
    assert sorted(done.output.split()) == ["bash", "err", "out"]
    assert _listed(environment) == ["f"], "nothing is left of the code"
    run(executor.stop())
    points = environment.planarian.registry.statepoints(environment.sandbox.id)
    assert [point.description[:20] for point in points] == ["as the team found it", "after Python, bash, "]


def test_a_named_file_stays(environment: Environment, run: Run) -> None:
    executor = SandboxCodeExecutor(environment)
    done = run(_execute(executor, ("python", "# filename: pkg/mod.py\nX = 42")))
    assert done.code_file == f"{environment.sandbox.workspace}/pkg/mod.py"
    assert run(_execute(executor, ("python", "from pkg.mod import X; print(X)"))).output == "42\n"


@pytest.mark.parametrize("name", ["/etc/x.py", "../x.py", "a/../../x.py", ".", ""])
def test_a_file_name_that_leads_out_is_refused(environment: Environment, run: Run, name: str) -> None:
    done = run(_execute(SandboxCodeExecutor(environment), ("python", f"# filename: {name}\nprint(1)")))
    assert (done.exit_code, done.output) == (1, "Filename is not in the workspace")


def test_an_unknown_language_is_a_result(environment: Environment, run: Run) -> None:
    done = run(_execute(SandboxCodeExecutor(environment), ("cobol", "")))
    assert (done.exit_code, done.output.strip()) == (1, "unknown language cobol")


def test_a_timeout_ends_the_block_and_says_so(environment: Environment, run: Run, ended: Callable[[str], bool]) -> None:
    executor = SandboxCodeExecutor(environment, timeout=1)
    done = run(_execute(executor, ("bash", "echo begun; sleep 87654"), ("bash", "echo never")))
    assert (done.exit_code, done.output) == (124, "begun\n\nTimeout")
    assert ended("87654")
    assert _listed(environment) == []


def test_a_cancelled_token_ends_the_block_and_says_so(
    environment: Environment, run: Run, ended: Callable[[str], bool]
) -> None:
    executor = SandboxCodeExecutor(environment)

    async def story() -> Any:
        await executor.start()
        token = CancellationToken()
        running = asyncio.create_task(_execute(executor, ("bash", "touch begun; sleep 76543"), token=token))
        while not Path(environment.sandbox.workspace, "begun").exists():
            await asyncio.sleep(0.01)
        token.cancel()
        done = await running
        assert ended("76543")
        assert (await _execute(executor, ("bash", "echo on"))).output == "on\n"
        return done

    done = run(story())
    assert (done.exit_code, done.output) == (125, "\nCancelled")
    assert _listed(environment) == ["begun"]


def test_a_cancelled_task_ends_the_block_and_is_cancelled(
    environment: Environment, run: Run, ended: Callable[[str], bool]
) -> None:
    executor = SandboxCodeExecutor(environment)

    async def story() -> None:
        await executor.start()
        running = asyncio.create_task(_execute(executor, ("bash", "touch begun; sleep 65432")))
        while not Path(environment.sandbox.workspace, "begun").exists():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended("65432")

    run(story())


def test_long_code_runs(environment: Environment, run: Run) -> None:
    code = "x = '" + "y" * 300_000 + "'\nprint(len(x))"
    assert run(_execute(SandboxCodeExecutor(environment), ("python", code))).output == "300000\n"


def test_restart_leaves_the_environment(environment: Environment, run: Run) -> None:
    executor = SandboxCodeExecutor(environment, work_dir="sub")

    async def story() -> str:
        await executor.start()
        await environment.run("mkdir sub")
        await _execute(executor, ("bash", "echo kept > f; export X=1"))
        with pytest.warns(UserWarning, match="No action is taken"):
            await executor.restart()
        return str((await _execute(executor, ("bash", "cat f; echo ${X:-fresh}"))).output)

    assert run(story()) == "kept\nfresh\n"


def test_it_tells_what_a_load_has_changed(environment: Environment, run: Run) -> None:
    executor = SandboxCodeExecutor(environment)

    async def story() -> str:
        await _execute(executor, ("bash", "echo 1 > f"))
        mark = await environment.save()
        await _execute(executor, ("bash", "echo 2 > f"))
        await environment.restore(mark)
        return str((await _execute(executor, ("bash", "cat f"))).output)

    output = run(story())
    assert output.startswith("1\n")
    assert "was rolled back to statepoint" in output


def test_a_code_executor_agent_works_with_it(environment: Environment, run: Run, script: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match="approval"):
        agent = CodeExecutorAgent(
            "coder",
            code_executor=SandboxCodeExecutor(environment),
            model_client=script("```python\nprint(6 * 7)\n```", "it is 42"),
        )
    response = run(agent.on_messages([TextMessage(content="compute", source="user")], CancellationToken()))
    assert response.chat_message.content == "it is 42"


def test_a_configuration_names_the_environment(environment: Environment, run: Run) -> None:
    executor = SandboxCodeExecutor(environment, timeout=7, work_dir="sub", cleanup_temp_files=False)
    model = json.loads(executor.dump_component().model_dump_json())
    loaded = CodeExecutor.load_component(model)
    assert isinstance(loaded, SandboxCodeExecutor)
    assert loaded.environment is environment
    assert json.loads(loaded.dump_component().model_dump_json()) == model
