"""A namespace sandbox whose layer lies in a pool: what it sees of that, what it can do to it, and what comes back."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.sandbox import Sandbox
from planarian_core.testing.btrfs import loop_btrfs
from planarian_core.testing.workloads import remove_all
from planarian_filesystem import pool_making
from planarian_filesystem.pool import Pool

pytestmark = pytest.mark.needs("btrfs", "root", "namespaces")

MAKE_SUBVOLUME = """
import fcntl, os, struct, sys
for place in sys.argv[1:]:
    try:
        fcntl.ioctl(os.open(place, os.O_RDONLY), 0x50009418, bytearray(struct.pack("=qQQ32s4040s", 0, 0, 0, b"", b"n")))
        print("made in", place)
    except OSError:
        pass
"""


@pytest.fixture(params=["file", "directory"])
def planarian(request: pytest.FixtureRequest, tmp_path: Path, btrfs: Path) -> Iterator[Planarian]:
    """A home with a pool of either kind."""
    home = tmp_path / "home"
    if request.param == "file":
        pool_making.create_file(Pool(home), 1024**3, sparse=True)
    else:
        pool_making.create_directory(Pool(home), btrfs)
    with Planarian.open(home) as planarian:
        yield planarian
        remove_all(planarian)
    pool_making.destroy(Pool(home))


@pytest.fixture
def sandbox(planarian: Planarian, tmp_path: Path) -> Sandbox:
    (tmp_path / "workspace").mkdir()
    return planarian.create_sandbox(tmp_path / "workspace", sandbox="namespace", process="none")


def test_it_is_the_default_where_there_is_a_pool(planarian: Planarian, sandbox: Sandbox) -> None:
    assert sandbox.record.filesystem == "btrfs"
    assert Path(sandbox.record.spec.layer).parent == Pool(planarian.home).ready()


def test_neither_home_nor_pool_is_in_sight(planarian: Planarian, sandbox: Sandbox) -> None:
    layers = Pool(planarian.home).ready()
    (layers / sandbox.id / "marker").write_text("secret")
    paths = [str(planarian.home), str(planarian.home / "pool"), str(layers), str(layers / sandbox.id / "marker")]
    for path in paths:
        assert sandbox.run(["ls", "-d", path]).exit_code != 0, path
    mounted = sandbox.run(["cat", "/proc/self/mountinfo"]).stdout
    assert mounted
    assert "btrfs" not in mounted
    assert str(layers) not in mounted
    for process in sandbox.run("ls -d /proc/[0-9]*").stdout.split():
        assert sandbox.run(["ls", f"{process}/root{layers}"]).exit_code != 0


def test_a_pool_outside_the_home_is_hidden_where_it_would_show(tmp_path: Path) -> None:
    """By a whiteout, beyond its being a mount of its own: the root file system may be that btrfs itself."""
    (tmp_path / "workspace").mkdir()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, loop_btrfs(Path(folder)) as mounted:
        pool = Pool(tmp_path / "home")
        pool_making.create_directory(pool, mounted)
        with Planarian.open(pool.home) as planarian:
            sandbox = planarian.create_sandbox(tmp_path / "workspace", sandbox="namespace", process="none")
            covering = Path(sandbox.record.spec.layer, "upper", *pool.ready().parts[1:])
            assert stat.S_ISCHR(os.lstat(covering).st_mode)
            remove_all(planarian)


def test_its_root_can_make_no_subvolume(sandbox: Sandbox) -> None:
    places = ["/", *(f"/{name}" for name in ("tmp", "root", "run", "dev/shm")), sandbox.workspace]
    result = sandbox.run(["python3", "-c", MAKE_SUBVOLUME, *places])
    assert (result.exit_code, result.stdout) == (0, "")


def test_files_come_back_after_overlay_mounted_them_again(planarian: Planarian, sandbox: Sandbox) -> None:
    """Hard links across copy-up, renamed lower directories and whiteouts: what an overlay keeps in its index."""
    workspace = sandbox.workspace
    sandbox.run("mkdir -p a/b; echo one > a/b/file; ln a/b/file a/linked; git init -q repo; echo x > /etc/made")
    sandbox.run("cp -a /usr/share/doc/coreutils /root/copied; mv /etc/cron.d /etc/moved; rm -r /etc/default")
    looked = "find . /etc/made /etc/moved /root/copied | sort; stat -c %h a/linked; cat a/linked; ls /etc/default"
    shows = f"cd {workspace}; {looked}"
    before = sandbox.run(shows)
    one = planarian.snapshot(sandbox, name="one")
    sandbox.run("rm -r a repo /root/copied /etc/moved; echo 1 > /etc/default")
    assert sandbox.run(shows).stdout != before.stdout
    for _ in range(2):
        planarian.rollback(sandbox, one)
        after = sandbox.run(shows)
        assert (after.stdout, after.stderr) == (before.stdout, before.stderr)
        sandbox.run("echo two >> a/b/file; rm -rf repo /root/copied")
        assert sandbox.run("cat a/linked").stdout == "one\ntwo\n"
    fork = planarian.fork(one)
    assert fork.run(shows).stdout == before.stdout
    assert sandbox.run("cat a/linked").stdout == "one\ntwo\n"


def test_what_is_removed_leaves_nothing_in_the_pool(planarian: Planarian, sandbox: Sandbox) -> None:
    one = planarian.snapshot(sandbox)
    planarian.rollback(sandbox, one)
    fork = planarian.fork(one)
    planarian.remove_sandbox(fork)
    planarian.remove_sandbox(sandbox)
    layers = Pool(planarian.home).ready()
    left = subprocess.run(["find", str(layers), "-mindepth", "1"], capture_output=True, text=True, check=True).stdout
    assert sorted(left.split()) == [f"{layers}/.origins", f"{layers}/.statepoints"]
