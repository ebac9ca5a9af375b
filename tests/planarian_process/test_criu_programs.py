"""Real programs survive, as people use them in a sandbox."""

from __future__ import annotations

import json

import pytest

from planarian_core.errors import CaptureError
from planarian_core.model import Command
from planarian_core.testing.process import PATIENCE, Subject, eventually

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


@pytest.mark.needs("redis-server")
def test_redis_keeps_what_is_only_in_memory(subject: Subject) -> None:
    subject.spawn("redis-server", "--port", "6400", "--save", "", "--appendonly", "no")
    assert eventually(lambda: subject.shell("redis-cli -p 6400 ping").stdout == "PONG\n")
    subject.shell("redis-cli -p 6400 incr number; redis-cli -p 6400 lpush list a b c")
    # A client that is subscribed stays connected all the time.
    subject.spawn("/bin/sh", "-c", "exec redis-cli -p 6400 subscribe news >heard")
    subject.shows("heard", lambda text: "subscribe" in text)
    taken = subject.take()
    subject.shell("redis-cli -p 6400 incr number; redis-cli -p 6400 flushall; redis-cli -p 6400 publish news early")
    subject.rollback(taken)
    assert subject.shell("redis-cli -p 6400 incr number").stdout.strip() == "2"
    fork = subject.fork(taken)
    try:
        assert fork.shell("redis-cli -p 6400 lrange list 0 -1").stdout.split() == ["c", "b", "a"]
        assert fork.shell("redis-cli -p 6400 publish news late").stdout.strip() == "1"
        assert "early" not in fork.shows("heard", lambda text: "late" in text)
    finally:
        fork.stop()


@pytest.mark.needs("tmux")
def test_a_tmux_session(subject: Subject) -> None:
    subject.shell("tmux -f /dev/null new-session -d -s work -x 80 -y 24 '/bin/bash --norc'")
    subject.shell("tmux send-keys -t work 'N=41; echo set >ready' Enter")
    subject.shows("ready")
    taken = subject.take()
    subject.shell("tmux send-keys -t work 'N=0; echo zero >zero' Enter")
    subject.shows("zero")
    for sandbox in (subject, fork := subject.fork(taken)):
        try:
            if sandbox is subject:
                subject.rollback(taken)
            assert "N=41" in sandbox.shell("tmux capture-pane -p -t work").stdout
            sandbox.shell("tmux send-keys -t work 'echo $((N+1)) >sum' Enter")
            assert sandbox.shows("sum").strip() == "42"
            assert sandbox.read("zero") == ""
        finally:
            if sandbox is fork:
                fork.stop()


@pytest.mark.needs("tmux")
def test_a_plain_sh_in_a_terminal_is_named(subject: Subject) -> None:
    """A limit of CRIU 4.2: it holds /dev/tty open."""
    subject.shell("tmux -f /dev/null new-session -d -s work '/bin/dash'")
    subject.shell("tmux send-keys -t work 'echo set >ready' Enter")
    subject.shows("ready")
    with pytest.raises(CaptureError, match=r"process \d+ \(/bin/dash\): it holds its terminal") as caught:
        subject.take()
    assert "bash" in caught.value.remedy
    subject.shell("tmux send-keys -t work 'echo more >more' Enter")
    assert subject.shows("more")


def test_a_persistent_shell(subject: Subject) -> None:
    def session(sandbox: Subject, text: str) -> str:
        command = Command((text,), session="main", timeout=PATIENCE)
        return sandbox.host.execute(sandbox.spec, sandbox.live, command).stdout.strip()

    session(subject, "cd /usr/lib; export WORD=remembered; greet() { echo hello $1; }; sleep 1000 & true")
    taken = subject.take()
    session(subject, "cd /; unset WORD; unset -f greet; kill %1")
    subject.rollback(taken)
    for _ in range(2):
        assert session(subject, 'echo "$PWD $WORD $(greet you) $(jobs -r | grep -c sleep)"').endswith(
            "/usr/lib remembered hello you 1"
        )


@pytest.mark.needs("node")
def test_node_with_a_worker(subject: Subject) -> None:
    program = """
const fs = require("fs"), http = require("http"), {Worker} = require("worker_threads");
const worker = new Worker("const {parentPort} = require('worker_threads'); let n = 0;" +
    "parentPort.on('message', () => parentPort.postMessage(++n))", {eval: true});
http.createServer((request, response) => {
    worker.once("message", n => response.end(String(n)));
    worker.postMessage("more");
}).listen(6500, "127.0.0.1", () => fs.writeFileSync("ready", "yes"));
"""
    subject.spawn("node", "-e", program)
    subject.shows("ready")
    ask = "curl -s http://127.0.0.1:6500/"
    assert subject.shell(ask).stdout == "1"
    taken = subject.take()
    assert subject.shell(ask).stdout == "2"
    subject.rollback(taken)
    assert subject.shell(ask).stdout == "2"


def test_a_call_under_way_ends_as_it_would_have(subject: Subject) -> None:
    """A capture in the middle of a tool call: the call's process is in the statepoint, and its result comes."""
    subject.spawn("/bin/sh", "-c", "echo begun >begun; sleep 0.8; echo over >over")
    subject.shows("begun")
    taken = subject.take()
    names = [json.dumps(process.argv) for process in taken.process_list]
    assert any("sleep 0.8" in name for name in names), names
    assert subject.shows("over") == "over\n"
    subject.rollback(taken)
    assert subject.shows("over") == "over\n"
