"""kill -9 of the runtime at every named fault point, then reopen: the guarantees hold (guarantees 1, 3, 5).

Each backend combination that this host allows; the oracle walks files with ``lstat`` and asks the sandbox's server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.faults import POINTS
from planarian_core.model import Status
from planarian_core.sandbox import Sandbox
from planarian_core.testing.oracle import Description, assert_same
from planarian_core.testing.workloads import COUNTER_SERVER, ask_counter, describe_beside_socket, remove_all
from planarian_core.testing.zfs import listed
from planarian_filesystem.zfs_pool import ZfsPool

OPERATE = Path(__file__).with_name("operate.py")
SOCKET = "counter.sock"


@dataclass
class World:
    """A home with one sandbox in which a server counts and two statepoints exist."""

    home: Path
    workspace: Path
    sandbox: str
    process: str
    filesystem: str
    sandbox_id: str = ""

    @property
    def memory(self) -> bool:
        return self.process in ("criu", "podman")

    def files_kept(self) -> list[str]:
        """What lies in the pool, where there is one."""
        if self.filesystem == "zfs":
            below = f"{ZfsPool(self.home).where().base}/layers"
            return [*listed(below), *listed(below, "snapshot")]
        layers = self.home / "pool" / "layers"
        names = os.listdir(layers) if layers.exists() else []
        own = (".statepoints", ".origins")
        return [*(n for n in names if n not in own), *(n for o in own if o in names for n in os.listdir(layers / o))]

    def tree(self, sandbox: Sandbox) -> Description:
        live = sandbox.record.live
        assert live is not None
        root = Path("/") if self.sandbox == "directory" else Path(f"/proc/{live.init_pid}/root")
        return describe_beside_socket(root / sandbox.workspace.lstrip("/"), SOCKET)

    def ask(self, sandbox: Sandbox, what: str) -> int:
        return ask_counter(sandbox, SOCKET, what, tries=200)

    def operate(self, *arguments: str, fault: str = "") -> int:
        env = {**os.environ, "PLANARIAN_FAULT": fault}
        done = subprocess.run(
            [sys.executable, str(OPERATE), str(self.home), *arguments],
            env=env, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        if not fault:
            assert done.returncode == 0, done.stderr.decode()
        return done.returncode


@pytest.fixture
def world(combination: tuple[str, str, str], home: Path, tmp_path: Path) -> Iterator[World]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    world = World(home, workspace, *combination)
    yield world
    with Planarian.open(world.home) as planarian:
        remove_all(planarian)


def _prepare(world: World) -> Description:
    """Statepoint ``one`` with counter 1; then other files and counter 2. Returns the tree of ``one``."""
    with Planarian.open(world.home) as planarian:
        sandbox = planarian.create_sandbox(
            world.workspace,
            name="box",
            sandbox=world.sandbox,
            filesystem=world.filesystem,
            process=world.process,
        )
        world.sandbox_id = sandbox.id
        sandbox.run("mkdir src; echo one > src/a; ln src/a src/b; ln -s a src/c; chmod 750 src")
        sandbox.spawn(["python3", "-c", COUNTER_SERVER, SOCKET])
        sandbox.run(f"until test -S {SOCKET}; do sleep 0.01; done", timeout=30)
        assert world.ask(sandbox, "add") == 1
        planarian.snapshot(sandbox, name="one")
        tree = world.tree(sandbox)
        sandbox.run("echo two > src/a; rm src/c; mkdir new; echo new > new/file")
        assert world.ask(sandbox, "add") == 2
        return tree


def _points(operation: str) -> list[str]:
    return [point for point in POINTS if point.startswith(f"{operation}.")]


@pytest.mark.parametrize("point", _points("snapshot"))
def test_killed_in_a_snapshot(world: World, point: str) -> None:
    _prepare(world)
    assert world.operate("snapshot", "box", "two", fault=f"{point}=kill") == -9
    with Planarian.open(world.home) as planarian:
        sandbox = planarian.sandbox("box")
        two = [s for s in planarian.registry.statepoints(sandbox.id) if s.name == "two"]
        expected = Status.COMMITTED if point == "snapshot.committed" else Status.DISCARDED
        assert [s.status for s in two] == [expected]
        assert not planarian.registry.operations()
        assert world.ask(sandbox, "add") == 3, "the sandbox runs on, not frozen, memory untouched"
        assert sandbox.run("cat new/file").stdout == "new\n"
        if expected is Status.DISCARDED:
            assert planarian.registry.branch(sandbox.id).head == planarian.resolve(sandbox, "one").id
            planarian.snapshot(sandbox, name="two")
        planarian.rollback(sandbox, "one")
        assert world.ask(sandbox, "get") == (1 if world.memory else 0)


@pytest.mark.parametrize("point", _points("rollback"))
def test_killed_in_a_rollback(world: World, point: str) -> None:
    one = _prepare(world)
    with Planarian.open(world.home) as planarian:
        two = world.tree(planarian.sandbox("box"))
    assert world.operate("rollback", "box", "one", fault=f"{point}=kill") == -9
    with Planarian.open(world.home) as planarian:
        sandbox = planarian.sandbox("box")
        assert not planarian.registry.operations(), planarian.recovered
        gone_back = point not in ("rollback.begun", "rollback.staged")
        assert_same(world.tree(sandbox), one if gone_back else two)
        if gone_back:
            assert world.ask(sandbox, "add") == (2 if world.memory else 1)
            safety = planarian.registry.statepoints(sandbox.id)[-1]
            assert safety.processes, safety.coverage
            planarian.rollback(sandbox, safety)
            assert_same(world.tree(sandbox), two)  # what the rollback left behind can be had again
        assert world.ask(sandbox, "add") == 3 if world.memory else world.ask(sandbox, "add") >= 1
        planarian.rollback(sandbox, "one")
        assert_same(world.tree(sandbox), one)


@pytest.mark.parametrize("point", _points("fork"))
def test_killed_in_a_fork(world: World, point: str) -> None:
    one = _prepare(world)
    before = _processes(world)
    assert world.operate("fork", "box", "one", fault=f"{point}=kill") == -9
    with Planarian.open(world.home) as planarian:
        sandbox = planarian.sandbox("box")
        assert world.ask(sandbox, "add") == 3, "the source was not touched"
        forks = [r for r in planarian.registry.sandboxes() if r.id != sandbox.id]
        if point == "fork.committed":
            fork = planarian.sandbox(forks[0].id)
            assert_same(world.tree(fork), one)
            assert world.ask(fork, "add") == (2 if world.memory else 1)
            return
        assert forks == []
        assert [p.name for p in (world.home / "sandboxes").iterdir()] == [sandbox.id]
        assert not planarian.registry.operations()
        assert _processes(world) == before, "no process of the fork runs on"
        assert_same(world.tree(planarian.fork("one", of=sandbox)), one)


@pytest.mark.parametrize("point", _points("remove"))
def test_killed_in_a_removal(world: World, point: str) -> None:
    _prepare(world)
    assert world.operate("remove", "box", fault=f"{point}=kill") == -9
    with Planarian.open(world.home) as planarian:
        assert planarian.registry.sandboxes() == []
        assert planarian.registry.statepoints() == [], "none is left that looks restorable and isn't"
        for folder in ("sandboxes", "statepoints"):
            assert list((world.home / folder).iterdir()) == []
        assert world.files_kept() == []
    assert _processes(world) == 0
    assert world.workspace.is_dir()


@pytest.mark.parametrize("point", _points("create"))
def test_killed_in_a_creation(world: World, point: str) -> None:
    before = _processes(world)
    arguments = ("create", "box", str(world.workspace), world.sandbox, world.process, world.filesystem)
    assert world.operate(*arguments, fault=f"{point}=kill") == -9
    with Planarian.open(world.home) as planarian:
        assert planarian.registry.sandboxes() == []
        assert list((world.home / "sandboxes").iterdir()) == []
        assert world.files_kept() == []
    assert _processes(world) == before
    assert world.workspace.is_dir(), "the user's workspace is never removed"
    world.operate(*arguments)


def _processes(world: World) -> int:
    """How many processes run for this home: their command line, environment or own mounts name it."""
    home, host, found = os.fsencode(world.home), os.readlink("/proc/self/ns/mnt"), 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            mounts = ["mountinfo"] if os.readlink(entry / "ns" / "mnt") != host else []  # ZFS's are the host's too
            texts = [(entry / name).read_bytes() for name in ("cmdline", "environ", *mounts)]
        except OSError:
            continue
        found += any(home in text for text in texts)
    return found
