"""A session's shell against real bash: what persists, what can't break the protocol, how commands are ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import planarian_sandbox
from planarian_core.errors import SandboxError
from planarian_core.model import Command, CommandResult
from planarian_sandbox.inside import Inside
from planarian_sandbox.session_client import SessionClient

HOLDER = Path(planarian_sandbox.__file__).with_name("session_holder.py")


class Session:
    """A session in a directory of its own, whose holder is a child of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "session"
        self.folder.mkdir()
        self.start = folder / "start"
        self.start.mkdir()
        self.lock = str(folder / "lock")
        self.holders: list[subprocess.Popen[bytes]] = []
        self.directory = Inside.of_path(str(self.folder))
        self.client = SessionClient(self.directory, self.launch, self.lock, self.end)

    def launch(self) -> None:
        self.holders.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", str(HOLDER), str(self.folder)], cwd=self.start, start_new_session=True
            )
        )

    def end(self) -> None:
        for holder in self.holders:
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(holder.pid).children(recursive=True):
                    process.kill()
            holder.kill()
            holder.wait()

    def close(self) -> None:
        self.end()
        os.close(self.directory.descriptor)

    def run(self, text: str, timeout: float | None = 20, look: Callable[[], bool] | None = None) -> CommandResult:
        return self.client.run(Command((text,), timeout=timeout), look=look)

    def out(self, text: str) -> str:
        result = self.run(text)
        assert not result.timed_out, result
        return result.stdout


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path)
    yield session
    session.close()


def eventually(condition: Callable[[], bool], patience: float = 10) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_state_persists(session: Session) -> None:
    session.run("cd /usr; x=5; f() { echo f$1; }; alias hey='echo hey'; shopt -s nullglob; export E=e")
    assert session.out("pwd; echo $x; f 3; hey; echo /nothing*; sh -c 'echo $E'") == "/usr\n5\nf3\nhey\n\ne\n"


def test_streams_and_status(session: Session) -> None:
    result = session.run("echo out; echo err >&2; (exit 7)")
    assert (result.exit_code, result.stdout, result.stderr) == (7, "out\n", "err\n")
    assert session.out("echo $?") == "7\n"
    assert session.out("echo $?") == "0\n"


def test_input_is_at_its_end_by_default(session: Session) -> None:
    assert session.out("read v; echo $?; cat; python3 -c 'print(repr(input()))' 2>&1 | tail -1") == (
        "1\nEOFError: EOF when reading a line\n"
    )


def test_input_is_given(session: Session) -> None:
    assert session.client.run(Command(("cat; cat",), stdin=b"a\0b\n")).stdout == "a\0b\n"
    assert session.out("cat") == ""


def test_environment_is_exported_and_stays(session: Session) -> None:
    assert (
        session.client.run(Command(("sh -c 'echo \"$V\"'",), env={"V": "it's $x `y`\n2"})).stdout == "it's $x `y`\n2\n"
    )
    assert session.out("echo ${#V}") == f"{len(chr(39) + 'it s $x `y`2')}\n"
    with pytest.raises(SandboxError, match="variable"):
        session.client.run(Command(("true",), env={"a=b; rm": ""}))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("if", 2),
        ("echo 'unfinished", 2),
        ("echo ${x", 2),
        (")", 2),
        ("}", 2),
        ("cat <<EOF\nno end", 0),
        ("", 0),
        ("# only a comment", 0),
        ("no-such-command-anywhere", 127),
        ("/etc/passwd", 126),
        ("kill -9 $BASHPID & wait $!", 137),
        ("echo \\", 0),
        ("echo a |", 2),
        ("set -u; echo $nothing", 1),
        ("readonly r=1; r=2", 1),
    ],
)
def test_input_that_fails_leaves_the_session_usable(session: Session, text: str, code: int) -> None:
    session.run("x=kept")
    assert session.run(text).exit_code == code
    assert session.out("echo $x") == "kept\n"


