"""Runs ``planarian`` as a process of its own, or in this one, which is faster; on fakes or on real backends."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from planarian_core import Planarian
from planarian_core.cli import opening
from planarian_core.cli.main import app
from planarian_core.testing.fakes import FakePlugin
from planarian_core.testing.key_value import KeyValuePlugin

PLANARIAN = Path(sys.executable).with_name("planarian")
FAKES = 'sandbox = "fake"\nfilesystem = "fake"\nprocess = "fake"\n'
Completed = subprocess.CompletedProcess[bytes]
Install = Callable[[str, str], None]


class Cli:
    """The command in a process of its own, on one home."""

    def __init__(self, home: Path, site: Path, cwd: Path) -> None:
        self.home = home
        self.cwd = cwd
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "USER") if name in os.environ}
        self.env = {
            **kept,
            "HOME": str(home.parent / "nobody"),
            "PLANARIAN_HOME": str(home),
            "PYTHONPATH": str(site),
            "TERM": "dumb",
        }

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start it as a process and leave it running."""
        return subprocess.Popen([str(PLANARIAN), *arguments], cwd=self.cwd, env=self.env, **options)

    def run(self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Completed:
        """Run it to its end. A traceback is never right."""
        done = self._run(arguments, stdin, {**self.env, **(env or {})})
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    def _run(self, arguments: tuple[str, ...], stdin: bytes, env: Mapping[str, str]) -> Completed:
        argv = [str(PLANARIAN), *arguments]
        return subprocess.run(argv, input=stdin, capture_output=True, cwd=self.cwd, env=env, timeout=120, check=False)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        """What it prints on stdout; it must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.returncode, done.stdout.decode(), done.stderr.decode())
        return done.stdout.decode().strip()

    def json(self, *arguments: str) -> Any:
        """The one JSON document on its stdout; it must succeed."""
        return json.loads(self(*arguments, "--json"))

    def fails(self, code: int, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """What it says on stderr when it ends with ``code``; nothing may be on stdout."""
        done = self.run(*arguments, env=env)
        assert done.returncode == code, (arguments, done.returncode, done.stdout.decode(), done.stderr.decode())
        assert done.stdout == b""
        return done.stderr.decode()

    def open(self) -> Planarian:
        """The same home, opened in this process, to look at or to prepare what a command can't."""
        return Planarian.open(self.home, plugins=[FakePlugin(), KeyValuePlugin()], recover=False)


class Runner(Cli):
    """The command in this process, with the fakes; entry points of the site are not seen, and no fault may kill."""

    def _run(self, arguments: tuple[str, ...], stdin: bytes, env: Mapping[str, str]) -> Completed:
        assert "kill" not in env.get("PLANARIAN_FAULT", "")
        group: Any = typer.main.get_command(app)
        out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.cwd)
            for name in [name for name in os.environ if name.startswith("PLANARIAN_")]:
                patch.delenv(name)
            for name, value in env.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setattr(
                opening,
                "opener",
                lambda recover: Planarian.open(plugins=[FakePlugin(), KeyValuePlugin()], recover=recover),
            )
            try:
                code = group.main(list(arguments), standalone_mode=False)
            except SystemExit as ended:  # how completion ends
                code = ended.code
        for stream in (out, err):
            stream.flush()
        printed, said = (stream.buffer.getvalue() for stream in (out, err))
        return subprocess.CompletedProcess(arguments, code, printed, said)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory of installed distributions, for processes of their own."""
    return tmp_path / "site"


@pytest.fixture
def install(site: Path) -> Install:
    """Installs a plugin there, by its name and the source of a module that binds ``plugin``."""

    def put(name: str, source: str) -> None:
        info = site / f"planarian_{name}-1.dist-info"
        info.mkdir(parents=True)
        (site / f"planarian_{name}_plugin.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: planarian-{name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[planarian]\n{name} = planarian_{name}_plugin:plugin\n")

    return put


@pytest.fixture
def bare(tmp_path: Path, site: Path, workspace: Path) -> Cli:
    """A process, on a home that doesn't exist yet; only the real backends are installed."""
    return Cli(tmp_path / "home", site, workspace)


@pytest.fixture
def process(bare: Cli, install: Install) -> Cli:
    """A process, with the fakes as an installed plugin that a new home's configuration prefers."""
    install("fakes", "from planarian_core.testing.fakes import FakePlugin\nplugin = FakePlugin()\n")
    _prefer_fakes(bare.home)
    return bare


@pytest.fixture
def cli(tmp_path: Path, site: Path, workspace: Path) -> Cli:
    """In this process, with the fakes, on a new home whose configuration prefers them."""
    runner = Runner(tmp_path / "home", site, workspace)
    _prefer_fakes(runner.home)
    return runner


def _prefer_fakes(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "planarian.toml").write_text(FAKES)
