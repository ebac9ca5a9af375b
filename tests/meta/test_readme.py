"""The README's commands and examples work as they stand."""

from __future__ import annotations

import json
import os
import re
import runpy
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.plugin_manager import PluginManager

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "bash"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory with the ``repo`` of the examples and a home of its own; its sandboxes end with the test."""
    source = tmp_path / "repo" / "src"
    source.mkdir(parents=True)
    (source / "main.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANARIAN_HOME", str(tmp_path / "home"))
    yield tmp_path
    with Planarian.open(tmp_path / "home") as planarian:
        for record in planarian.registry.sandboxes():
            planarian.sandbox(record.id).stop()


def test_the_two_setup_lines_make_an_environment_and_use_it() -> None:
    demo, tests = (text.strip() for text in SHELL[:2])
    prepared = ".ci/host-packages && python3 -m venv .venv && .venv/bin/pip install -q "
    assert demo == f"{prepared}'.[miniswe]' && .venv/bin/planarian demo"
    assert tests == f"{prepared}nox && .venv/bin/nox"


def test_ci_runs_exactly_the_test_line() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert re.search(rf"^ +{re.escape(SHELL[1].strip())}$", script, re.MULTILINE)


def test_the_python_example_runs(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (text for language, text in BLOCKS if language == "python")
    script = elsewhere / "example.py"
    script.write_text(example)
    runpy.run_path(str(script))
    printed = capsys.readouterr().out
    assert "deleted src by mistake" in printed
    assert "main.py" in printed
    assert not (elsewhere / "repo" / "settings.ini").exists()


def test_the_commands_run(elsewhere: Path) -> None:
    commands = "set -euo pipefail\n" + SHELL[2]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", commands], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with Planarian.open(elsewhere / "home") as planarian:
        kept = planarian.sandbox("api").run("cat src/main.py && test ! -e new-file || echo new-file is there")
        assert "hello" in kept.stdout
        assert planarian.sandbox("api-2").run("ls").stdout.split() == ["new-file", "src"]


def test_the_commands_of_remote_state_run(elsewhere: Path) -> None:
    """The README's service, with its file here; the test is the harness, and speaks MCP to ``planarian proxy``."""
    pytest.importorskip("mcp", reason="pip install 'planarian[mcp]'")
    pytest.importorskip("apsw", reason="pip install 'planarian[sql]'")
    (configuration,) = (text for language, text in BLOCKS if language == "toml")
    (commands,) = (text for text in SHELL if "planarian proxy" in text)
    file = elsewhere / "notes.db"
    (elsewhere / "home").mkdir()
    (elsewhere / "home" / "planarian.toml").write_text(configuration.replace("/srv/notes.db", str(file)))
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE notes (note TEXT)")
        database.execute("INSERT INTO notes VALUES ('milk')")

    def rows() -> list[str]:
        with closing(sqlite3.connect(file)) as database:
            return [note for (note,) in database.execute("SELECT note FROM notes")]

    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    change = {"name": "execute_sql", "arguments": {"sql": "UPDATE notes SET note = 'bread'"}}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail\n{commands}"],
        env={**os.environ, "PATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as shell:  # fmt: skip
        assert shell.stdin is not None
        assert shell.stdout is not None
        for message in (
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": change},
        ):
            print(json.dumps({"jsonrpc": "2.0", **message}), file=shell.stdin, flush=True)
        answer = next(found for line in shell.stdout if (found := _message(line)).get("id") == 2)
        assert not answer["result"].get("isError"), answer
        assert rows() == ["bread"]
        shell.stdin.close()
        printed = shell.stdout.read()
    assert shell.returncode == 0
    assert "applied" in printed
    assert rows() == ["milk"]


def _message(line: str) -> dict[str, Any]:
    """A line of the shell's output, if it is a message of the proxy's."""
    return json.loads(line) if line.startswith("{") else {}


def test_the_mini_swe_agent_example_is_a_configuration() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with mini-swe-agent: pip install 'planarian[miniswe]'")
    from planarian_miniswe.environment_config import PlanarianEnvironmentConfig

    (example,) = (text for language, text in BLOCKS if language == "yaml")
    settings = yaml.safe_load(example)["environment"]
    module, _, name = settings.pop("environment_class").rpartition(".")
    assert hasattr(__import__(module), name)
    assert PlanarianEnvironmentConfig.of(settings).workspace == "repo"


def test_the_table_lists_the_backends_that_there_are(tmp_path: Path) -> None:
    plugins = PluginManager(tmp_path)
    there = {(kind, name) for kind in ("sandbox", "filesystem", "process") for name in plugins.names(kind)}
    rows = re.findall(r"^\| (sandbox|files|processes) \| `(\w+)` \|", README, re.MULTILINE)
    kinds = {"sandbox": "sandbox", "files": "filesystem", "processes": "process"}
    assert {(kinds[kind], name) for kind, name in rows} == there


def test_the_python_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [c.rsplit(" ", 1)[1] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert f"Python {versions[0]} to {versions[-1]}" in README