@pytest.mark.parametrize(
    "text",
    [
        "exec >/dev/null 2>&1 </dev/null",
        "exec 0<&- 1>&- 2>&-",
        "exec 7>other; exec 255>&-",
        "unset PS1 PS2 PROMPT_COMMAND PLANARIAN_CALL PLANARIAN_STATUS",
        "PROMPT_COMMAND='echo noise; false'; PS1='$(false)$(echo noise)'",
        "set -C; set -f; set -x; set -v; IFS=0123456789/",
        "set -o posix; shopt -s extglob failglob nocasematch",
        "echo() { :; }; printf() { :; }; builtin() { :; }; command() { :; }; unset() { :; }; export() { :; }",
        "cd() { :; }; true() { false; }; false() { command true; }; test() { :; }; [() { :; }; exit() { :; }",
        "alias PLANARIAN_STATUS=false; alias true=false; alias exec=echo",
        "trap 'echo exiting' EXIT; trap 'echo debug' DEBUG; trap 'echo err' ERR; trap 'echo chld' CHLD; set -E -T",
        "set -m; set +m; set -b; set -h; set -k",
        "PLANARIAN_STATUS=99; PLANARIAN_CALL=evil",
        "ulimit -c 0; umask 777",
        "stty -echo -isig raw </dev/tty >/dev/tty; echo noise >/dev/tty",
        "yes noise | head -c 1000000 >/dev/tty",
        "history -c; set -o history; set -H; HISTFILE=h",
        "enable -n echo printf test true false",
        "PATH=; LD_LIBRARY_PATH=/nowhere; HOME=; TMOUT=",
        "bind 'set editing-mode vi' 2>/dev/null",
        "sleep 1000 & disown -a",
    ],
)
def test_settings_of_the_session_dont_break_it(session: Session, text: str) -> None:
    session.run("kept=kept")
    assert session.run(text).exit_code in range(128)
    result = session.run("[[ $kept = kept ]]")
    assert (result.exit_code, result.timed_out) == (0, False)
    assert session.run("/bin/sh -c 'exit 3'").exit_code == 3


def test_dev_stdout_empties_nothing(session: Session) -> None:
    result = session.run("echo one; echo two >/dev/stdout; echo a >&2; echo b >/dev/stderr; echo three; echo c >&2")
    assert (result.stdout, result.stderr) == ("one\ntwo\nthree\n", "a\nb\nc\n")


def test_a_background_job_writes_on_without_harm(session: Session) -> None:
    text = "(for i in 1 2 3 4 5 6; do echo more; head -c 100000 /dev/zero; sleep 0.05; done; echo done >finished) &"
    session.run(text)
    assert eventually((session.start / "finished").exists)
    assert session.out("wait; echo only this") == "only this\n"


def test_large_text_and_output(session: Session) -> None:
    text = "x='" + "a" * 3_000_000 + "'; echo ${#x}; printf '%s' \"$x\""
    result = session.client.run(Command((text,), output_limit=1000))
    assert result.stdout.startswith("3000000\naaa")
    assert "bytes cut" in result.stdout
    assert result.truncated


def test_output_arrives_while_the_command_runs(session: Session) -> None:
    pieces: list[tuple[str, bytes]] = []
    text = "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second"

    def sink(stream: str, piece: bytes) -> None:
        pieces.append((stream, piece))
        (session.start / "go").touch()

    session.client.run(Command((text,), timeout=20), sink)
    assert pieces == [("stdout", b"first\n"), ("stdout", b"second\n")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("exit 3", 3),
        ("set -e; echo before; false; echo after", 1),
        ("exec true", 0),
        ("exec sh -c 'exit 9'", 9),
        ("kill -9 $$", 137),
        ("trap 'exit 5' EXIT; exit 4", 5),
        ("exec /nonexistent", 127),
    ],
)
def test_a_command_that_ends_the_shell(session: Session, text: str, code: int) -> None:
    session.run("x=lost")
    result = session.run(text)
    if "/nonexistent" not in text:  # an interactive bash survives that
        assert session.out("echo [$x]; pwd") == f"[]\n{session.start}\n"
    assert result.exit_code == code
    assert "after" not in result.stdout


def test_background_jobs_survive_and_can_be_waited_for(session: Session) -> None:
    pid = int(session.out("sleep 1000 & echo $!").split()[-1])
    assert session.out("jobs -p") == f"{pid}\n"
    session.run("exit 0")
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)
    session.run("(exit 9) & ")
    assert session.run("wait $!").exit_code == 9


@pytest.mark.parametrize(
    "text",
    [
        "sleep 1000; echo after",
        "while :; do :; done; echo after",
        "while :; do sleep 0.1; done; echo after",
        "for i in 1 2 3; do sleep 1000; done && echo after",
        "f() { sleep 1000; echo after; }; f; echo after",
        "y=$(sleep 1000); echo after",
        "sleep 1000 | cat; echo after",
        "cat <(sleep 1000); echo after",
        "read x </dev/tty; echo after",
        "(trap '' INT TERM HUP; sleep 1000); echo after",
        "sleep 1000 & wait; echo after",
        "kill -STOP $$; echo after",
    ],
)
def test_a_timeout_ends_the_command_and_keeps_the_session(session: Session, text: str) -> None:
    session.run("x=kept")
    result = session.run(text, timeout=0.3)
    assert (result.exit_code, result.timed_out) == (124, True)
    assert "after" not in result.stdout
    assert session.out("echo $x") == "kept\n"


def test_a_command_that_only_killing_the_shell_ends_says_so(session: Session) -> None:
    session.run("x=lost")
    result = session.run("trap '' INT; while :; do sleep 0.05; done", timeout=0.3)
    assert result.timed_out
    assert "had to be killed" in result.stderr
    assert session.out("echo [$x]") == "[]\n"


