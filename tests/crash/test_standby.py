"""Warm copies and kill -9: what a dead runtime kept is found and removed, what it handed over is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.sandbox import Sandbox
from planarian_core.testing.oracle import Description, assert_same
from planarian_core.testing.workloads import ask_counter, describe_beside_socket, remove_all, start_counter

OPERATE = Path(__file__).with_name("operate.py")
SOCKET = "counter.sock"
MAKING = ["standby.begun", "standby.staged", "standby.restored"]

pytestmark = pytest.mark.needs("root", "criu", "namespaces")


@pytest.fixture(params=["criu", "respawn"])
def home(request: pytest.FixtureRequest, tmp_path: Path, workspace: Path) -> Iterator[Path]:
    """A home whose sandbox ``box`` has a statepoint ``one`` with counter 1, and has gone on to 2."""
    with Planarian.open(tmp_path / "home") as planarian:
        sandbox = planarian.create_sandbox(workspace, name="box", sandbox="namespace", process=request.param)
        sandbox.run("mkdir src; echo one > src/a; ln src/a src/b; ln -s a src/c")
        start_counter(sandbox, SOCKET)
        assert _ask(sandbox, "add") == 1
        planarian.snapshot(sandbox, name="one")
        (tmp_path / "one").write_text(repr(_tree(sandbox)))
        sandbox.run("echo two > src/a; rm src/c")
        assert _ask(sandbox, "add") == 2
    yield tmp_path / "home"
    with Planarian.open(tmp_path / "home") as planarian:
        remove_all(planarian)
    for place in ("sandboxes", "statepoints", "mounts"):
        assert list((tmp_path / "home" / place).iterdir()) == [], f"{place}: something is left of a copy"


def _tree(sandbox: Sandbox) -> Description:
    live = sandbox.record.live
    assert live is not None
    return describe_beside_socket(Path(f"/proc/{live.init_pid}/root{sandbox.workspace}"), SOCKET)


def _ask(sandbox: Sandbox, what: str) -> int:
    return ask_counter(sandbox, SOCKET, what, tries=200)


def _operate(home: Path, operation: str, fault: str = "") -> None:
    env = {**os.environ, "PLANARIAN_FAULT": f"{fault}=kill" if fault else ""}
    argv = [sys.executable, str(OPERATE), str(home), operation, "box", "one"]
    done = subprocess.run(argv, env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode == (-9 if fault else 0), done.stderr.decode()


def _check_home(planarian: Planarian, *names: str) -> None:
    """Nothing is left but these sandboxes, by registry, layers and processes."""
    assert planarian.registry.standbys.all() == {}
    assert planarian.registry.operations() == []
    assert sorted(r.name for r in planarian.registry.sandboxes()) == sorted(names)
    layers = {Path(r.spec.layer).parent.name for r in planarian.registry.sandboxes()}
    assert {p.name for p in (planarian.home / "sandboxes").iterdir()} <= layers | {
        r.id for r in planarian.registry.sandboxes()
    }
    inits = {r.live.init_pid for r in planarian.registry.sandboxes() if r.live}
    assert _inits(planarian.home) == inits


def _inits(home: Path) -> set[int]:
    """Host pids of the inits that stand on this home's layers."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status, mounts = (entry / "status").read_text(), (entry / "mountinfo").read_bytes()
        except OSError:
            continue
        inside = next(line for line in status.splitlines() if line.startswith("NSpid")).split()[1:]
        if len(inside) > 1 and inside[-1] == "1" and os.fsencode(home) in mounts:
            found.add(int(entry.name))
    return found


@pytest.mark.parametrize("point", MAKING)
def test_killed_while_a_copy_is_made(home: Path, point: str) -> None:
    _operate(home, "warm-rollback", point)
    with Planarian.open(home) as planarian:
        _check_home(planarian, "box")
        assert _ask(planarian.sandbox("box"), "get") == 2, "the sandbox itself was not touched"


@pytest.mark.parametrize("point", ["rollback.begun", "rollback.stopped", "standby.woken", "rollback.committed"])
def test_killed_in_a_warm_rollback(home: Path, point: str) -> None:
    _operate(home, "warm-rollback", point)
    with Planarian.open(home) as planarian:
        sandbox = planarian.sandbox("box")
        _check_home(planarian, "box")
        if point == "rollback.begun":
            assert _ask(sandbox, "get") == 2
            return
        assert repr(_tree(sandbox)) == (home.parent / "one").read_text()
        memory = sandbox.record.process == "criu"
        assert _ask(sandbox, "add") == (2 if memory else 1)
        safety = planarian.registry.statepoints(sandbox.id)[-1]
        planarian.rollback(sandbox, safety)
        assert sandbox.run("cat src/a").stdout == "two\n", "what the rollback left can be had again"


@pytest.mark.parametrize("point", ["fork.begun", "standby.woken", "fork.restored", "fork.committed"])
def test_killed_in_a_warm_fork(home: Path, point: str) -> None:
    _operate(home, "warm-fork", point)
    with Planarian.open(home) as planarian:
        committed = point == "fork.committed"
        _check_home(planarian, "box", *(["fork"] if committed else []))
        assert _ask(planarian.sandbox("box"), "get") == 2
        if committed:
            fork = planarian.sandbox("fork")
            assert repr(_tree(fork)) == (home.parent / "one").read_text()


def test_a_sandbox_that_took_a_copy_over_is_as_any_other(home: Path) -> None:
    _operate(home, "warm-rollback")
    _operate(home, "warm-rollback")
    with Planarian.open(home) as planarian:
        _check_home(planarian, "box")
        sandbox = planarian.sandbox("box")
        memory = sandbox.record.process == "criu"
        assert _ask(sandbox, "add") == (2 if memory else 1)
        point = planarian.snapshot(sandbox, name="after")
        tree = _tree(sandbox)
        sandbox.run("rm -rf src")
        planarian.rollback(sandbox, point)
        assert_same(_tree(sandbox), tree)
        fork = planarian.fork(point)
        assert_same(_tree(fork), tree)
        sandbox.stop()
        assert _inits(home) == {fork.record.live.init_pid if fork.record.live else 0}
