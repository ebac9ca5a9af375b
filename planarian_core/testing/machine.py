"""A Hypothesis state machine over a whole runtime: files, a live server, snapshots, rollbacks, forks, kills.

The model is as plain as can be: a *shadow* directory on the host to which the same file operations are applied, copied
at each snapshot, and a number for the counter. Subclass :class:`EnvironmentMachine`, set ``backends``, run it::

    hypothesis.stateful.run_state_machine_as_test(MyMachine)

Works on Linux; real processes, real files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from planarian_core import Planarian
from planarian_core.sandbox import Sandbox
from planarian_core.testing.oracle import Description, assert_same
from planarian_core.testing.workloads import ASK_COUNTER, COUNTER_SERVER, describe_beside_socket, remove_all

_OPERATIONS = """\
import json, os, shutil, sys

def opener(path, flags): return os.open(path, flags | os.O_NONBLOCK)  # a fifo without a reader must not hold us up

def change(root, kind, path, other, number):
    path, other = os.path.join(root, path), os.path.join(root, other)
    if kind == "write":
        with open(path, "wb", opener=opener) as file: file.write(b"%d" % number * number)
    elif kind == "append":
        with open(path, "ab", opener=opener) as file: file.write(b"+%d" % number)
    elif kind == "patch":
        with open(path, "r+b", opener=opener) as file: file.seek(number); file.write(b"patched")
    elif kind == "truncate": os.truncate(path, number)
    elif kind == "sparse":
        with open(path, "wb", opener=opener) as f: f.truncate(1 << 20); f.seek(number << 12); f.write(b"data")
    elif kind == "unlink": os.unlink(path)
    elif kind == "mkdir": os.mkdir(path)
    elif kind == "rmtree": shutil.rmtree(path)
    elif kind == "rename": os.rename(path, other)
    elif kind == "symlink": os.symlink("a/%d" % number, path)
    elif kind == "link": os.link(path, other)
    elif kind == "chmod": os.chmod(path, 0o400 | number & 0o333 | (0o700 if os.path.isdir(path) else 0))
    elif kind == "mtime": os.utime(path, ns=(number, number * 1000003))
    elif kind == "fifo": os.mkfifo(path)
    elif kind == "xattr": os.setxattr(path, "user.number", b"%d" % number, follow_symlinks=False)

def changes(root, steps):
    done = []
    for step in steps:
        try:
            change(root, *step)
            done.append(True)
        except OSError:
            done.append(False)
    return done
