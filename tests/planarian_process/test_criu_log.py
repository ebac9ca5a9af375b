"""CRIU's log is read: which process, what cause, what to do. The lines are worded as CRIU 4.2 words them."""

from __future__ import annotations

import pytest

from planarian_process.criu_engine import EngineFailure
from planarian_process.criu_log import diagnose, log_gaps
from planarian_process.criu_tasks import Task

TASKS = (
    Task(host=500, inside=1, argv=("init",), cwd="/", state="S", tracer=0, nested=False),
    Task(host=512, inside=7, argv=("python3", "server.py"), cwd="/srv", state="S", tracer=0, nested=False),
)
START = "(00.000765) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"


def failure(*lines: str) -> EngineFailure:
    found = EngineFailure("CRIU failed")
    found.log = START + "\n".join(lines)
    return found


@pytest.mark.parametrize(
    ("line", "cause", "remedy"),
    [
        ("Error (criu/files-ext.c:98): Can't dump file 5 of that type [20666] (chr 10:229 /dev/fuse)", "10:229", "end"),
        ("Error (criu/page-xfer.c:1): page-xfer: Unable to spice data: No space left on device", "full", "space"),
        ("Error (criu/sockets.c:2): Can't get 1:16 opt: Operation not supported", "TCP socket on this kernel", "4.2"),
        ("Error (criu/files-reg.c:3): Can't lookup mount=77 for fd=3 path=/x", "out of the sandbox", "end"),
        ("Error (criu/something.c:4): a thing nobody foresaw", "a thing nobody foresaw", "try again"),
    ],
)
def test_a_dump_names_process_cause_and_remedy(line: str, cause: str, remedy: str) -> None:
    found = diagnose(failure("(00.009038) Dumping task (pid: 512 comm: python3)", line), TASKS)
    assert found.cause.startswith("process 7 (python3 server.py): ")
    assert cause in found.cause
    assert remedy in found.remedy
    assert found.lines == (line.partition("): ")[2],)


def test_a_process_that_the_line_names_counts_more() -> None:
    found = diagnose(
        failure(
            "(0) Dumping task (pid: 500 comm: init)",
            "Error (x.c:1): Unseizable non-zombie 512 found, state t, err -1/1",
        ),
        TASKS,
    )
    assert found.cause.startswith("process 7 ")


def test_a_restore_names_the_pid_inside() -> None:
    line = "(00.057487)      7: Error (criu/files-reg.c:2): File usr/bin/python3 has bad size 10 (expect 20)"
    found = diagnose(failure(line))
    assert found.cause.startswith("process 7: the file usr/bin/python3 is not the one")


def test_hostile_names_are_bounded() -> None:
    found = diagnose(failure(*(f"Error (x.c:{n}): {n}\x1b[31m{'long' * 1000}" for n in range(50))), TASKS)
    assert len(found.lines) <= 6
    assert all(len(line) <= 240 and line.isprintable() for line in found.lines)


def test_without_a_log_the_reason_remains() -> None:
    lost = EngineFailure("CRIU ended early (exit code 1)", lost=True)
    lost.errors = "Traceback\n  …\nmount the overlay: Stale file handle\n"
    found = diagnose(lost)
    assert found.cause == "CRIU ended early (exit code 1)"
    assert found.lines[-1] == "mount the overlay: Stale file handle"


def test_what_was_left_out_is_said_per_process() -> None:
    log = "\n".join(
        [
            "(0) Dumping task (pid: 512 comm: python3)",
            "(0) inet: Skipping in-flight connection (l) for 9049",
            "(0) tcp: Dumping TCP connection",
            "(0) Warn  (criu/sk-inet.c:161): inet: Read queue is dropped for socket 904e",
        ]
    )
    own = log_gaps(log, TASKS, host_network=False)
    assert [gap.subject.startswith("process 7 (python3 server.py): ") for gap in own] == [True, True]
    assert len(log_gaps(log, TASKS, host_network=True)) == 3
    assert log_gaps("", TASKS, host_network=True) == ()
