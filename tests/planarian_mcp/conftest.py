"""Homes with services, and proxies of them."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.testing import mcp_servers
from planarian_core.testing.raw_mcp import RawClient

COMMAND = Path(__file__).with_name("store_kind.py")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("store_kind", COMMAND)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


store_kind = _load()


@dataclass
class World:
    """A home with one sandbox. ``database`` is the store server's."""

    folder: Path
    sandbox: str = ""
    clients: list[RawClient] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def database(self) -> Path:
        return self.folder / "store.sqlite"

    def configure(self, **services: Mapping[str, Any]) -> None:
        tables = [
            f"[services.{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
            for name, table in services.items()
        ]
        self.home.mkdir(mode=0o700, exist_ok=True)
        (self.home / "planarian.toml").write_text("\n".join(tables))

    def open(self) -> Planarian:
        return Planarian.open(self.home, plugins=store_kind.plugins())

    def make_sandbox(self) -> str:
        workspace = self.folder / "workspace"
        workspace.mkdir()
        with self.open() as planarian:
            made = planarian.create_sandbox(workspace, sandbox="fake", filesystem="fake", process="fake")
            self.sandbox = made.id
        return self.sandbox

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PLANARIAN_HOME": str(self.home), **more}

    def command(self, service: str, *options: str, sandbox: str = "") -> list[str]:
        return [sys.executable, str(COMMAND), "proxy", service, "--sandbox", sandbox or self.sandbox, *options]

    def proxy(self, service: str, *options: str, sandbox: str = "", fault: str = "", **more: Any) -> RawClient:
        """A proxy on standard streams, not greeted yet; it ends with the test."""
        env = self.environment(PLANARIAN_FAULT=fault)
        return self.client(self.command(service, *options, sandbox=sandbox), env=env, **more)

    def client(self, command: Sequence[str], **more: Any) -> RawClient:
        client = RawClient(command, **more)
        self.clients.append(client)
        return client

    # --- the store, from outside ---

    def pairs(self) -> dict[str, str]:
        with sqlite3.connect(self.database) as connection:
            return dict(connection.execute("SELECT key, value FROM pairs").fetchall())

    def events(self, beginning: str = "") -> list[str]:
        with sqlite3.connect(self.database) as connection:
            rows = connection.execute("SELECT what FROM events ORDER BY number").fetchall()
        return [what for (what,) in rows if what.startswith(beginning)]

    def servers(self) -> list[int]:
        """The process ids of all store servers that were started."""
        return [int(event.split()[1]) for event in self.events("started")]


def _toml(value: Any) -> str:
    if isinstance(value, str | Path):
        return mcp_servers.as_configuration([str(value)])[1:-1]
    return mcp_servers.as_configuration(value) if isinstance(value, list) else str(value)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A home whose service ``store`` is the store server, and ``pairs`` a kind without a server."""
    world = World(tmp_path)
    world.configure(
        store={"kind": "store", "command": mcp_servers.store(world.database), "timeout": 20},
        pairs={"kind": "key-value", "path": tmp_path / "pairs.sqlite"},
    )
    world.make_sandbox()
    yield world
    for client in world.clients:
        client.kill()


@pytest.fixture
def proxied(world: World) -> RawClient:
    """The proxy of the store, greeted."""
    client = world.proxy("store")
    assert "result" in client.initialize()
    return client


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process runs, by its id."""

    def look(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return look
