"""What a terminal is told while something takes its time."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

SLOW = """
import time
from planarian_core.cli import output
with output.working("at once"):
    pass
with output.working("bringing \\x1b[2J back") as tell:
    time.sleep(1.2)
    tell("the second of 2")
    time.sleep(0.7)
print("done")
"""


def _on_a_terminal(term: str) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SLOW]
    started = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": term})
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # how a terminal ends
        pass
    os.close(ours)
    assert started.wait(60) == 0
    return said.decode()


def test_a_terminal_is_told_what_takes_its_time_and_the_line_goes_away() -> None:
    said = _on_a_terminal("xterm")
    assert "bringing ?[2J back … " in said
    assert "the second of 2 … " in said
    assert "at once" not in said
    assert said.endswith("\r\x1b[Kdone\r\n")


def test_a_dumb_terminal_and_a_pipe_are_told_nothing() -> None:
    assert _on_a_terminal("dumb") == "done\r\n"
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")
