"""``export`` and ``import`` as a user types them: from one home into another, on fakes and on real backends."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core.testing.workloads import ASK_COUNTER, COUNTER_SERVER

NAMESPACE = ("--sandbox", "namespace", "--filesystem", "copy", "--process", "criu")
DIRECTORY = ("--sandbox", "directory", "--filesystem", "copy", "--process", "respawn")
FAKES = 'sandbox = "fake"\nfilesystem = "fake"\nprocess = "fake"\n'


def _other(cli: Any, name: str = "other") -> Any:
    """The same command on another home."""
    return type(cli)(cli.home.with_name(name), cli.home.parent / "site", cli.cwd)


@pytest.fixture
def other(cli: Any) -> Any:
    found = _other(cli)
    found.home.mkdir(mode=0o700)
    (found.home / "planarian.toml").write_text(FAKES)
    return found


@pytest.fixture
def bundle(cli: Any, tmp_path: Path) -> Path:
    cli("new", "--name", "box")
    cli("run", "--", "sh", "-c", "echo one > f")
    cli("snapshot", "deps", "-d", "dependencies installed")
    cli("outcome", "deps", "it breaks", "--status", "failed")
    return Path(cli("export", "deps", str(tmp_path / "deps.zst")))


def test_export_prints_the_file_and_says_what_is_in_it(cli: Any, bundle: Path, tmp_path: Path) -> None:
    assert bundle.is_file()
    done = cli.run("export", "-s", "box", "deps", str(tmp_path / "second"))
    assert done.stdout.decode() == f"{tmp_path / 'second'}\n"
    assert re.search(r"files of sp-\w+ \(\d+ B\)", done.stderr.decode())
    told = cli.json("export", "deps", str(tmp_path / "third"))
    assert told["file"] == str(tmp_path / "third")
    assert told["bytes"] == (tmp_path / "third").stat().st_size
    assert told["processes"] is False


def test_export_replaces_a_file_only_when_told(cli: Any, bundle: Path) -> None:
    before = bundle.read_bytes()
    assert "--force" in cli.fails(1, "export", "deps", str(bundle))
    assert bundle.read_bytes() == before
    cli("export", "deps", str(bundle), "--force")


def test_export_of_what_is_not_there(cli: Any, bundle: Path, tmp_path: Path) -> None:
    assert "planarian log" in cli.fails(3, "export", "nothing", str(tmp_path / "b"))
    assert "can't be written" in cli.fails(1, "export", "deps", str(tmp_path / "no" / "b"))
    error = json.loads(cli.run("export", "deps", str(bundle), "--json").stdout)
    assert error["error"] == "bundle-exists"


def test_import_makes_a_stopped_sandbox_that_a_rollback_wakes(cli: Any, other: Any, bundle: Path) -> None:
    done = other.run("import", str(bundle), "--name", "mine")
    sandbox = done.stdout.decode().strip()
    said = done.stderr.decode()
    assert "its maker is not known here" in said
    assert f"planarian attach {sandbox}" in said
    (row,) = other.json("list")["sandboxes"]
    assert (row["id"], row["name"], row["state"]) == (sandbox, "mine", "stopped")
    assert row["head"] == cli.json("show", "deps")["id"]
    other("attach", sandbox)
    assert other("run", "cat", "f") == "one"
    assert "it breaks" in other("ledger")
    shown = other.json("show", "deps")
    assert shown["description"] == "dependencies installed"


def test_import_check_reports_and_changes_nothing(cli: Any, other: Any, bundle: Path) -> None:
    told = other.json("import", str(bundle), "--check")
    assert told["checked"] == cli.json("list")["sandboxes"][0]["id"]
    assert told["authentic"] is False
    assert told["filesystem"] == "fake"
    done = other.run("import", "--check", str(bundle))
    assert b"nothing was imported" in done.stderr
    assert other.json("list")["sandboxes"] == []
    assert "in this home already" in cli.fails(1, "import", "--check", str(bundle))
    assert cli.json("import", "--check", "--again", str(bundle))["authentic"] is True


def test_the_same_bundle_twice(other: Any, bundle: Path) -> None:
    first = other("import", str(bundle))
    error = other.fails(1, "import", str(bundle))
    assert first in error
    assert "--again" in error
    second = other.json("import", str(bundle), "--again")["imported"]
    assert second != first
    other("rm", "--yes", first, second)
    other("import", str(bundle))


def test_a_bundle_cut_short(other: Any, bundle: Path) -> None:
    os.truncate(bundle, bundle.stat().st_size - 1)
    error = other.fails(1, "import", str(bundle))
    assert "cut short" in error
    assert "nothing was imported" in error
    assert other.json("list")["sandboxes"] == []


def test_a_bundle_whose_content_was_changed(other: Any, bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 0xFF
    bundle.write_bytes(data)
    error = json.loads(other.run("import", str(bundle), "--json").stdout)
    assert error["error"] == "bundle-damaged"
    assert error["remedy"]


def test_a_full_disk_leaves_nothing(cli: Any, other: Any, bundle: Path, tmp_path: Path) -> None:
    for point in ("begun", "written"):
        error = cli.fails(1, "export", "deps", str(tmp_path / "b"), env={"PLANARIAN_FAULT": f"export.{point}=fail"})
        assert "space" in error
        assert list(tmp_path.glob("b.*")) == []
        assert not (tmp_path / "b").exists()
    for point in ("begun", "unpacked", "captured"):
        error = other.fails(1, "import", str(bundle), env={"PLANARIAN_FAULT": f"import.{point}=fail"})
        assert "space" in error
        assert other.json("list")["sandboxes"] == []
    assert other("import", str(bundle))


def test_a_key_can_be_shared(cli: Any, other: Any, bundle: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    cli("export", "deps", str(tmp_path / "sealed"), "--key-file", str(key))
    assert other.json("import", "--check", str(tmp_path / "sealed"), "--key-file", str(key))["authentic"] is True
    assert other.json("import", "--check", str(tmp_path / "sealed"))["authentic"] is False
    assert other.json("import", "--check", str(bundle), "--key-file", str(key))["authentic"] is False


# --- real backends ---


@pytest.fixture
def homes(bare: Any) -> Iterator[tuple[Any, Any]]:
    """Two homes with nothing in them."""
    second = _other(bare)
    yield bare, second
    for home in (second, bare):
        for row in reversed(home.json("list")["sandboxes"]):
            home("rm", "--yes", row["id"])


def _start_counter(cli: Any, *where: str) -> None:
    cli("run", *where, "--", "sh", "-c", f"exec setsid python3 -c '{COUNTER_SERVER}' c.sock </dev/null >log 2>&1 &")


def _ask(cli: Any, *where: str) -> str:
    deadline = time.monotonic() + 60
    while True:
        done = cli.run("run", *where, "--", "python3", "-c", ASK_COUNTER, "c.sock", "add")
        if done.returncode == 0:
            return str(done.stdout.decode().strip())
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.05)


FILL = r"""
set -e
mkdir -p d/empty 'odd name'; chmod 2750 d; echo text > d/f; ln d/f d/hard; ln -s ../d/f 'odd name/link'
mkfifo d/fifo; truncate -s 5M d/hole; printf x | dd of=d/hole bs=1 seek=3000000 conv=notrunc 2>/dev/null
head -c 9000 /dev/zero > d/zeros; setfattr -n user.note -v kept d/f 2>/dev/null || true
echo changed > below; rm gone; mv lower renamed; touch -d '2001-02-03 04:05:06.123456789' d/f
"""
LOOK = r"""
find . -mindepth 1 ! -name c.sock ! -name log -printf '%p %y %m %U %G %l %T@\n' | sort
find . ! -type d -printf '%p %n\n' | sort
find . -type f ! -name log -exec sha256sum {} + | sort
find d -type f -printf '%b %p\n' | sort
getfattr -d -m - d/f 2>/dev/null || true
"""


@pytest.mark.needs("root", "criu", "namespaces")
def test_a_server_s_memory_comes_to_another_home(homes: tuple[Any, Any], workspace: Path, tmp_path: Path) -> None:
    source, target = homes
    (workspace / "below").write_text("original")
    (workspace / "gone").write_text("will be deleted")
    (workspace / "lower").mkdir()
    (workspace / "lower" / "inside").write_text("seen through a renamed directory")
    os.link(workspace / "below", workspace / "other name of below")
    source("new", *NAMESPACE, "--name", "api")
    source("run", "--", "bash", "-c", FILL)
    source("run", "--", "sh", "-c", "mkdir /opt/mine; echo 1 > /opt/mine/f; rm -f /etc/hostname")
    _start_counter(source)
    assert [_ask(source) for _ in range(3)] == ["1", "2", "3"]
    source("snapshot", "deps")
    seen = source("run", "--", "bash", "-c", LOOK)
    file = source("export", "deps", str(tmp_path / "deps.zst"))
    source("run", "--", "sh", "-c", "rm -rf d")
    assert _ask(source) == "4", "the source was not touched"

    # Without the key only the files come: what CRIU runs as root is not taken from just anybody.
    told = target.json("import", file)
    assert (told["authentic"], told["processes"]) == (False, False)
    assert any("python3" in gap["subject"] for gap in told["gaps"])
    target("rollback", "-s", "api", "@head")
    assert target("run", "--", "bash", "-c", LOOK) == seen
    assert target.run("run", "pgrep", "-f", "c[.]sock").stdout == b""
    target("rm", "--yes", "api")

    shutil.copy(source.home / "bundle.key", target.home / "bundle.key")
    told = target.json("import", file)
    assert (told["authentic"], told["processes"], told["gaps"]) == (True, True, [])
    target("rollback", "-s", "api", "@head")
    assert target("run", "--", "bash", "-c", LOOK) == seen
    assert target("run", "--", "cat", "/opt/mine/f") == "1"
    assert target.run("run", "ls", "/etc/hostname").returncode != 0
    assert _ask(target) == "4", "it counts on from where it was"
    assert target("run", "--", "cat", "renamed/inside") == "seen through a renamed directory"
    assert target("run", "--", "cat", "other name of below") == "changed", "a hard link that only the overlay knew"

    # And it is a sandbox like any other.
    target("snapshot", "later")
    target("run", "--", "sh", "-c", "rm -rf d")
    target("rollback", "deps")
    assert target("run", "--", "bash", "-c", LOOK) == seen
    assert _ask(target) == "4"
    fork = target("fork", "deps")
    assert _ask(target, "-s", fork) == "4"
    assert (workspace / "below").read_text() == "original", "the host's own workspace is nobody's"


@pytest.mark.needs("root", "criu", "namespaces")
def test_a_bundle_of_another_host_is_refused_with_its_processes(
    homes: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle says what it was made on; what differs here is named, and the files can be had."""
    from planarian_core import Planarian, bundle_writing
    from planarian_core.bundle_records import BundleHost

    source, target = homes
    source("new", *NAMESPACE)
    source("run", "--", "sh", "-c", "echo one > f; sleep 1000 </dev/null >/dev/null 2>&1 &")
    source("snapshot", "deps")
    monkeypatch.setattr(bundle_writing, "this_host", lambda: BundleHost("vax", "Linux", "2.6", True, 0, 0))
    with Planarian.open(source.home) as planarian:
        file = str(planarian.export("deps", tmp_path / "b", of=planarian.sandbox()))
    key = str(source.home / "bundle.key")
    error = target.fails(1, "import", file, "--key-file", key)
    assert "vax" in error
    assert "--files-only" in error
    target("import", file, "--key-file", key, "--files-only", "--name", "box")
    target("rollback", "-s", "box", "@head")
    assert target("run", "cat", "f") == "one"