"""

_namespace: dict[str, object] = {}
exec(_OPERATIONS, _namespace)  # noqa: S102  # the constant above, which also runs inside the sandbox

PATHS = ["a", "b", "c", "a/x", "a/y", "b/x", "b/y/z", "c/x"]
_KINDS = ["write", "append", "patch", "truncate", "sparse", "unlink", "mkdir", "rmtree", "rename", "symlink", "link"]
_KINDS += ["chmod", "mtime", "fifo", "xattr", "write", "mkdir", "link", "rename"]  # some more often
_STEPS = st.lists(
    st.tuples(st.sampled_from(_KINDS), st.sampled_from(PATHS), st.sampled_from(PATHS), st.integers(0, 60)),
    min_size=1,
    max_size=6,
)
_SOCKET = "counter.sock"
_OPEN = "import sys; from planarian_core import Planarian as P; p = P.open(sys.argv[1]); s = p.sandbox(sys.argv[2])"


@dataclass
class Saved:
    """What the model knows of a statepoint."""

    shadow: Path
    exact: Description
    count: int


@dataclass
class World:
    """A sandbox and its model."""

    sandbox: str
    shadow: Path
    count: int


class EnvironmentMachine(RuleBasedStateMachine):
    """Every statepoint can be had back exactly, whatever happened in between."""

    backends: ClassVar[tuple[str, str, str]] = ("directory", "copy", "respawn")
    """Names of the sandbox, filesystem and process backend."""
    memory: ClassVar[bool] = False
    kills: ClassVar[tuple[str, ...]] = ("snapshot.files", "snapshot.durable", "rollback.stopped", "rollback.switched")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="planarian-machine-"))
        (self.folder / "workspace").mkdir()
        self.planarian = Planarian.open(self.make_home())
        self.worlds: list[World] = []
        self.saved: dict[str, Saved] = {}
        self.owners: dict[str, str] = {}

    def make_home(self) -> Path:
        """Where the home is to be; for a subclass to prepare it."""
        return self.folder / "home"

    def teardown(self) -> None:
        remove_all(self.planarian)
        self.planarian.close()
        self.remove_home()
        super().teardown()

    def remove_home(self) -> None:
        """Remove the folder, and what :meth:`make_home` made elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- helpers ---

    def _handle(self, world: World) -> Sandbox:
        return self.planarian.sandbox(world.sandbox)

    def _root(self, world: World) -> Path:
        record = self._handle(world).record
        assert record.live is not None
        isolated = self.planarian.plugins.sandbox(record.spec.backend).capabilities.isolated
        return Path(f"/proc/{record.live.init_pid}/root" if isolated else "/") / record.spec.workspace.lstrip("/")

    def _exact(self, world: World) -> Description:
        return describe_beside_socket(self._root(world), _SOCKET)

    def _copy(self, shadow: Path) -> Path:
        copy = Path(tempfile.mkdtemp(dir=self.folder)) / "shadow"
        subprocess.run(["cp", "-a", "--", str(shadow), str(copy)], check=True, timeout=60)
        return copy

    def _ask(self, world: World, what: str) -> int:
        result = self._handle(world).run(["python3", "-c", ASK_COUNTER, _SOCKET, what], timeout=60)
        assert result.exit_code == 0, result.stderr
        return int(result.stdout)

    def _wait_for_server(self, world: World) -> None:
        ask = ["python3", "-c", ASK_COUNTER, _SOCKET, "get"]
        for _ in range(200):
            if self._handle(world).run(ask, timeout=60).exit_code == 0:
                return
            time.sleep(0.02)
        raise AssertionError("the server did not come up")

    def _recount(self, count: int) -> int:
        """The counter after a restore: memory comes back, or the server starts anew."""
        return count if self.memory else 0

    # --- rules ---

    @initialize()
    def start(self) -> None:
        names = dict(zip(("sandbox", "filesystem", "process"), self.backends, strict=True))
        self.planarian.with_config(**names)
        sandbox = self.planarian.create_sandbox(self.folder / "workspace")
        shadow = self.folder / "shadow"
        shadow.mkdir()
        world = World(sandbox.id, shadow, 0)
        self.worlds.append(world)
        sandbox.spawn(["python3", "-c", COUNTER_SERVER, _SOCKET])
        self._wait_for_server(world)

    @rule(which=st.integers(0, 9), steps=_STEPS)
    def change(self, which: int, steps: list[tuple[str, str, str, int]]) -> None:
        world = self.worlds[which % len(self.worlds)]
        script = f"{_OPERATIONS}\nprint(json.dumps(changes('.', json.loads(sys.argv[1]))))"
        result = self._handle(world).run(["python3", "-c", script, json.dumps(steps)], timeout=60)
        assert result.exit_code == 0, result.stderr
        expected = _namespace["changes"](str(world.shadow), steps)  # type: ignore[operator]  # from exec
        assert json.loads(result.stdout) == expected, "the sandbox's file system answers as the host's does"

    @rule(which=st.integers(0, 9))
    def count(self, which: int) -> None:
        world = self.worlds[which % len(self.worlds)]
        world.count += 1
        assert self._ask(world, "add") == world.count

    @rule(which=st.integers(0, 9))
    def take(self, which: int) -> None:
        self.snapshot(which)

    def snapshot(self, which: int) -> str:
        """Take a statepoint of a world; its id."""
        world = self.worlds[which % len(self.worlds)]
        statepoint = self.planarian.snapshot(self._handle(world))
        self.saved[statepoint.id] = Saved(self._copy(world.shadow), self._exact(world), world.count)
        self.owners[statepoint.id] = world.sandbox
        return statepoint.id

    def _own(self, world: World) -> list[str]:
        return [statepoint for statepoint, owner in self.owners.items() if owner == world.sandbox]

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 9), at=st.integers(0, 99))
    def rollback(self, which: int, at: int) -> None:
        world = self.worlds[which % len(self.worlds)]
        own = self._own(world)
        if not own:
            return
        self.planarian.rollback(self._handle(world), own[at % len(own)])
        self._went_back(world, own[at % len(own)])

    def _went_back(self, world: World, statepoint: str) -> None:
        saved = self.saved[statepoint]
        self._wait_for_server(world)
        world.shadow = self._copy(saved.shadow)
        world.count = self._recount(saved.count)
        self._check_exact(world, saved)

    def _check_exact(self, world: World, saved: Saved) -> None:
        assert_same(self._exact(world), saved.exact)
        assert self._ask(world, "get") == world.count

    @precondition(lambda self: self.saved and len(self.worlds) < 3)
    @rule(at=st.integers(0, 99))
    def fork(self, at: int) -> None:
        chosen = list(self.saved)[at % len(self.saved)]
        sandbox = self.planarian.fork(self.planarian.registry.statepoint(chosen))
        saved = self.saved[chosen]
        world = World(sandbox.id, self._copy(saved.shadow), self._recount(saved.count))
        self.worlds.append(world)
        self._wait_for_server(world)
        self._check_exact(world, saved)

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 9), at=st.integers(0, 99), point=st.integers(0, 99))
    def kill(self, which: int, at: int, point: int) -> None:
        """Another runtime is killed in the middle; this one finishes what it left."""
        world = self.worlds[which % len(self.worlds)]
        own = self._own(world)
        if not own:
            return
        world.count += 1
        assert self._ask(world, "add") == world.count, "so that there is something to capture"
        fault = self.kills[point % len(self.kills)]
        chosen = own[at % len(own)]
        call = "rollback(s, sys.argv[3])" if fault.startswith("rollback") else "snapshot(s)"
        script = f"{_OPEN}; p.{call}"
        arguments = [sys.executable, "-c", script, str(self.planarian.home), world.sandbox, chosen]
        env = {**os.environ, "PLANARIAN_FAULT": f"{fault}=kill"}
        done = subprocess.run(arguments, env=env, capture_output=True, timeout=120, check=False)
        assert done.returncode == -9, done.stderr.decode()
        recovered = self.planarian.recover()
        assert [r.error for r in recovered] == [""] * len(recovered)
        if fault.startswith("rollback"):
            self._went_back(world, chosen)

    @invariant()
    def files_are_the_model_s(self) -> None:
        for world in self.worlds:
            assert_same(_loosely(self._exact(world)), _loosely(describe_beside_socket(world.shadow, _SOCKET)))


def _loosely(tree: Description) -> Description:
    """Without modification times, which differ between the sandbox and its shadow."""
    return {path: entry if path == b"." else (*entry[:3], *entry[4:]) for path, entry in tree.items()}
