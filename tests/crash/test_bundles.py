"""kill -9 and a full disk at every named point of export and import: nothing lost, nothing half-visible."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.bundle_format import BundleError
from planarian_core.errors import PlanarianError
from planarian_core.faults import POINTS
from planarian_core.sandbox import Sandbox
from planarian_core.testing.oracle import Description, assert_same
from planarian_core.testing.workloads import ask_counter, describe_beside_socket, remove_all, start_counter

SOCKET = "counter.sock"
RUNTIME = """\
import sys
from planarian_core import Planarian
home, operation, file = sys.argv[1:]
with Planarian.open(home) as planarian:
    if operation == "export":
        planarian.export("one", file, of=planarian.sandbox())
    else:
        planarian.import_(file)
"""


@dataclass
class World:
    """A home with one statepoint of a counting server, and another home with the same key."""

    source: Path
    target: Path
    bundle: Path
    backend: str
    memory: bool

    def operate(self, operation: str, fault: str = "") -> int:
        """Export in the source, or import in the target, by a runtime of its own."""
        home = self.source if operation == "export" else self.target
        env = {**os.environ, "PLANARIAN_FAULT": fault}
        command = [sys.executable, "-c", RUNTIME, str(home), operation, str(self.bundle)]
        done = subprocess.run(command, env=env, capture_output=True, timeout=120, check=False)
        if not fault:
            assert done.returncode == 0, done.stderr.decode()
        return done.returncode

    def tree(self, sandbox: Sandbox) -> Description:
        live = sandbox.record.live
        assert live is not None
        root = Path(f"/proc/{live.init_pid}/root") if self.backend == "namespace" else Path("/")
        return describe_beside_socket(root / sandbox.workspace.lstrip("/"), SOCKET)


def _ask(sandbox: Sandbox, what: str) -> int:
    return ask_counter(sandbox, SOCKET, what, tries=200)


@pytest.fixture
def world(backends: tuple[str, str], tmp_path: Path) -> Iterator[World]:
    """The server has counted to 2; statepoint ``one`` was taken at 1."""
    backend, process = backends
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "below").write_text("below")
    world = World(tmp_path / "source", tmp_path / "target", tmp_path / "bundle", backend, process == "criu")
    with Planarian.open(world.source) as planarian:
        sandbox = planarian.create_sandbox(workspace, name="box", sandbox=backend, filesystem="copy", process=process)
        sandbox.run("mkdir src; echo one > src/a; ln src/a src/b; ln -s a src/c; chmod 750 src")
        start_counter(sandbox, SOCKET)
        assert _ask(sandbox, "add") == 1
        planarian.snapshot(sandbox, name="one")
        assert _ask(sandbox, "add") == 2
    yield world
    for home in (world.target, world.source):
        with Planarian.open(home) as planarian:
            remove_all(planarian)


def _points(operation: str) -> list[str]:
    return [point for point in POINTS if point.startswith(f"{operation}.")]


def _share_key(world: World) -> None:
    with Planarian.open(world.target):
        shutil.copy(world.source / "bundle.key", world.target / "bundle.key")


@pytest.mark.parametrize("point", _points("export"))
def test_killed_in_an_export(world: World, point: str) -> None:
    assert world.operate("export", f"{point}=kill") == -9
    assert world.bundle.exists() == (point == "export.committed"), "half a bundle never has the name"
    with Planarian.open(world.source) as planarian:
        assert planarian.registry.operations() == []
        sandbox = planarian.sandbox("box")
        assert _ask(sandbox, "add") == 3, "the sandbox was not touched"
        if point != "export.committed":
            planarian.export("one", world.bundle, of=sandbox)
        assert not world.bundle.with_name("bundle.partial").exists()
    _share_key(world)
    assert world.operate("import") == 0


@pytest.mark.parametrize("point", _points("import"))
def test_killed_in_an_import(world: World, point: str) -> None:
    world.operate("export")
    with Planarian.open(world.source) as planarian:
        original = planarian.sandbox("box")
        planarian.rollback(original, "one")
        tree = world.tree(original)
        original_id = original.id
    _share_key(world)
    assert world.operate("import", f"{point}=kill") == -9
    with Planarian.open(world.target) as planarian:
        assert planarian.registry.operations() == []
        if point != "import.committed":
            assert planarian.registry.sandboxes() == []
            assert planarian.registry.statepoints() == []
            for folder in ("sandboxes", "statepoints", "origins", "store/roots"):
                path = world.target / folder
                assert not path.is_dir() or list(path.iterdir()) == [], folder
            blobs = [path for path in (world.target / "store").rglob("*") if path.is_file() and len(path.name) == 64]
            assert blobs == [], "what nobody needs takes no room"
            planarian.import_(world.bundle)
        with pytest.raises(BundleError, match="already"):
            planarian.import_(world.bundle)
        sandbox = planarian.sandbox(original_id)
        planarian.rollback(sandbox, "@head")
        assert_same(world.tree(sandbox), tree)
        assert _ask(sandbox, "add") == (2 if world.memory else 1)


@pytest.mark.parametrize("operation", ["export", "import"])
def test_a_full_disk(world: World, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if operation == "import":
        world.operate("export")
    home = world.source if operation == "export" else world.target
    with Planarian.open(home) as planarian:
        for point in _points(operation)[:-1]:
            monkeypatch.setenv("PLANARIAN_FAULT", f"{point}=fail")
            with pytest.raises(BundleError) as caught:
                _run(planarian, operation, world.bundle)
            assert "space" in caught.value.remedy
            assert planarian.registry.operations() == []
            assert not world.bundle.with_name("bundle.partial").exists()
            if operation == "import":
                assert planarian.registry.sandboxes() == []
                assert list((home / "sandboxes").iterdir()) == list((home / "statepoints").iterdir()) == []
        monkeypatch.delenv("PLANARIAN_FAULT")
        _run(planarian, operation, world.bundle)


def _run(planarian: Planarian, operation: str, bundle: Path) -> None:
    if operation == "export":
        planarian.export("one", bundle, of=planarian.sandbox("box"))
    else:
        planarian.import_(bundle)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 14 MB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=14m", "small", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.needs("root", "namespaces")
def test_a_disk_that_is_really_full(tmp_path: Path, small: Path) -> None:
    """A file that fits once but not twice: the check finds room, the writing doesn't."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "content").write_bytes(os.urandom(8_000_000))
    with Planarian.open(tmp_path / "source") as planarian:
        sandbox = planarian.create_sandbox(workspace, sandbox="directory", filesystem="copy", process="none")
        planarian.snapshot(sandbox, name="one")
        bundle = planarian.export("one", small / "bundle", of=sandbox)
        with pytest.raises(BundleError, match="space"):
            planarian.export("one", small / "second", of=sandbox)
        assert list(small.iterdir()) == [bundle]
        bundle = Path(shutil.move(bundle, tmp_path / "bundle"))
        remove_all(planarian)
    with Planarian.open(small) as planarian:
        with pytest.raises(PlanarianError, match="space") as caught:
            planarian.import_(bundle)
        assert caught.value.remedy
        assert not planarian.registry.sandboxes()
        assert not planarian.registry.operations()
        assert list((small / "sandboxes").iterdir()) == []
        kept = sum(path.stat().st_size for path in (small / "store").rglob("*") if path.is_file())
        assert kept < 100_000
