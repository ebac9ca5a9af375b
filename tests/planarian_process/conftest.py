"""A namespace sandbox with the criu backend, and the trial that every workload goes through."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planarian_core.model import Limits, SandboxSpec, new_id
from planarian_core.testing.process import COUNTER, Subject, python
from planarian_process.criu import CriuBackend
from planarian_sandbox.namespace import NamespaceBackend

FRAME = """
import ctypes, fcntl, mmap, os, pty, resource, select, signal, socket, struct, sys, threading, time
token = os.urandom(8).hex()

def publish(name, text):
    with open(name + ".new", "w") as file:
        file.write(text)
    os.rename(name + ".new", name)

def child(work):
    a, b = os.pipe()
    c, d = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(b); os.close(c)
        while True:
            asked = os.read(a, 100)
            if not asked:
                os._exit(0)
            os.write(d, work(asked))
    os.close(a); os.close(d)
    def ask(text):
        os.write(b, text)
        return os.read(c, 100)
    return pid, ask

{setup}
publish("token", token)
while True:
    try:
        os.unlink("ask")
    except FileNotFoundError:
        time.sleep(0.01)
        continue
    try:
        publish("answer", token + " " + str(check()))
    except BaseException as error:
        publish("answer", repr(error))
"""
"""A program that answers when the file ``ask`` appears: the token that it has in memory, and its ``check()``."""


@pytest.fixture
def criu_home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


@pytest.fixture
def criu_backend(criu_home: Path) -> CriuBackend:
    return CriuBackend(criu_home)


@pytest.fixture
def criu_spec(tmp_path: Path, criu_home: Path, workspace: Path) -> SandboxSpec:
    layer = criu_home / "sandboxes" / "one" / "layer"
    layer.mkdir(parents=True)
    return SandboxSpec(
        new_id("sb"), str(workspace), str(layer), str(criu_home), "namespace", limits=Limits(1024**3, 512)
    )


@pytest.fixture
def subject(criu_backend: CriuBackend, criu_home: Path, criu_spec: SandboxSpec, tmp_path: Path) -> Iterator[Subject]:
    """A started sandbox, nothing but its init in it."""
    subject = Subject.start(criu_backend, NamespaceBackend(criu_home), criu_spec, tmp_path)
    yield subject
    subject.stop()
    shutil.rmtree(criu_home / "sandboxes")


@pytest.fixture
def counting(subject: Subject) -> Subject:
    """The same with :data:`COUNTER` running."""
    subject.spawn(python(), "-c", COUNTER)
    subject.shows("count")
    return subject


@pytest.fixture
def survives(subject: Subject) -> Callable[[str], None]:
    """Put a program through it all. ``setup`` runs once; its ``check()`` answers later, again and again, and says
    ``ok`` only when all is as it was set up. Names of :data:`FRAME` are there.
    """

    def trial(setup: str) -> None:
        subject.spawn(python(), "-c", FRAME.format(setup=setup))
        token = subject.shows("token")
        taken = subject.take()
        _answers(subject, token)
        _answers(subject, token)
        subject.rollback(taken)
        _answers(subject, token)
        fork = subject.fork(taken)
        try:
            _answers(fork, token)
            _answers(subject, token)
            again = subject.take()
        finally:
            fork.stop()
        subject.rollback(again)
        _answers(subject, token)

    return trial


def _answers(subject: Subject, token: str) -> None:
    subject.shell("rm -f answer; touch ask")
    assert subject.shows("answer") == f"{token} ok"
