"""``apply`` as a user types it: of isolated sandboxes, and of forks that work in place."""

from __future__ import annotations

import os
import select
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core.testing.oracle import assert_same, describe

DIRECTORY = ("--sandbox", "directory", "--filesystem", "copy", "--process", "none")
NAMESPACE = ("--sandbox", "namespace", "--filesystem", "copy", "--process", "respawn")


@pytest.fixture
def isolated(bare: Any, workspace: Path) -> Iterator[Any]:
    """The command on a home with one ``namespace`` sandbox of a small workspace."""
    (workspace / "src").mkdir()
    (workspace / "src" / "main").write_text("one\ntwo\nthree\n")
    (workspace / "docs").mkdir()
    (workspace / "docs" / "old").write_text("old\n")
    (workspace / "link").symlink_to("hello.txt")
    bare("new", *NAMESPACE)
    yield bare
    for row in reversed(bare.json("list")["sandboxes"]):
        bare("rm", "--yes", row["id"])


pytestmark = pytest.mark.needs("linux")
isolating = pytest.mark.needs("namespaces")


def _sh(cli: Any, script: str, *options: str) -> str:
    return str(cli("run", *options, "--", "sh", "-c", script))


def _without_directory_times(root: Path) -> dict[bytes, Any]:
    found = describe(root)
    return {path: (*facts[:3], *facts[4:]) if stat.S_ISDIR(facts[0]) else facts for path, facts in found.items()}


CHANGES = """
sed -i s/two/TWO/ src/main; rm -r docs; mv hello.txt renamed; mkdir -p new/deep; echo new > new/deep/file
chmod 700 src; ln -s /etc/passwd evil; rm link; mkdir link; echo in > link/in; mkfifo pipe; printf 'a\\0b' > binary
"""


@isolating
def test_preview_apply_and_undo(isolated: Any, workspace: Path) -> None:
    before = _without_directory_times(workspace)
    assert isolated("apply", "--preview") == ""
    _sh(isolated, CHANGES)
    preview = isolated("apply", "--preview")
    assert_same(_without_directory_times(workspace), before)
    assert "M src/main" in preview
    assert len(isolated.json("log")["statepoints"]) == 0, "a preview takes no statepoint"
    printed = isolated("apply")
    *lines, application = printed.splitlines()
    assert lines == preview.splitlines(), "the preview says exactly what is done"
    assert (workspace / "src" / "main").read_text() == "one\nTWO\nthree\n"
    assert stat.S_IMODE((workspace / "src").stat().st_mode) == 0o700
    assert not (workspace / "docs").exists()
    assert (workspace / "renamed").read_text() == "hello\n"
    assert (workspace / "new" / "deep" / "file").read_text() == "new\n"
    assert (workspace / "evil").readlink() == Path("/etc/passwd")
    assert (workspace / "link" / "in").read_text() == "in\n"
    assert stat.S_ISFIFO((workspace / "pipe").lstat().st_mode)
    assert isolated.json("apply")["applied"] == [], "once is enough"
    assert isolated("apply", "--undo", application) == application
    assert_same(_without_directory_times(workspace), before)
    assert "planarian apply prints its id" in isolated.fails(3, "apply", "--undo", application)


@isolating
def test_only_some_paths_and_again_after_more_work(isolated: Any, workspace: Path) -> None:
    _sh(isolated, "echo 1 > src/main; echo 1 > docs/old")
    assert isolated.json("apply", "src")["applied"] == [
        {"path": "src/main", "change": "changed", "dropped": [], "reason": ""}
    ]
    assert (workspace / "docs" / "old").read_text() == "old\n"
    _sh(isolated, "echo 2 > src/main")
    assert isolated.json("apply")["conflicts"] == [], "what was applied before is no conflict"
    assert (workspace / "src" / "main").read_text() == "2\n"
    assert "outside of the workspace" in isolated.fails(1, "apply", "/etc")


@isolating
def test_conflicts_stop_everything_unless_told_otherwise(isolated: Any, workspace: Path) -> None:
    _sh(isolated, "sed -i s/two/sandbox/ src/main; echo new > new; rm docs/old")
    (workspace / "src" / "main").write_text("one\nuser\nthree\n")
    (workspace / "docs" / "old").write_text("still needed\n")
    before = describe(workspace)
    said = isolated.fails(1, "apply")
    assert "src/main: it was changed in the workspace, and changed in the sandbox" in said
    assert "planarian apply --preview" in said
    error = isolated.run("apply", "--json")
    assert error.returncode == 1
    assert b'"apply-conflict"' in error.stdout
    assert b"+sandbox" in error.stdout
    preview = isolated("apply", "--preview")
    assert "C src/main" in preview
    assert "-two\n+user\n" in preview
    assert "-two\n+sandbox\n" in preview
    assert_same(describe(workspace), before)
    assert isolated.run("apply", "--skip-conflicts", "--theirs").returncode == 2
    isolated("apply", "--skip-conflicts")
    assert (workspace / "new").exists()
    assert (workspace / "src" / "main").read_text() == "one\nuser\nthree\n"
    isolated("apply", "--theirs")
    assert (workspace / "src" / "main").read_text() == "one\nsandbox\nthree\n"
    assert not (workspace / "docs").joinpath("old").exists()
    isolated("apply", "--undo", "last")
    assert (workspace / "src" / "main").read_text() == "one\nuser\nthree\n"
    assert (workspace / "docs" / "old").read_text() == "still needed\n"


