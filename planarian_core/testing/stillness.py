"""A program that waits in a sandbox, its capture, and what is done to it afterwards: for trials of
:class:`planarian_core.interfaces.ProvesStillness`.
"""

from __future__ import annotations

import time
from pathlib import Path

from planarian_core.interfaces import ProvesStillness
from planarian_core.model import Artefact
from planarian_core.testing.process import Subject, Taken, eventually, python

READY = """
import ctypes, fcntl, mmap, os, resource, select, signal, socket, struct, subprocess, sys, tempfile, threading, time
def ready(**what):
    what["pid"] = os.getpid()
    with open("facts.new", "w") as file:
        file.write(repr(what))
    os.rename("facts.new", "facts")
"""
"""Put before each program: ``ready()`` says that it is set up, its pid, and what else a deed needs to know."""
DEED = """
import ctypes, errno, fcntl, os, resource, signal, socket, struct, sys, termios, time
facts = eval(open("facts").read())
pid = facts["pid"]
libc = ctypes.CDLL(None, use_errno=True)
"""
"""Put before each deed: what the program told."""


class StillnessTrial:
    """One sandbox in such a trial. Its process backend is one that :class:`ProvesStillness`."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        assert isinstance(subject.backend, ProvesStillness)
        self.backend = subject.backend
        self.taken: Taken | None = None

    def start(self, program: str, *, waits: bool = True) -> None:
        """Run a Python program until it says ``ready()``, and, if it ``waits``, until all does."""
        self.subject.spawn(python(), "-c", f"{READY}\n{program}")
        self.subject.shows("facts")
        if waits:
            self.settle()

    def settle(self) -> None:
        """Wait until nothing has run for a moment."""
        assert eventually(self._nothing_runs)

    def _nothing_runs(self) -> bool:
        before = self._run_times()
        time.sleep(0.05)
        return self._run_times() == before

    def _run_times(self) -> list[str]:
        threads = [path for pid in self.subject.running.tasks() for path in Path(f"/proc/{pid}/task").iterdir()]
        return [(thread / "schedstat").read_text() for thread in threads]

    def capture(self) -> Artefact:
        self.taken = self.subject.take()
        return self.artefact

    @property
    def artefact(self) -> Artefact:
        assert self.taken is not None
        assert self.taken.artefact is not None
        return self.taken.artefact

    def still(self) -> bool:
        return self.backend.still(self.subject.running, self.artefact)

    def do(self, deed: str) -> None:
        """A tool call that runs Python; it has to reach its end, for a deed that failed would prove nothing."""
        result = self.subject.run(python(), "-c", f"{DEED}\n{deed}\nprint('done')")
        assert result.stdout.endswith("done\n"), result.stderr
