"""``planarian pool`` as a user types it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.testing.workloads import remove_all

pytestmark = pytest.mark.needs("btrfs")

PLANARIAN = Path(sys.executable).with_name("planarian")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    yield home
    if (home / "registry.sqlite").exists():
        with Planarian.open(home) as planarian:
            remove_all(planarian)
    while subprocess.run(["umount", str(home / "pool")], capture_output=True, check=False).returncode == 0:
        pass


def run(home: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints; on stderr where it fails."""
    env = {**os.environ, "PLANARIAN_HOME": str(home), "TERM": "dumb"}
    done = subprocess.run(
        [str(PLANARIAN), *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 or "--json" in arguments else done.stderr


def as_json(home: Path, *arguments: str, code: int = 0) -> Any:
    return json.loads(run(home, *arguments, "--json", code=code))


def test_from_nothing_to_nothing(home: Path) -> None:
    assert "Next: planarian pool create" in run(home, "pool", "status", code=4)
    assert as_json(home, "pool", "status", code=4)["remedy"] == "planarian pool create"
    made = as_json(home, "pool", "create", "--size", "256M", "--sparse")
    assert made["size"] == 256 * 1024**2
    assert made["file"] == str(home / "pool.btrfs")
    assert made["spaces"].keys() == {"data", "metadata", "system"}
    assert "this home has a pool" in run(home, "pool", "create", code=1)
    assert as_json(home, "pool", "grow", "+64M")["size"] == 320 * 1024**2
    assert as_json(home, "pool", "grow", "512M")["size"] == 512 * 1024**2
    assert "already" in run(home, "pool", "grow", "512M", code=1)
    shown = run(home, "pool", "status")
    for words in ("512.0 MiB", "metadata:", "0 sandboxes, 0 statepoints", str(home / "pool")):
        assert words in shown
    assert as_json(home, "pool", "destroy") == {"destroyed": True, "sandboxes": 0, "statepoints": 0}
    assert "there is no pool" in run(home, "pool", "destroy", code=1)


@pytest.mark.parametrize("size", ["lots", "-1", "1.5.G"])
def test_a_size_that_is_none_is_wrong_usage(home: Path, size: str) -> None:
    run(home, "pool", "create", f"--size={size}", code=2)
    assert not (home / "pool.btrfs").exists()


@pytest.mark.needs("root", "namespaces")
def test_doctor_and_new_sandboxes_prefer_it(home: Path, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()

    def row() -> Any:
        [found] = [row for row in as_json(home, "doctor")["backends"] if row["name"] == "btrfs"]
        return found

    assert not row()["available"]
    assert row()["remedy"] == "planarian pool create"
    run(home, "pool", "create", "--size", "1G", "--sparse")
    assert row()["default"]
    made = as_json(home, "new", str(tmp_path / "workspace"), "--process", "none")
    run(home, "run", "--", "sh", "-c", "echo one > file")
    run(home, "snapshot", "one")
    run(home, "run", "--", "sh", "-c", "echo two > file")
    run(home, "rollback", "one")
    assert run(home, "run", "--", "cat", "file") == "one\n"
    assert "planarian rm" in run(home, "pool", "destroy", code=1)
    assert "planarian stop" in run(home, "pool", "destroy", "--force", code=1)
    run(home, "stop", made["id"])
    run(home, "pool", "destroy", "--force")
    assert made["id"] in run(home, "list")
    assert "planarian pool create" in run(home, "rollback", "-s", made["id"], "one", code=4)
    run(home, "rm", "--yes", made["id"])
    assert made["id"] not in run(home, "list")


@pytest.mark.needs("root", "namespaces")
def test_a_sandbox_lives_on_after_its_pool_was_unmounted(home: Path, tmp_path: Path) -> None:
    """As after a reboot: its processes are gone, the next command mounts the pool, and a rollback brings it back."""
    (tmp_path / "workspace").mkdir()
    run(home, "pool", "create", "--size", "1G", "--sparse")
    made = as_json(home, "new", str(tmp_path / "workspace"), "--process", "none")
    run(home, "run", "--", "sh", "-c", "echo one > file")
    run(home, "snapshot", "one")
    run(home, "stop")
    subprocess.run(["umount", str(home / "pool")], check=True)
    run(home, "rollback", "-s", made["id"], "one")
    assert run(home, "run", "--", "cat", "file") == "one\n"
    run(home, "rm", "--yes", made["id"])
    run(home, "pool", "destroy")
