"""Requests from inside: the real client against the real listener, in a directory that both reach."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import planarian_sandbox
from planarian_core.interfaces import AgentReply, AgentRequest, RequestHandler
from planarian_core.testing.sandbox import until
from planarian_sandbox.inside import Inside
from planarian_sandbox.request_listener import LISTENING, REQUESTS, RequestListener, program

CLIENT = Path(planarian_sandbox.__file__).with_name("request_client.py")
LISTEN = """
import sys, time
from planarian_sandbox.inside import Inside
from planarian_sandbox.request_listener import RequestListener
with Inside.of_path(sys.argv[1]) as place, RequestListener(place, "c1", lambda *_: None, print):
    time.sleep(60)
"""
FORGED = "any.1.aaaaaaaaaaaa"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "a place"
    for name in (REQUESTS, LISTENING):
        (place / name).mkdir(parents=True)
    return place


def requester(pid: int, user: int) -> tuple[int, ...] | None:
    """Every process of that user is of the sandbox."""
    with contextlib.suppress(psutil.Error):
        return (pid,) if psutil.Process(pid).uids().effective == user else None
    return None


@contextmanager
def listener(place: Path, handler: RequestHandler, call: str = "c1") -> Iterator[RequestListener]:
    with Inside.of_path(str(place)) as inside, RequestListener(inside, call, requester, handler) as listener:
        yield listener


def client(place: Path, *argv: str | bytes, call: str | None = None) -> subprocess.Popen[bytes]:
    argument_list = [sys.executable, "-I", "-S", str(CLIENT), str(place), *argv]
    env = {} if call is None else {"PLANARIAN_CALL": call}
    return subprocess.Popen(argument_list, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ask(
    place: Path, listener: RequestListener, *argv: str | bytes, call: str | None = None
) -> tuple[int, bytes, bytes]:
    """Run the client while the listener looks."""
    with client(place, *argv, call=call) as process:
        if not until(lambda: listener.look() or process.poll() is not None):
            process.kill()
        out, err = process.communicate()
        return process.returncode, out, err


def echo(request: AgentRequest) -> AgentReply:
    return AgentReply(7, f"out {request.argv} \u00e9\n", "err\n")


def refuse(request: AgentRequest) -> AgentReply:
    raise AssertionError(f"{request} got through")


def names(place: Path) -> list[str]:
    return sorted(os.listdir(place / REQUESTS) + os.listdir(place / LISTENING))


def test_an_answer_with_all_its_parts(place: Path) -> None:
    with listener(place, echo) as open_listener:
        answer = ask(place, open_listener, "a b", "", b"\xff", call="c1")
    expected = f"out {('a b', '', os.fsdecode(bytes([255])))} \u00e9\n"
    assert answer == (7, expected.encode(), b"err\n")
    assert names(place) == []


def test_the_command_takes_any_place_and_any_words(place: Path) -> None:
    command = place / "planarian"
    command.write_bytes(program(sys.executable, str(CLIENT), str(place)))
    command.chmod(0o755)
    seen = []

    def note(request: AgentRequest) -> AgentReply:
        seen.append(request.argv)
        return AgentReply()

    with listener(place, note) as open_listener:
        process = subprocess.Popen([str(command), "it's", "$HOME", "*"], stdout=subprocess.DEVNULL)
        answered = until(lambda: open_listener.look() or process.poll() is not None)
        process.kill()
        process.wait()
    assert answered
    assert seen == [("it's", "$HOME", "*")]


def test_each_request_has_one_server(place: Path) -> None:
    """Those of a call go to its own listener, those of no call to one of them."""
    with (
        listener(place, lambda _: AgentReply(stdout="first"), "c1") as first,
        listener(place, lambda _: AgentReply(stdout="second"), "c2") as second,
    ):
        stop = threading.Event()
        thread = threading.Thread(target=lambda: [second.look() or stop.wait(0.005) for _ in iter(stop.is_set, True)])
        thread.start()
        try:
            assert ask(place, first, call="c1")[1] == b"first"
            assert ask(place, first, call="c2")[1] == b"second"
            for call in (None, "none", "../c2", "c3"):
                assert ask(place, first, call=call)[1] in (b"first", b"second")
        finally:
            stop.set()
            thread.join()


def test_nobody_listens(place: Path) -> None:
    with client(place, "log") as process:
        _, err = process.communicate()
    assert process.returncode == 69
    assert b"nobody listens" in err
    assert names(place) == []


def test_a_listener_that_leaves_without_an_answer(place: Path) -> None:
    with listener(place, refuse):
        process = client(place, "log")
        asked = until(lambda: any(name.endswith(".request") for name in names(place)))
    with process:
        assert process.wait(20) == 69
    assert asked
    assert names(place) == []


def test_a_killed_listener_is_none(place: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", LISTEN, str(place)], env=env) as killed:
        heard = until(lambda: bool(names(place)))
        killed.kill()
    assert heard
    assert names(place) == ["c1"]
    with client(place, "log") as process:
        assert process.wait(20) == 69
    with listener(place, echo, "c2") as open_listener:
        assert names(place) == ["c2"]
        assert ask(place, open_listener, call="c1")[0] == 7


def test_an_answer_that_ends_the_call(place: Path) -> None:
    with listener(place, lambda _: AgentReply(ends_call=True)) as open_listener, client(place, "rollback") as process:
        ended = until(open_listener.look)
        waiting = process.poll() is None
        process.kill()
        assert ended
        assert waiting
        assert open_listener.ended


@pytest.mark.parametrize("pid", ["1", "0", "-1", "", "x", "\u0661", "9" * 5000, "99999999"])
def test_a_claimed_pid_is_not_believed(place: Path, pid: str) -> None:
    request = place / REQUESTS / f"{FORGED}.request"
    request.write_bytes(pid.encode() + b"\0log")
    if os.geteuid() == 0:
        os.chown(request, 65534, 65534)
    with listener(place, refuse) as open_listener:
        assert not open_listener.look()
    reply = request.with_suffix(".reply").read_bytes()
    assert reply.startswith(b"1\0\0the request does not come from a process of this sandbox")


def _link(path: Path) -> None:
    path.parent.parent.joinpath("secret").write_bytes(b"1\0secret")
    path.symlink_to("../secret")


def _huge(path: Path) -> None:
    path.write_bytes(b"1\0" * 200_000)


@pytest.mark.parametrize("make", [_link, _huge, os.mkfifo, Path.mkdir])
def test_what_is_no_request(place: Path, make: Callable[[Path], None]) -> None:
    make(place / REQUESTS / f"{FORGED}.request")
    with listener(place, refuse) as open_listener:
        assert not open_listener.look()
        open_listener._handler = echo
        assert ask(place, open_listener)[0] == 7


def test_a_reply_replaces_a_link(place: Path) -> None:
    victim = place / "victim"
    victim.write_text("before")
    for name in (f"{FORGED}.reply", f".{FORGED}.reply.new"):
        (place / REQUESTS / name).symlink_to(victim)
    (place / REQUESTS / f"{FORGED}.request").write_text(f"{os.getpid()}\0hello")
    with listener(place, echo) as open_listener:
        assert not open_listener.look()
    assert victim.read_text() == "before"
    assert "hello" in (place / REQUESTS / f"{FORGED}.reply").read_text()
