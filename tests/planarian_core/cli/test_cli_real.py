"""``run`` and ``shell`` on real backends: output as it comes, exit codes, signals, terminals."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("linux")
DIRECTORY = ("--sandbox", "directory", "--filesystem", "copy", "--process", "respawn")
NAMESPACE = ("--sandbox", "namespace", "--filesystem", "copy", "--process", "criu")


@pytest.fixture
def real(bare: Any) -> Iterator[Any]:
    """The command on a home with one ``directory`` sandbox."""
    bare("new", *DIRECTORY)
    yield bare
    bare("rm", "--yes")


@pytest.fixture
def isolated(bare: Any) -> Iterator[Any]:
    """The command on a home with one ``namespace`` sandbox whose processes CRIU captures."""
    bare("new", *NAMESPACE)
    yield bare
    for row in reversed(bare.json("list")["sandboxes"]):
        bare("rm", "--yes", row["id"])


def _running(word: str) -> list[int]:
    """Host pids of processes that have ``word`` as an argument, apart from planarian's own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            argv = (folder / "cmdline").read_bytes().split(b"\0")
            if word.encode() in argv and not any(b"planarian" in part for part in argv):
                found.append(int(folder.name))
    return found


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


# --- run ---


def test_streams_stay_apart_and_the_exit_code_is_the_commands(real: Any) -> None:
    done = real.run("run", "--", "bash", "-c", r"printf 'a\xff\0b'; echo problem >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"a\xff\0b", b"problem\n")
    assert real.run("run", "--", "bash", "-c", "exit 125").returncode == 125
    assert real.run("run", "--", "bash", "-c", "kill -9 $$").returncode == 137


def test_output_comes_as_it_is_written(real: Any, workspace: Path) -> None:
    script = "echo first; until [ -e go ]; do sleep 0.05; done; echo second"
    child = real.start("run", "-n", "--", "bash", "-c", script, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"first\n"
    (workspace / "go").touch()
    assert child.communicate()[0] == b"second\n"


def test_what_follows_the_command_is_its_own(real: Any) -> None:
    assert real("run", "echo", "--json", "-s", "--help") == "--json -s --help"
    assert real("run", "--", "echo", "--", "x") == "-- x"


def test_stdin_is_passed_on_unless_asked_not_to(real: Any) -> None:
    data = os.urandom(300_000)
    done = real.run("run", "cat", stdin=data)
    assert done.stdout == data
    assert real.run("run", "--no-stdin", "cat", stdin=data).stdout == b""


def test_environment_and_directory(real: Any, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    line = 'echo "$NAME $PWD"'
    told = real("run", "--env", "NAME=a=b", "--cwd", str(workspace / "sub"), "--", "bash", "-c", line)
    assert told == f"a=b {workspace}/sub"
    assert "NAME=VALUE" in real.fails(125, "run", "--env", "NAME", "true")


def test_a_timeout_ends_the_whole_tree(real: Any) -> None:
    done = real.run("run", "--timeout", "1", "--", "bash", "-c", "echo begun; sleep 1234.5 & wait")
    assert (done.returncode, done.stdout) == (124, b"begun\n")
    assert b"ended after 1 seconds" in done.stderr
    assert not _running("1234.5")


def test_a_session_remembers(real: Any) -> None:
    real("run", "--session", "dev", "--", "mkdir -p 'a b' && cd 'a b' && export WHO=me")
    assert real("run", "--session", "dev", "--", 'echo "$WHO ${PWD##*/}"') == "me a b"
    assert real("run", "--session", "dev", "--", "printf", "%s|", "c d", "$x") == "c d|$x|"


def test_run_as_json(real: Any) -> None:
    done = real.run("run", "--json", "--", "bash", "-c", "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stderr) == (3, b"")
    result = json.loads(done.stdout)
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
    assert result["sandbox"] == real.json("list")["sandboxes"][0]["id"]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=lambda value: str(value),
)
def test_a_signal_ends_the_commands_tree(real: Any, number: signal.Signals, code: int) -> None:
    word = f"9876.{int(number)}"
    child = real.start("run", "-n", "--", "bash", "-c", f"sleep {word} & wait", stderr=subprocess.PIPE)
    _until(lambda: _running(word))
    child.send_signal(number)
    told = child.communicate(timeout=60)[1]
    assert (child.returncode, told) == (code, b"")
    _until(lambda: not _running(word))
    real("run", "true")


def test_a_reader_that_goes_away_ends_the_command(real: Any) -> None:
    child = real.start("run", "-n", "yes", "8.7.6", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == b"8.7.6\n"
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(60) == 141
    _until(lambda: not _running("8.7.6"))


# --- the primitives ---


def test_rollback_in_place(real: Any, workspace: Path) -> None:
    real("snapshot", "before")
    real("run", "rm", "hello.txt")
    preview = real("rollback", "before", "--dry-run")
    assert "hello.txt" in preview
    assert not (workspace / "hello.txt").exists()
    assert "hello.txt" in real("rollback", "before")
    assert (workspace / "hello.txt").read_text() == "hello\n"
    assert "files outside the workspace" in real("log")


@pytest.mark.needs("root")
@pytest.mark.needs("namespaces")
@pytest.mark.needs("criu")
def test_memory_survives_in_rollback_and_forks(isolated: Any) -> None:
    count = "n=0; trap 'n=$((n+1)); echo $n >count' USR1; while :; do sleep 0.02; done"
    isolated("run", "-n", "--", "bash", "-c", f"({count}) >/dev/null 2>&1 & echo $! >pid; sleep 0.3")
    bump = "rm -f count; kill -USR1 $(cat pid); until [ -s count ]; do sleep 0.02; done; cat count"
    assert isolated("run", "bash", "-c", bump) == "1"
    isolated("snapshot", "one")
    assert isolated("run", "bash", "-c", bump) == "2"
    isolated("rollback", "one")
    assert isolated("run", "bash", "-c", bump) == "2"
    fork = isolated("fork", "one", "-s", isolated.json("list")["sandboxes"][0]["id"])
    assert isolated("run", "-s", fork, "bash", "-c", bump) == "2"


# --- shell ---


def test_a_script_is_fed_to_the_shell(real: Any) -> None:
    script = (
        b"cd /\nX='two\nlines'\nfor i in 1 2; do\n  echo $i \"$X\"\ndone\ncat <<END\nhere $PWD\nEND\n"
        b"echo a \\\n b\nfalse\n"
    )
    done = real.run("shell", stdin=script)
    assert done.stdout.decode() == "1 two\nlines\n2 two\nlines\nhere /\na b\n"
    assert done.returncode == 1
    assert real.run("shell", stdin=b'echo "$PWD"\nexit 5\necho never\n').stdout == b"/\n"
    assert real.run("shell", stdin=b"exit 5").returncode == 5


def test_a_script_with_a_mistake_goes_on_as_shells_do(real: Any) -> None:
    done = real.run("shell", stdin=b"echo )\necho after\nif true; then echo unfinished\n")
    assert done.stdout == b"after\n"
    assert b"syntax error" in done.stderr
    assert done.returncode != 0


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, cli: Any, *arguments: str) -> None:
        self._master, slave = os.openpty()
        self.child = cli.start(
            *arguments, stdin=slave, stdout=slave, stderr=slave, preexec_fn=lambda: os.login_tty(slave)
        )
        os.close(slave)
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> None:
        """Read until ``text`` was shown, and forget what came before it."""
        _until(lambda: text.encode() in self._read())
        self.seen = self.seen.partition(text.encode())[2]

    def _read(self) -> bytes:
        if select.select([self._master], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # the other side was closed
                self.seen += os.read(self._master, 65536)
        return self.seen

    def close(self) -> int:
        """The exit code, when it has ended."""
        _until(lambda: self._read() is not None and self.child.poll() is not None)
        os.close(self._master)
        return int(self.child.returncode)


def test_a_person_at_a_terminal(real: Any) -> None:
    terminal = Terminal(real, "shell")
    terminal.expect("$ ")
    terminal.type("cd /; X=41\n")
    terminal.expect("$ ")
    terminal.type("echo $((X+1)) $PWD\n")
    terminal.expect("42 /")
    terminal.expect("$ ")
    terminal.type("sleep 5432.1\n")
    _until(lambda: _running("5432.1"))
    terminal.type("\x03")
    terminal.expect("$ ")
    _until(lambda: not _running("5432.1"))
    terminal.type("for i in a b; do\n")
    terminal.expect("> ")
    terminal.type("echo =$i=; done\n")
    terminal.expect("=b=")
    terminal.type("exit 3\n")
    assert terminal.close() == 3


def test_rm_asks_at_a_terminal(real: Any) -> None:
    for answer, code, left in (("n", 1, 1), ("y", 0, 0)):
        terminal = Terminal(real, "rm")
        terminal.expect("Remove for good?")
        terminal.type(f"{answer}\n")
        assert terminal.close() == code
        assert len(real.json("list")["sandboxes"]) == left
    real("new", *DIRECTORY)


def test_a_narrow_terminal_shows_ids_in_full(real: Any) -> None:
    point = real("snapshot", "a name that is far too long for a terminal as narrow as this one is")
    real.env |= {"COLUMNS": "30", "TERM": "xterm"}
    for command in ("list", "log"):
        terminal = Terminal(real, command)
        terminal.expect(point if command == "log" else real.json("list")["sandboxes"][0]["id"])
        assert terminal.close() == 0
