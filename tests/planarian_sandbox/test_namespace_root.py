"""Sandboxes on another root file system than the host's: an unpacked image, whose content is anybody's."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian, Sandbox
from planarian_core.errors import BackendUnavailable, ConfigurationError, PlanarianError, RestoreError, SandboxError
from planarian_core.testing.small_root import small_root
from planarian_core.testing.workloads import remove_all

pytestmark = pytest.mark.needs("root", "namespaces")

PROCESSES = [pytest.param("respawn", id="respawn"), pytest.param("criu", id="criu", marks=pytest.mark.needs("criu"))]
MakeSandbox = Callable[..., Sandbox]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small_root(tmp_path / "root")


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield planarian
        remove_all(planarian)


@pytest.fixture
def make(planarian: Planarian, root: Path) -> MakeSandbox:
    def make(process: str = "respawn", workspace: str = "/project", network: str = "") -> Sandbox:
        return planarian.create_sandbox(workspace, root=root, sandbox="namespace", process=process, network=network)

    return make


def snapshot_of(root: Path) -> dict[str, tuple[int, int, int, int]]:
    """All names below a root with what a write to them would change."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            status = os.lstat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns
    return found


def test_the_image_s_files_are_there_and_the_host_s_are_not(make: MakeSandbox, root: Path, tmp_path: Path) -> None:
    (tmp_path / "of-the-host").write_text("secret")
    before = snapshot_of(root)
    sandbox = make()
    assert sandbox.workspace == "/project"
    assert "ID=small" in sandbox.run("cat /etc/os-release").stdout
    assert sandbox.run("cat answer.txt").stdout == "41\n"
    assert sandbox.run(f"ls {tmp_path}").exit_code != 0
    assert sandbox.run(["python3", "-c", "import os; print(os.path.exists('/usr/bin/perl'))"]).stdout == "False\n"
    done = sandbox.run("echo 42 > answer.txt; echo x > /usr/lib/new; rm /etc/passwd; chmod 700 /usr/bin/ls; ls /")
    assert done.exit_code == 0, done.stderr
    assert sandbox.run("cat answer.txt").stdout == "42\n"
    assert snapshot_of(root) == before


@pytest.mark.parametrize("process", PROCESSES)
def test_rollback_and_forks_bring_the_image_s_files_and_processes_back(
    make: MakeSandbox, planarian: Planarian, process: str
) -> None:
    sandbox = make(process)
    sandbox.run("echo good > answer.txt; echo good > /etc/own")
    counter = (
        "import os, time\nn = 0\nwhile True:\n  n += 1; open('/run/m', 'w').write(str(n));"
        " os.rename('/run/m', '/run/n'); time.sleep(0.02)"
    )
    sandbox.spawn(["python3", "-c", counter])
    sandbox.run("until [ -s /run/n ]; do sleep 0.1; done")
    at_least = int(sandbox.run("cat /run/n").stdout)
    good = planarian.snapshot(sandbox, name="good")
    sandbox.run("echo bad > answer.txt; rm /etc/own; rm /usr/bin/cat")
    sandbox.rollback(good)
    fork = planarian.fork(good)
    for one in (sandbox, fork):
        assert one.run("cat answer.txt /etc/own").stdout == "good\ngood\n"
        one.run("rm -f /run/n; until [ -s /run/n ]; do sleep 0.1; done")
        counted = int(one.run("cat /run/n").stdout)
        assert counted >= at_least if process == "criu" else counted > 0
    fork.run("echo other > answer.txt")
    assert sandbox.run("cat answer.txt").stdout == "good\n"
    changed = {change.path for change in planarian.diff(good, of=fork).files}
    assert {"answer.txt"} <= changed <= {"answer.txt", "/run", "/run/n", "/run/m"}


def test_sessions_and_requests_from_inside(make: MakeSandbox) -> None:
    sandbox = make()
    sandbox.run("export ONE=1; cd /usr", session="s")
    assert sandbox.run("echo $ONE $PWD", session="s").stdout == "1 /usr\n"
    assert sandbox.run("planarian snapshot here && planarian ledger").stdout.count("`here`") == 1


@pytest.mark.needs("criu")
def test_the_base_is_the_image_s(make: MakeSandbox, planarian: Planarian, root: Path) -> None:
    """Memory that was mapped from other files is not brought back over it."""
    sandbox = make("criu")
    sandbox.spawn(["sleep", "1000"])
    good = planarian.snapshot(sandbox, name="good")
    (root / "etc" / "os-release").write_text("ID=another\n")
    with pytest.raises(RestoreError):
        planarian.rollback(sandbox, good)