@isolating
def test_what_the_user_did_since_is_not_undone(isolated: Any, workspace: Path) -> None:
    _sh(isolated, "echo 1 > src/main; echo 1 > docs/old")
    application = isolated("apply").splitlines()[-1]
    (workspace / "src" / "main").write_text("mine\n")
    assert "src/main" in isolated.fails(1, "apply", "--undo", application)
    assert (workspace / "docs" / "old").read_text() == "1\n"
    done = isolated.json("apply", "--undo", application, "--skip-conflicts")
    assert (done["back"], done["kept"]) == (["docs/old"], ["src/main"])
    assert (workspace / "src" / "main").read_text() == "mine\n"


@isolating
@pytest.mark.needs("git")
def test_git_gets_the_history_but_nothing_that_it_would_execute(bare: Any, workspace: Path) -> None:
    git = ("git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run([*git, *command], cwd=workspace, check=True)
    bare("new", *NAMESPACE)
    try:
        commit = "echo more >> hello.txt; git -c user.name=n -c user.email=e@example.org commit -qam second"
        hostile = (
            "git config core.fsmonitor 'touch /tmp/owned'; printf '#!/bin/sh\\n' > .git/hooks/post-checkout; "
            "chmod 755 .git/hooks/post-checkout; mkdir sub; echo 'gitdir: ../elsewhere' > sub/.git; "
            "echo '* filter=x' > .git/info/attributes; rm .git/hooks/*.sample; "
            "chown 0:0 hello.txt; cp /bin/true su; chmod 4755 su; mknod null c 1 3 2>/dev/null || mknod null p; "
            "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'"
        )
        _sh(bare, f"git config --global --add safe.directory '*'; {commit}; {hostile}")
        config = (workspace / ".git" / "config").read_text()
        done = bare.json("apply")
        held = {one["path"] for one in done["held_back"]}
        assert {".git/config", ".git/hooks/post-checkout", ".git/info/attributes", "sub/.git", "sock"} <= held
        assert (workspace / ".git" / "config").read_text() == config
        assert not (workspace / ".git" / "hooks" / "post-checkout").exists()
        assert not (workspace / "sub" / ".git").exists()
        assert stat.S_IMODE((workspace / "su").stat().st_mode) == 0o755
        assert next(one["dropped"] for one in done["applied"] if one["path"] == "su") == ["the setuid bit"]
        log = subprocess.run([*git, "log", "--format=%s"], cwd=workspace, capture_output=True, text=True, check=True)
        assert log.stdout == "second\nfirst\n"
        fsck = subprocess.run([*git, "fsck", "--strict"], cwd=workspace, capture_output=True, text=True, check=False)
        assert fsck.returncode == 0, fsck.stderr
        assert not os.path.lexists("/tmp/owned")  # noqa: S108  # what the hostile configuration would make
        asked = bare.json("apply", "--with-git-config")
        assert {one["path"] for one in asked["applied"]} >= {".git/config", ".git/hooks/post-checkout"}
        assert "fsmonitor" in (workspace / ".git" / "config").read_text()
        bare("apply", "--undo", "last")
        assert (workspace / ".git" / "config").read_text() == config
    finally:
        bare("rm", "--yes")


def test_in_place_there_is_nothing_to_apply_but_a_fork_of_it(bare: Any, workspace: Path) -> None:
    source = bare("new", *DIRECTORY)
    said = bare.fails(1, "apply")
    assert "works in place" in said
    assert "planarian diff" in said
    bare("snapshot", "base")
    fork = bare("fork", "base")
    _sh(bare, "echo fork > hello.txt; mkdir d; echo new > d/f", "-s", fork)
    assert bare("apply", "-s", fork, "--preview").splitlines() == ["A d", "A d/f", "M hello.txt"]
    assert (workspace / "hello.txt").read_text() == "hello\n"
    application = bare("apply", "-s", fork).splitlines()[-1]
    assert (workspace / "hello.txt").read_text() == "fork\n"
    assert _sh(bare, "cat d/f", "-s", source) == "new"
    bare("rm", "--yes", fork)
    bare("apply", "--undo", application)  # also when the sandbox is no more
    assert (workspace / "hello.txt").read_text() == "hello\n"
    assert not (workspace / "d").exists()
    bare("rm", "--yes", source)


@isolating
def test_it_asks_at_a_terminal(isolated: Any, workspace: Path) -> None:
    _sh(isolated, "echo sandbox > hello.txt")
    for answer, code, text in ((b"n\n", 1, "hello\n"), (b"y\n", 0, "sandbox\n")):
        master, slave = os.openpty()
        child = isolated.start("apply", stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        seen = b""
        while b"Write this to" not in seen:
            assert select.select([master], [], [], 60)[0], seen
            seen += os.read(master, 65536)
        os.write(master, answer)
        while select.select([master], [], [], 60)[0]:
            try:
                os.read(master, 65536)
            except OSError:
                break
        os.close(master)
        assert child.wait(60) == code
        assert b"M hello.txt" in seen
        assert (workspace / "hello.txt").read_text() == text
