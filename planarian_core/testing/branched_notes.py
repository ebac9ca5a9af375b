"""A doltlite database of notes, sandboxes that work on it, and a look at it from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.errors import RemoteError
from planarian_core.interfaces import ToolResult, ToolTarget
from planarian_core.remote_session import RemoteSession
from planarian_core.sandbox import Sandbox

_OUTSIDE = Path(__file__).with_name("outside_view.py")
_MAIN = "main"
BASE = (
    "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "INSERT INTO notes(text) VALUES ('buy bread'), ('call home')",
    "SELECT dolt_commit('-A', '-m', 'base')",
)


class Outside:
    """Another process, with the published package and Python's own ``sqlite3``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_OUTSIDE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, path: Path, branch: str, statement: str = "") -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(path), branch, statement]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["answer"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class Notes:
    """A home whose service ``notes`` is a doltlite database; ``outside`` is the oracle."""

    def __init__(self, folder: Path, outside: Outside) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.home, self.database, self.outside = folder / "home", folder / "notes.db", outside
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        (self.workspace / "report").write_text("nothing yet\n")
        self.home.mkdir()
        self.configure()
        for statement in BASE:
            self.outside.ask(self.database, "", statement)

    def configure(self, lines: str = "") -> None:
        text = f'[services.notes]\nkind = "branching"\ndialect = "doltlite"\npath = "{self.database}"\n{lines}'
        (self.home / "planarian.toml").write_text(text)

    def open(self) -> Planarian:
        return Planarian.open(self.home)

    def sandbox(self, planarian: Planarian, name: str = "") -> Sandbox:
        """One that works in place: the first in ``workspace``, one with a name in a directory of its own."""
        workspace = self.workspace.with_name(f"workspace-{name}") if name else self.workspace
        workspace.mkdir(exist_ok=True)
        return planarian.create_sandbox(workspace, name=name, sandbox="directory", filesystem="copy", process="respawn")

    def dump(self, sandbox_id: str) -> Any:
        """All of a sandbox's branch, seen from outside; of the branch ``main`` without an id."""
        return self.outside.ask(self.database, _branch(sandbox_id))

    def texts(self, sandbox_id: str) -> list[str]:
        found = self.outside.ask(self.database, _branch(sandbox_id), "SELECT text FROM notes ORDER BY id")
        return [text for (text,) in found]

    def branches(self) -> list[str]:
        return [n for (n,) in self.outside.ask(self.database, "", "SELECT name FROM dolt_branches ORDER BY name")]

    def refs(self) -> list[str]:
        return [n for (n,) in self.outside.ask(self.database, "", "SELECT tag_name FROM dolt_tags ORDER BY tag_name")]


def _branch(sandbox_id: str) -> str:
    return f"planarian-{sandbox_id}" if sandbox_id else _MAIN


class Agent:
    """Sends statements through a session, as a proxy does."""

    def __init__(self, planarian: Planarian, sandbox: Sandbox) -> None:
        self.session: RemoteSession = planarian.remote_session(sandbox, "notes")
        self.target: ToolTarget = self.session.kind.connect()

    def send(self, sql: str) -> ToolResult:
        return self.session.call("execute_sql", {"sql": sql}, self.target)

    def do(self, sql: str) -> list[str]:
        """Send a statement that is expected to go well; the texts of its result."""
        result = self.send(sql)
        assert not result["isError"], result
        return texts_of(result)

    def refused(self, sql: str) -> str:
        """Send a statement that is expected to be refused; the reason."""
        with pytest.raises(RemoteError) as caught:
            self.send(sql)
        assert caught.value.code == "call-refused", caught.value
        return caught.value.message

    def close(self) -> None:
        self.target.close()


def texts_of(result: Mapping[str, Any]) -> list[str]:
    return [item["text"] for item in result["content"]]