@pytest.mark.parametrize("name", ["dev", "proc", "run", "tmp", "sys"])
def test_a_symlink_for_a_directory_that_is_mounted_leads_nowhere(
    make: MakeSandbox, root: Path, tmp_path: Path, name: str
) -> None:
    aim = tmp_path / "aim"
    aim.mkdir()
    if (root / name).exists():
        (root / name).rmdir()
    (root / name).symlink_to(aim)
    sandbox = make()
    assert sandbox.run("ls /proc/1 && echo x > /dev/null && echo y > /tmp/y && echo z > /run/z").exit_code == 0
    assert list(aim.iterdir()) == []


@pytest.mark.parametrize("path", ["project", "deep/project"])
def test_a_workspace_behind_a_symlink_is_refused(make: MakeSandbox, root: Path, tmp_path: Path, path: str) -> None:
    """It would copy whatever of the host's the image points to into the sandbox."""
    (tmp_path / "aim" / "project").mkdir(parents=True)
    (tmp_path / "aim" / "secret").write_text("secret")
    (root / "project" / "answer.txt").unlink()
    (root / "project").rmdir()
    (root / path.partition("/")[0]).symlink_to(tmp_path / "aim")
    with pytest.raises(ConfigurationError, match="can't be a workspace"):
        make(workspace=f"/{path}")


def test_symlinks_in_the_workspace_stay_symlinks(make: MakeSandbox, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (root / "project" / "link").symlink_to(tmp_path / "secret")
    sandbox = make()
    assert sandbox.run("cat link").exit_code != 0


def test_devices_and_setuid_programs_of_the_image_give_nothing(make: MakeSandbox, root: Path) -> None:
    os.mknod(root / "memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    os.mknod(root / "project" / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    (root / "usr" / "bin" / "id").chmod(0o4755)
    sandbox = make()
    assert sandbox.run("cat < /memory").exit_code != 0
    assert sandbox.run("cat < zero").exit_code != 0
    as_nobody = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534); os.execvp('id', ['id', '-u'])"
    assert sandbox.run(["python3", "-c", as_nobody]).stdout == "65534\n"


def test_a_python_that_is_a_link_to_the_host_s_is_none(make: MakeSandbox, root: Path, tmp_path: Path) -> None:
    """It is looked up inside, where the host's isn't."""
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\ntouch /ran\n")
    program.chmod(0o755)
    (root / "usr" / "bin" / "python3").unlink()
    (root / "usr" / "bin" / "python3").symlink_to(program)
    with pytest.raises(SandboxError):
        make()
    assert not Path("/ran").exists()


def test_an_image_without_python_is_refused(make: MakeSandbox, root: Path, planarian: Planarian) -> None:
    (root / "usr" / "bin" / "python3").unlink()
    with pytest.raises(SandboxError, match=r"There is no /usr/bin/python3 in"):
        make()
    assert planarian.registry.sandboxes() == []


def test_what_can_not_be_a_root_or_a_workspace_is_refused(planarian: Planarian, root: Path, tmp_path: Path) -> None:
    for place, workspace in ((Path("/"), "/project"), (tmp_path, "/project"), (root / "etc" / "passwd", "/project")):
        with pytest.raises(ConfigurationError, match="can't be a root"):
            planarian.create_sandbox(workspace, root=place, sandbox="namespace")
    for workspace in ("/", "/usr", "project", "/nonesuch", "/../project/..", "/proc/1"):
        with pytest.raises(ConfigurationError, match="can't be a workspace"):
            planarian.create_sandbox(workspace, root=root, sandbox="namespace")
    with pytest.raises(BackendUnavailable, match="can't stand on another root"):
        planarian.create_sandbox("/project", root=root, sandbox="directory")


def test_nothing_is_applied_to_the_host_or_exported(make: MakeSandbox, planarian: Planarian, tmp_path: Path) -> None:
    sandbox = make()
    sandbox.run("echo 42 > answer.txt")
    good = planarian.snapshot(sandbox, name="good")
    with pytest.raises(ConfigurationError, match="stands on an image"):
        planarian.apply(sandbox)
    with pytest.raises(PlanarianError, match="which a bundle doesn't hold"):
        planarian.export(good, tmp_path / "bundle")


def test_with_the_host_s_network_names_are_resolved_as_on_the_host(make: MakeSandbox) -> None:
    sandbox = make(network="host")
    assert sandbox.run("cat /etc/resolv.conf").stdout == Path("/etc/resolv.conf").read_text()