def test_a_directory_sandbox_comes_into_the_home_s_own_folder(
    homes: tuple[Any, Any], workspace: Path, tmp_path: Path
) -> None:
    source, target = homes
    source("new", *DIRECTORY, "--name", "plain")
    source("run", "--", "sh", "-c", "mkdir -p d; echo one > d/f; ln d/f d/hard; ln -s f d/link")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(workspace)
        try:
            server.bind("left")
        finally:
            os.chdir(here)
    _start_counter(source)
    assert _ask(source) == "1"
    source("snapshot", "deps")
    file = source("export", "deps", str(tmp_path / "deps.zst"))
    source("stop")
    told = target.json("import", file, "--key-file", str(source.home / "bundle.key"))
    folder = Path(told["workspace"])
    assert folder.is_relative_to(target.home)
    target("rollback", "-s", "plain", "@head")
    assert target("run", "pwd") == str(folder)
    assert target("run", "cat", "d/hard") == "one"
    assert (folder / "d" / "link").is_symlink()
    assert (folder / "left").is_socket()
    assert (folder / "d" / "f").stat().st_nlink == 2
    (workspace / "c.sock").unlink(missing_ok=True)
    assert _ask(target) == "1", "started again, in the folder that it is now"
    assert not (workspace / "c.sock").exists()
    target("rm", "--yes", "plain")
    assert not folder.exists()
    assert (workspace / "d" / "f").exists()


@pytest.mark.needs("root", "namespaces", "btrfs")
def test_a_copy_home_s_bundle_goes_into_a_btrfs_home_and_back(homes: tuple[Any, Any], tmp_path: Path) -> None:
    """Files are packed without regard to what stores them."""
    source, target = homes
    source("new", "--sandbox", "namespace", "--filesystem", "copy", "--process", "none", "--name", "box")
    source("run", "--", "bash", "-c", "touch below gone; mkdir lower;" + FILL)
    source("snapshot", "deps")
    seen = source("run", "--", "bash", "-c", LOOK)
    target("pool", "create", "--size", "400M")
    try:
        made = target.json("import", source("export", "deps", str(tmp_path / "there")))
        assert made["filesystem"] == "btrfs"
        target("attach", "box")
        assert target("run", "--", "bash", "-c", LOOK) == seen
        target("snapshot", "again")
        back = target("export", "again", str(tmp_path / "back"))
        assert source.json("import", back, "--again", "--name", "back")["filesystem"] == "copy"
        source("attach", "back")
        assert source("run", "-s", "back", "--", "bash", "-c", LOOK) == seen
    finally:
        for row in target.json("list")["sandboxes"]:
            target("rm", "--yes", row["id"])
        target("pool", "destroy")
