"""``diff`` as a user types it: on fakes, on a workspace in place, in an isolated sandbox."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = ("--sandbox", "directory", "--filesystem", "copy", "--process", "none")
NAMESPACE = ("--sandbox", "namespace", "--filesystem", "copy", "--process", "respawn")
KINDS = [
    pytest.param(DIRECTORY, id="directory", marks=pytest.mark.thorough),
    pytest.param(NAMESPACE, id="namespace", marks=pytest.mark.needs("namespaces")),
]


@pytest.fixture(params=KINDS)
def real(bare: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    bare("new", *request.param)
    yield bare
    for row in reversed(bare.json("list")["sandboxes"]):
        bare("rm", "--yes", row["id"])


def _sh(cli: Any, script: str, *options: str) -> str:
    return str(cli("run", *options, "--", "sh", "-c", script))


def _changes(cli: Any, *arguments: str) -> dict[str, str]:
    return {change["path"]: change["change"] for change in cli.json("diff", *arguments)["files"]}


def test_since_the_head_and_between_statepoints(real: Any) -> None:
    _sh(real, "mkdir src; printf 'one\\ntwo\\n' > src/a; echo gone > b; echo renamed > c; ln src/a hard; ln -s c l")
    one = real("snapshot", "one")
    _sh(real, "sed -i s/two/TWO/ src/a; rm b; mv c d; chmod 700 src; rm l; ln -s d l; printf 'a\\0' > bin; mkfifo p")
    text = real("diff")
    lines = text.splitlines()
    assert "D b" in lines
    assert "R c -> d" in lines
    assert "M src/  (mode 0755 -> 0700)" in lines
    assert "M l  (target c -> d)" in lines
    assert "A bin  (binary, 0 -> 2 bytes)" in lines
    assert "A p" in lines
    assert "-two\n+TWO" in text
    two = real("snapshot", "two")
    assert real.json("diff", "one", "two")["files"] == real.json("diff", one, two)["files"]
    assert _changes(real, "two") == {}
    assert _changes(real, "two", "one")["b"] == "added"
    assert real("diff", "one", "--name-only").splitlines()[:2] == ["b", "bin"]
    assert "+TWO" not in real("diff", "one", "--stat")
    assert _changes(real, "one", "--path", "src").keys() == {"src", "src/a"}


def test_a_whole_directory_renamed_is_one_change(real: Any) -> None:
    _sh(real, "mkdir -p d/e; echo 1 > d/a; echo 2 > d/e/b")
    real("snapshot", "one")
    _sh(real, "mv d moved")
    assert real("diff", "--stat") == "R d -> moved/"
    real("snapshot", "two")
    assert _changes(real, "one", "two") == {"moved": "renamed"}


def test_with_a_fork(real: Any) -> None:
    _sh(real, "echo 1 > a")
    one = real("snapshot", "one")
    fork = real("fork", one)
    _sh(real, "echo 2 > a; echo 2 > b", "-s", fork)
    there = real("snapshot", "-s", fork)
    assert _changes(real, "-s", real.json("list")["sandboxes"][0]["id"], one, there) == {"a": "changed", "b": "added"}
    assert _changes(real, "-s", fork, one) == {"a": "changed", "b": "added"}


def test_a_file_changed_and_changed_back_is_no_change(real: Any) -> None:
    _sh(real, "echo 1 > a")
    real("snapshot", "one")
    _sh(real, "echo 2 > a; echo 1 > a; touch a; echo x > b; rm b")
    assert _changes(real) == {}
    assert real("diff") == ""


def test_errors_say_what_to_do(real: Any) -> None:
    assert "planarian snapshot" in real.fails(3, "diff")
    real("snapshot", "one")
    assert "planarian log" in real.fails(3, "diff", "never")
    assert "there is no nothing" in real.fails(1, "diff", "--path", "nothing")


@pytest.mark.needs("namespaces")
class TestIsolated:
    """What only an isolated sandbox has."""

    @pytest.fixture
    def isolated(self, bare: Any, workspace: Path) -> Iterator[Any]:
        (workspace / "tree" / "deep").mkdir(parents=True)
        (workspace / "tree" / "deep" / "file").write_text("below\n")
        bare("new", *NAMESPACE)
        yield bare
        for row in reversed(bare.json("list")["sandboxes"]):
            bare("rm", "--yes", row["id"])

    @pytest.mark.needs("root")
    def test_files_outside_of_the_workspace(self, isolated: Any) -> None:
        isolated("snapshot", "one")
        _sh(isolated, "echo own > /etc/own; echo x > /tmp/t; rm /etc/hostname; echo in > in; echo y > ~/z")
        found = _changes(isolated)
        assert found["in"] == "added"
        assert found["/etc/own"] == "added"
        assert found["/tmp/t"] == "added"  # noqa: S108  # the sandbox's own
        assert found["/etc/hostname"] == "deleted"
        assert not any(path.startswith(("/run/planarian", "/proc")) for path in found)
        assert "+own" in isolated("diff", "--path", "/etc")

    def test_what_lies_below_the_layer(self, isolated: Any) -> None:
        """Changes of what the sandbox began with, and a directory of it that was renamed."""
        isolated("snapshot", "one")
        _sh(isolated, "echo more >> tree/deep/file; rm hello.txt")
        assert _changes(isolated) == {"tree/deep/file": "changed", "hello.txt": "deleted"}
        assert "-hello" in isolated("diff")
        _sh(isolated, "echo below > tree/deep/file; mv tree/deep tree/deeper")
        assert "tree/deeper" in _changes(isolated)

    def test_processes(self, isolated: Any) -> None:
        _sh(isolated, "sleep 4321.5 >/dev/null 2>&1 &")
        isolated("snapshot", "one")
        _sh(isolated, "pkill -f '4321[.]5'; sleep 4321.6 >/dev/null 2>&1 &")
        found = isolated.json("diff")
        assert [process["argv"] for process in found["started"]] == [["sleep", "4321.6"]]
        assert [process["argv"] for process in found["gone"]] == [["sleep", "4321.5"]]
        text = isolated("diff")
        assert "process gone: " in text
        assert "sleep 4321.5" in text

    def test_the_layer_of_an_idle_sandbox_shows_no_change(self, isolated: Any) -> None:
        isolated("snapshot", "one")
        _sh(isolated, "true")
        found = isolated.json("diff")
        assert (found["files"], found["started"], found["gone"]) == ([], [], [])


def test_names_can_not_drive_the_terminal(cli: Any) -> None:
    cli("new")
    cli("snapshot", "one")
    cli("run", "--", "bash", "-c", r"touch $'evil\x1b[2J\nM forged'; printf 'x\x1b]0;title\x07' > text")
    for arguments in (["diff"], ["diff", "--stat"], ["diff", "--name-only"]):
        text = cli(*arguments)
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "M forged" not in text.splitlines()


def test_colours_only_on_a_terminal(process: Any) -> None:
    process("new")
    process("snapshot", "one")
    process("run", "--", "sh", "-c", "echo x > new")
    assert "\x1b" not in process("diff")
    master, slave = os.openpty()
    child = process.start("diff", stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    while select.select([master], [], [], 30)[0]:
        try:
            seen += os.read(master, 65536)
        except OSError:
            break
    os.close(master)
    assert child.wait(30) == 0
    assert b"\x1b[32mA new\x1b[0m" in seen