@pytest.mark.needs("linux")
def test_a_timeout_ends_what_the_command_started_and_nothing_else(session: Session) -> None:
    before = int(session.out("sleep 1001 & echo $!").split()[-1])
    text = "setsid nohup sleep 1002 & echo $!; (setsid env -i sleep 1003 & echo $!); sleep 1004"
    started = [int(word) for word in session.run(text, timeout=0.5).stdout.split()]
    assert len(started) == 2
    holder = psutil.Process(session.holders[0].pid)
    left = [process.cmdline() for process in holder.children(recursive=True)]
    assert ["sleep", "1001"] in left
    assert not [argv for argv in left if argv[:1] == ["sleep"] and argv != ["sleep", "1001"]]
    assert alive(before)


def test_the_caller_can_end_a_command(session: Session) -> None:
    result = session.run("echo a; touch end; sleep 1000; echo b", look=(session.start / "end").exists)
    assert (result.exit_code, result.timed_out) == (137, False)
    assert "b" not in result.stdout


def test_a_failing_sink_ends_the_command(session: Session) -> None:
    def sink(stream: str, piece: bytes) -> None:
        raise RuntimeError("the sink is broken")

    with pytest.raises(RuntimeError, match="the sink is broken"):
        session.client.run(Command(("echo $BASHPID; sleep 1000",)), sink)
    assert session.out("jobs; echo ok") == "ok\n"


def test_a_command_of_a_caller_that_died_is_ended_first(session: Session) -> None:
    session.run("x=kept")
    for suffix in (".sh", ".out", ".err"):
        (session.folder / f"dead{suffix}").write_text(
            "touch began; sleep 1000; touch went-on" if suffix == ".sh" else ""
        )
    with (session.folder / "ctl").open("w") as control:
        control.write("run dead\n")
    assert eventually((session.start / "began").exists)
    assert session.out("echo $x; ls") == "kept\nbegan\n"


def test_callers_take_turns(session: Session) -> None:
    session.run("n=0")
    results: list[CommandResult] = []
    threads = [
        threading.Thread(target=lambda: results.append(session.run("m=$n; sleep 0.05; n=$((m + 1)); echo $n")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.stdout for result in results) == ["1\n", "2\n", "3\n", "4\n"]


def test_a_busy_session_is_refused_when_time_is_up(session: Session) -> None:
    session.run("true")
    running = threading.Thread(target=session.run, args=("touch began; while [ ! -e go ]; do sleep 0.01; done",))
    running.start()
    assert eventually((session.start / "began").exists)
    with pytest.raises(SandboxError) as caught:
        session.run("echo no", timeout=0.2)
    assert caught.value.code == "session-busy"
    (session.start / "go").touch()
    running.join()


def test_a_lost_holder_is_an_error_and_the_next_command_starts_afresh(session: Session) -> None:
    session.run("x=lost")
    threading.Timer(0.3, session.holders[0].kill).start()
    with pytest.raises(SandboxError) as caught:
        session.run("sleep 1000")
    assert caught.value.code == "session-lost"
    assert session.out("echo [$x]") == "[]\n"


def test_a_lost_fifo_gets_a_new_holder_and_ends_the_old_one(session: Session) -> None:
    session.run("true")
    (session.folder / "ctl").unlink()
    assert session.out("echo ok") == "ok\n"
    assert session.holders[0].wait(10) == -signal.SIGKILL


def test_a_removed_directory_is_an_error(session: Session) -> None:
    session.run("true")
    shutil.rmtree(session.folder)
    with pytest.raises(SandboxError, match="removed"):
        session.run("true")


def test_links_in_the_directory_are_not_followed(session: Session, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0 alive\n")
    session.run("true")
    result = session.run(
        f"id=$(basename {session.folder}/*.sh .sh); ln -s {secret} {session.folder}/$id.rc; "
        f"rm {session.folder}/$id.out; ln -s {secret} {session.folder}/$id.out; echo done"
    )
    assert result.exit_code == 0
    assert secret.read_text() == "0 alive\n"


def test_an_idle_session_never_runs(session: Session) -> None:
    session.run("true")
    time.sleep(0.5)
    holder = psutil.Process(session.holders[0].pid)
    processes = [holder, *holder.children(recursive=True)]

    def run_times() -> list[str]:
        return [Path(f"/proc/{process.pid}/schedstat").read_text() for process in processes]

    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the kernel has no schedstat")
    before = run_times()
    time.sleep(1)
    assert run_times() == before


def test_nothing_is_left_in_the_directory(session: Session) -> None:
    session.run("echo a; echo b >&2")
    session.run("sleep 1000", timeout=0.1)
    assert {path.name for path in session.folder.iterdir()} == {"ctl", "holder"}
