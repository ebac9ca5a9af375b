"""The promises of a sandbox backend, as tests. Subclass :class:`SandboxConformance` and supply two fixtures.

Oracles bypass the backend: processes are looked up in the host's /proc, files with :mod:`pathlib`.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planarian_core.errors import PlanarianError, SandboxError
from planarian_core.interfaces import AgentReply, AgentRequest, RequestHandler, SandboxBackend
from planarian_core.model import Command, CommandResult, LiveSandbox, SandboxSpec

Sink = Callable[[str, bytes], None]


def unique_seconds() -> str:
    """A duration for ``sleep`` that no other process has, so that a process can be told by its arguments."""
    return f"{random.randint(10_000, 99_999)}.{random.randint(100_000, 999_999)}"  # noqa: S311  # not a secret


def running(word: str) -> list[int]:
    """Host pids of processes with exactly this argument, zombies excepted."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if word in Path("/proc", name, "cmdline").read_bytes().decode("utf-8", "replace").split("\0"):
                found.append(int(name))
        except OSError:
            continue
    return found


def until(condition: Callable[[], bool], patience: float = 10.0) -> bool:
    """Wait for a condition; whether it came true."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def disk_used(*tops: str) -> int:
    """Bytes that the files below these directories take on the disk."""
    total = 0
    for folder, _, names in itertools.chain.from_iterable(os.walk(top) for top in tops):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


class Sandbox:
    """A started sandbox and the backend that runs it, for short tests."""

    def __init__(self, backend: SandboxBackend, spec: SandboxSpec, live: LiveSandbox) -> None:
        self.backend = backend
        self.spec = spec
        self.live = live

    def run(self, *argv: str, sink: Sink | None = None, requests: RequestHandler | None = None) -> CommandResult:
        return self.command(Command(argv), sink, requests)

    def shell(self, text: str, timeout: float | None = 60.0, requests: RequestHandler | None = None) -> CommandResult:
        return self.command(Command(("/bin/sh", "-c", text), timeout=timeout), requests=requests)

    def command(
        self, command: Command, sink: Sink | None = None, requests: RequestHandler | None = None
    ) -> CommandResult:
        return self.backend.execute(self.spec, self.live, command, sink, requests)


@pytest.mark.skipif(sys.platform != "linux", reason="the oracles read /proc")
class SandboxConformance:
    """What every sandbox backend does. A subclass defines the fixtures ``backend`` and ``spec``.

    ``spec`` is new for each test: its workspace holds ``hello.txt`` (``hello`` and a newline), its layer is an empty
    directory (for an in-place backend the workspace itself).
    """

    @pytest.fixture
    def backend(self) -> SandboxBackend:
        raise NotImplementedError("supply a backend")

    @pytest.fixture
    def spec(self) -> SandboxSpec:
        raise NotImplementedError("supply a spec")

    @pytest.fixture
    def sandbox(self, backend: SandboxBackend, spec: SandboxSpec) -> Iterator[Sandbox]:
        prepared = backend.prepare(spec)
        live = backend.start(prepared)
        try:
            yield Sandbox(backend, prepared, live)
        finally:
            backend.stop(prepared, live)

    # --- commands -----------------------------------------------------------------------------------------------

    def test_probe_allows_what_is_tested(self, backend: SandboxBackend) -> None:
        assert backend.probe().available, backend.probe().reason

    def test_arguments_arrive_as_they_are(self, sandbox: Sandbox) -> None:
        arguments = ["a b", "", "*", "$HOME", "'\"\\", "ü\n", "-n"]
        result = sandbox.run("/bin/sh", "-c", 'for a in "$@"; do printf "<%s>" "$a"; done', "sh", *arguments)
        assert result.stdout == "".join(f"<{argument}>" for argument in arguments)

    @pytest.mark.parametrize("code", [0, 1, 77, 255])
    def test_exit_code(self, sandbox: Sandbox, code: int) -> None:
        assert sandbox.shell(f"exit {code}").exit_code == code

    def test_a_signal_shows_as_128_and_its_number(self, sandbox: Sandbox) -> None:
        assert sandbox.shell("kill -TERM $$").exit_code == 128 + signal.SIGTERM

    def test_streams_are_kept_apart(self, sandbox: Sandbox) -> None:
        result = sandbox.shell("echo out; echo err >&2")
        assert (result.stdout, result.stderr) == ("out\n", "err\n")

    def test_output_through_dev_stdout(self, sandbox: Sandbox) -> None:
        result = sandbox.shell("echo one; echo two >/dev/stdout; echo three; echo four >/dev/stderr; echo five >&2")
        assert (result.stdout, result.stderr) == ("one\ntwo\nthree\n", "four\nfive\n")

    def test_a_missing_program_is_127(self, sandbox: Sandbox) -> None:
        result = sandbox.run("planarian-no-such-program")
        assert result.exit_code == 127
        assert "planarian-no-such-program" in result.stderr

    def test_a_file_that_is_no_program_is_126(self, sandbox: Sandbox) -> None:
        assert sandbox.run("./hello.txt").exit_code == 126

    def test_no_command_at_all(self, sandbox: Sandbox) -> None:
        with pytest.raises(PlanarianError):
            sandbox.run()

    def test_workspace_is_the_directory(self, sandbox: Sandbox) -> None:
        result = sandbox.shell("cat hello.txt; pwd -P")
        assert result.stdout == f"hello\n{os.path.realpath(sandbox.spec.workspace)}\n"

    def test_directory_can_be_chosen(self, sandbox: Sandbox) -> None:
        sandbox.shell("mkdir -p deep/er")
        assert sandbox.command(Command(("pwd", "-P"), cwd="deep/er")).stdout.endswith("/deep/er\n")
        assert sandbox.command(Command(("pwd", "-P"), cwd="/usr")).stdout == "/usr\n"

    def test_a_missing_directory_is_an_error(self, sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError, match="nowhere"):
            sandbox.command(Command(("true",), cwd="nowhere"))

    def test_environment(self, sandbox: Sandbox) -> None:
        result = sandbox.command(Command(("/bin/sh", "-c", 'echo "$A|$PATH"'), env={"A": "b c=d"}))
        value, _, path = result.stdout.strip().partition("|")
        assert value == "b c=d"
        assert "/bin" in path

    def test_secrets_in_the_callers_environment_stay_outside(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SOME_API_KEY", "sk-very-secret")
        assert "sk-very-secret" not in sandbox.run("env").stdout

    def test_clear_env_leaves_only_what_was_given(self, sandbox: Sandbox) -> None:
        result = sandbox.command(Command(("/usr/bin/env",), env={"ONLY": "this"}, clear_env=True))
        assert result.stdout == "ONLY=this\n"

    def test_standard_input(self, sandbox: Sandbox) -> None:
        content = b"line\n" * 100_000
        assert sandbox.command(Command(("wc", "-c"), stdin=content)).stdout.split() == [str(len(content))]
        assert sandbox.run("cat").stdout == ""

    def test_a_nul_is_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(PlanarianError):
            sandbox.run("echo", "a\0b")

    def test_two_at_once(self, sandbox: Sandbox) -> None:
        results: list[str] = []
        threads = [
            threading.Thread(target=lambda n=n: results.append(sandbox.shell(f"sleep 0.2; echo {n}").stdout))
            for n in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [f"{n}\n" for n in range(6)]

    # --- output -------------------------------------------------------------------------------------------------

    def test_output_arrives_while_the_command_runs(self, sandbox: Sandbox) -> None:
        def sink(stream: str, piece: bytes) -> None:
            pieces.append((stream, piece))
            if b"first" in piece:
                # The command goes on only after this file is there: so the piece came while it ran.
                sandbox.shell("touch go")

        pieces: list[tuple[str, bytes]] = []
        result = sandbox.run(
            "/bin/sh", "-c", "echo first; while ! test -e go; do sleep 0.02; done; echo second >&2", sink=sink
        )
        assert result.exit_code == 0
        assert b"".join(piece for stream, piece in pieces if stream == "stdout") == b"first\n"
        assert b"".join(piece for stream, piece in pieces if stream == "stderr") == b"second\n"

    def test_the_middle_of_long_output_is_cut(self, sandbox: Sandbox) -> None:
        result = sandbox.command(
            Command(("/bin/sh", "-c", "echo begin; head -c 300000 /dev/zero; echo end"), output_limit=10_000)
        )
        assert result.truncated
        assert result.stdout.startswith("begin\n")
        assert result.stdout.endswith("end\n")
        assert len(result.stdout) < 11_000

    def test_output_within_the_limit_is_whole(self, sandbox: Sandbox) -> None:
        result = sandbox.command(Command(("head", "-c", "10000", "/dev/zero"), output_limit=10_000))
        assert (result.truncated, len(result.stdout)) == (False, 10_000)

    def test_a_flood_is_bounded(self, sandbox: Sandbox) -> None:
        def sink(_: str, piece: bytes) -> None:
            total[0] += len(piece)
            if total[0] // 20_000_000 > len(used):
                used.append(disk_used(sandbox.spec.home, sandbox.spec.layer))

        total = [0]
        used: list[int] = []
        before = disk_used(sandbox.spec.home, sandbox.spec.layer)
        result = sandbox.run("head", "-c", "400000000", "/dev/zero", sink=sink)
        assert (result.exit_code, result.truncated, total[0]) == (0, True, 400_000_000)
        assert max(used) - before < 150_000_000

    def test_undecodable_output_is_no_error(self, sandbox: Sandbox) -> None:
        assert "�" in sandbox.shell("printf 'a\\377b'").stdout

    # --- ends ---------------------------------------------------------------------------------------------------

    def test_timeout_ends_the_whole_tree(self, sandbox: Sandbox) -> None:
        def sink(_: str, __: bytes) -> None:
            assert until(lambda: all(running(mark) for mark in marks))

        marks = [unique_seconds() for _ in range(4)]
        text = (
            f"sleep {marks[0]} & setsid sleep {marks[1]} & nohup sleep {marks[2]} >/dev/null & "
            f"(setsid sh -c 'sleep {marks[3]} & wait' &) ; echo begun; wait"
        )
        result = sandbox.command(Command(("/bin/sh", "-c", text), timeout=3.0), sink)
        assert (result.exit_code, result.timed_out) == (124, True)
        assert result.stdout == "begun\n"
        assert until(lambda: not any(running(mark) for mark in marks))
        assert sandbox.shell("echo fine").stdout == "fine\n"

    def test_an_exception_of_the_caller_ends_the_tree(self, sandbox: Sandbox) -> None:
        mark = unique_seconds()

        def sink(_: str, __: bytes) -> None:
            assert until(lambda: bool(running(mark)))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sandbox.run("/bin/sh", "-c", f"setsid sleep {mark} & echo begun; wait", sink=sink)
        assert until(lambda: not running(mark))
        assert sandbox.shell("echo fine").stdout == "fine\n"

    def test_background_processes_live_on(self, sandbox: Sandbox) -> None:
        mark = unique_seconds()
        result = sandbox.shell(f"sleep {mark} & echo begun")
        assert result.stdout == "begun\n"
        sandbox.shell("true")
        assert until(lambda: len(running(mark)) == 1), running(mark)
        pids = running(mark)
        assert pids[0] in sandbox.backend.tasks(sandbox.spec, sandbox.live)

    def test_a_background_process_can_go_on_writing(self, sandbox: Sandbox) -> None:
        sandbox.shell("(for i in 1 2 3 4 5 6 7 8; do echo more; sleep 0.05; done; echo done >finished) & echo begun")
        assert until(lambda: sandbox.shell("cat finished 2>/dev/null").stdout == "done\n")

    def test_a_timeout_spares_what_earlier_calls_left(self, sandbox: Sandbox) -> None:
        mark = unique_seconds()
        sandbox.shell(f"sleep {mark} &")
        assert sandbox.shell("sleep 60", timeout=0.3).timed_out
        assert len(running(mark)) == 1

    def test_detached(self, sandbox: Sandbox) -> None:
        mark = unique_seconds()
        out = os.path.join(os.path.realpath(sandbox.spec.workspace), "out.txt")
        command = Command(("/bin/sh", "-c", f"echo here; exec sleep {mark}"), detach=True, stdout_path=out)
        result = sandbox.command(command)
        assert (result.exit_code, result.stdout) == (0, "")
        assert until(lambda: sandbox.shell("cat out.txt").stdout == "here\n")
        assert until(lambda: len(running(mark)) == 1)

    def test_stop_ends_everything_and_can_be_repeated(self, sandbox: Sandbox) -> None:
        mark = unique_seconds()
        sandbox.shell(f"sleep {mark} & setsid nohup sleep {mark} >/dev/null 2>&1 &")
        assert until(lambda: len(running(mark)) == 2)
        assert sandbox.backend.alive(sandbox.spec, sandbox.live)
        sandbox.backend.stop(sandbox.spec, sandbox.live)
        assert not running(mark)
        assert not sandbox.backend.alive(sandbox.spec, sandbox.live)
        assert sandbox.backend.tasks(sandbox.spec, sandbox.live) == ()
        sandbox.backend.stop(sandbox.spec, sandbox.live)

    def test_files_outlive_a_stop(self, sandbox: Sandbox) -> None:
        sandbox.shell("echo kept >kept.txt; rm hello.txt")
        sandbox.backend.stop(sandbox.spec, sandbox.live)
        sandbox.live = sandbox.backend.start(sandbox.spec)
        try:
            assert sandbox.shell("cat kept.txt; ls hello.txt").stdout == "kept\n"
        finally:
            sandbox.backend.stop(sandbox.spec, sandbox.live)

    def test_a_killed_init_is_an_error_not_a_result(self, sandbox: Sandbox) -> None:
        if not sandbox.backend.capabilities.process_tree:
            pytest.skip("this backend has no init")
        os.kill(sandbox.live.init_pid, signal.SIGKILL)
        assert until(lambda: not sandbox.backend.alive(sandbox.spec, sandbox.live))
        with pytest.raises(SandboxError):
            sandbox.run("true")

    def test_an_init_killed_during_a_call_is_an_error(self, sandbox: Sandbox) -> None:
        if not sandbox.backend.capabilities.process_tree:
            pytest.skip("this backend has no init")

        def sink(_: str, __: bytes) -> None:
            os.kill(sandbox.live.init_pid, signal.SIGKILL)

        with pytest.raises(SandboxError):
            sandbox.run("/bin/sh", "-c", "echo begun; sleep 60", sink=sink)

    def test_fingerprint_is_stable(self, sandbox: Sandbox) -> None:
        first = sandbox.backend.fingerprint(sandbox.spec)
        assert first
        assert sandbox.backend.fingerprint(sandbox.spec) == first

    # --- requests from inside -------------------------------------------------------------------------------------

    def test_a_request_is_answered(self, sandbox: Sandbox) -> None:
        def answer(request: AgentRequest) -> AgentReply:
            seen.append(request)
            return AgentReply(exit_code=7, stdout="an ünswer\n", stderr="a warning\n")

        seen: list[AgentRequest] = []
        result = sandbox.shell("planarian snapshot --name 'a b'; echo code $?", requests=answer)
        assert result.stdout == "an ünswer\ncode 7\n"
        assert result.stderr == "a warning\n"
        assert [request.argv for request in seen] == [("snapshot", "--name", "a b")]

    def test_a_request_names_its_processes(self, sandbox: Sandbox) -> None:
        def answer(request: AgentRequest) -> AgentReply:
            seen.append(request.chain)
            return AgentReply()

        seen: list[tuple[int, ...]] = []
        result = sandbox.shell("echo $$; sh -c 'echo $$; planarian log; true'; true", requests=answer)
        outer, inner = (int(line) for line in result.stdout.split())
        chain = seen[0]
        assert chain[1:3] == (inner, outer)
        assert 1 not in chain

    def test_a_request_can_end_the_call(self, sandbox: Sandbox) -> None:
        mark = unique_seconds()
        result = sandbox.shell(
            f"echo before; setsid sleep {mark} & planarian rollback; echo after",
            requests=lambda _: AgentReply(ends_call=True),
        )
        assert result.stdout == "before\n"
        assert not result.timed_out
        assert until(lambda: not running(mark))

    def test_a_request_that_nobody_listens_to(self, sandbox: Sandbox) -> None:
        result = sandbox.shell("planarian snapshot")
        assert result.exit_code == 69
        assert "nobody listens" in result.stderr

    # --- sessions -------------------------------------------------------------------------------------------------

    def test_a_session_remembers(self, sandbox: Sandbox) -> None:
        def say(text: str) -> str:
            return sandbox.command(Command((text,), session="main", timeout=30)).stdout

        say("cd /usr; A=5; f() { echo called $1; }")
        assert say("pwd; echo $A; f x") == "/usr\n5\ncalled x\n"

    def test_sessions_are_apart(self, sandbox: Sandbox) -> None:
        sandbox.command(Command(("A=5",), session="one", timeout=30))
        assert sandbox.command(Command(("echo [$A]",), session="two", timeout=30)).stdout == "[]\n"

    def test_a_session_outlives_a_timeout(self, sandbox: Sandbox) -> None:
        mark = unique_seconds()
        sandbox.command(Command(("A=5",), session="main", timeout=30))
        result = sandbox.command(Command((f"sleep {mark}",), session="main", timeout=0.5))
        assert (result.exit_code, result.timed_out) == (124, True)
        assert until(lambda: not running(mark))
        assert sandbox.command(Command(("echo $A",), session="main", timeout=30)).stdout == "5\n"

    @pytest.mark.parametrize("name", ["../up", "a/b", "a\nb", "x" * 300, ".."])
    def test_a_sessions_name_is_no_path(self, sandbox: Sandbox, name: str) -> None:
        with pytest.raises(PlanarianError):
            sandbox.command(Command(("true",), session=name, timeout=30))

    def test_requests_from_a_session(self, sandbox: Sandbox) -> None:
        result = sandbox.command(
            Command(("planarian log; echo $?",), session="main", timeout=30),
            requests=lambda request: AgentReply(exit_code=3, stdout=f"{request.argv[0]}\n"),
        )
        assert result.stdout == "log\n3\n"
