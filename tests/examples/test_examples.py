"""The examples run as they stand, and the configuration among them is one."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.testing import mcp_servers
from tests.examples.running import EXAMPLES, run

CONFIGURATION = (EXAMPLES / "planarian.toml").read_text()


@pytest.mark.needs("postgresql")
def test_rows_of_postgresql_go_back_with_the_files(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="pip install 'planarian[sql]'")
    done = run(tmp_path, "remote_postgresql.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "('2', '2') ('3', '3') ('2', '2')" in done.stdout
    assert "Remote effects undone" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


def test_rows_of_sqlite_go_back(tmp_path: Path) -> None:
    pytest.importorskip("apsw", reason="pip install 'planarian[sql]'")
    done = run(tmp_path, "remote_sqlite.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "['BREAD'] ['milk', 'bread'] ['BREAD']" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_configuration_shows_each_kind_of_service(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each service is made by its real kind, which refuses a key or a value that it doesn't know."""
    if find_spec("doltlite") is None:  # importing it would start this process anew
        pytest.skip("pip install 'planarian[branching]'")
    for variable in re.findall(r"\$\{([A-Z_]+)\}", CONFIGURATION):
        monkeypatch.setenv(variable, "secret")
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(EXAMPLES / "planarian.toml", home)
    with Planarian.open(home) as planarian:
        sandbox = planarian.create_sandbox(workspace, sandbox="directory", filesystem="copy", process="none")
        made = {service.name: service for service in planarian.statepoints.remote.offered(sandbox.record)}
    assert made.keys() == set(re.findall(r"^\[services\.(\w+)\]$", CONFIGURATION, re.MULTILINE))
    assert {name for name, service in made.items() if service.forkable} == {"inventory", "ledger"}
    kinds = set(re.findall(r'^(?:kind|dialect) = "(\w+)"$', CONFIGURATION, re.MULTILINE))
    assert kinds == {"sql", "postgresql", "sqlite", "declared", "branching", "doltlite", "neon"}
    assert not [name for name, service in made.items() if "secret" in service.endpoint]


def test_toolbox_s_configuration_is_that_of_the_demo() -> None:
    """Which a real Toolbox reads, in the demo's own tests."""
    assert (EXAMPLES / "toolbox.yaml").read_text() == (files("planarian_mcp") / "demo_toolbox.yaml").read_text()


def test_the_servers_are_the_versions_that_are_tested() -> None:
    named = set(re.findall(r'"(@[\w/-]+@[\d.]+)"', CONFIGURATION))
    assert named == {mcp_servers.TOOLBOX, mcp_servers.FILESYSTEM}
