"""Random files, captures, restores and forks against a plain oracle.

Deterministic; ``PLANARIAN_RANDOM=2000`` runs that many cases with fresh seeds instead of the few of every test run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from planarian_core.interfaces import Layer
from planarian_core.model import Artefact
from planarian_core.testing.oracle import Description, assert_same, describe
from planarian_filesystem.copy import CopyBackend

CASES = int(os.environ.get("PLANARIAN_RANDOM", "0"))
NAMES = ["a", "b", "c", "d", os.fsdecode(b"\xff\xe9")]
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
contents = st.sampled_from([b"", b"x", b"some text", b"y" * 5000, b"z" * (1024 * 1024 + 5)])
layers = st.integers(0, 2)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file to write; a fifo or a link there is an OSError, not a trap."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


class CopyMachine(RuleBasedStateMachine):
    """Every operation may fail as it would in a shell (a missing directory, a directory in the way); that is part of
    the game. What must hold: a restored layer equals what was described when the artefact was captured.
    """

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="planarian-random-"))
        self.backend = CopyBackend(self.home)
        self.layers = [Layer(self.home / "layer0")]
        self.backend.create(self.layers[0])
        self.taken: list[tuple[str, Description, Artefact]] = []
        self.number = 0

    def teardown(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def at(self, layer: int, path: str) -> Path:
        return self.layers[layer % len(self.layers)].path / path

    # --- what a sandbox does

    @rule(layer=layers, path=paths, data=contents)
    def write(self, layer: int, path: str, data: bytes) -> None:
        with contextlib.suppress(OSError), opened(self.at(layer, path), os.O_CREAT | os.O_TRUNC) as fd:
            os.write(fd, data)

    @rule(layer=layers, path=paths, data=contents, old=st.booleans())
    def append(self, layer: int, path: str, data: bytes, old: bool) -> None:
        with contextlib.suppress(OSError):
            target = self.at(layer, path)
            before = os.lstat(target).st_mtime_ns
            with opened(target, os.O_APPEND) as fd:
                os.write(fd, data)
            if old:
                os.utime(target, ns=(before, before))

    @rule(layer=layers, path=paths, offset=st.integers(0, 3_000_000), old=st.booleans())
    def patch(self, layer: int, path: str, offset: int, old: bool) -> None:
        """Write inside a file, the size as it was, and perhaps set its time back."""
        with contextlib.suppress(OSError):
            target = self.at(layer, path)
            status = os.lstat(target)
            with opened(target, 0) as fd:
                os.pwrite(fd, os.fsencode(str(offset % 10)), min(offset, max(status.st_size - 1, 0)))
            if old:
                os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))

    @rule(layer=layers, path=paths, size=st.sampled_from([0, 1, 4096, 300_000, 1 << 33]))
    def truncate(self, layer: int, path: str, size: int) -> None:
        with contextlib.suppress(OSError):
            target = self.at(layer, path)
            if not target.is_symlink() and target.is_file():
                os.truncate(target, size)

    @rule(layer=layers, path=paths, offset=st.sampled_from([8192, 1 << 20, (1 << 20) + 4096, 5 << 20]))
    def sparse(self, layer: int, path: str, offset: int) -> None:
        with contextlib.suppress(OSError), opened(self.at(layer, path), os.O_CREAT | os.O_TRUNC) as fd:
            os.pwrite(fd, b"data", offset)
            os.ftruncate(fd, offset * 2)

    @rule(layer=layers, path=paths)
    def mkdir(self, layer: int, path: str) -> None:
        with contextlib.suppress(OSError):
            self.at(layer, path).mkdir(parents=True)

    @rule(layer=layers, path=paths)
    def remove(self, layer: int, path: str) -> None:
        target = self.at(layer, path)
        with contextlib.suppress(OSError):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink()

    @rule(layer=layers, path=paths, to=paths)
    def rename(self, layer: int, path: str, to: str) -> None:
        with contextlib.suppress(OSError):
            self.at(layer, path).rename(self.at(layer, to))

    @rule(layer=layers, path=paths, to=paths)
    def hardlink(self, layer: int, path: str, to: str) -> None:
        with contextlib.suppress(OSError):
            os.link(self.at(layer, path), self.at(layer, to), follow_symlinks=False)

    @rule(layer=layers, path=paths, to=st.sampled_from(["a", "b/c", "nowhere", "/nonexistent/planarian"]))
    def symlink(self, layer: int, path: str, to: str) -> None:
        with contextlib.suppress(OSError):
            self.at(layer, path).symlink_to(to)

    @rule(layer=layers, path=paths)
    def fifo(self, layer: int, path: str) -> None:
        with contextlib.suppress(OSError):
            os.mkfifo(self.at(layer, path))

    @rule(layer=layers, path=paths, mode=st.sampled_from([0o600, 0o644, 0o755, 0o700, 0o1777, 0o4711]))
    def chmod(self, layer: int, path: str, mode: int) -> None:
        with contextlib.suppress(OSError, NotImplementedError):
            if not self.at(layer, path).is_symlink():
                self.at(layer, path).chmod(mode | 0o700)

    @rule(layer=layers, path=paths, when=st.sampled_from([0, 1, 1_600_000_000_000_000_001, 4_000_000_000_000_000_000]))
    def touch(self, layer: int, path: str, when: int) -> None:
        with contextlib.suppress(OSError):
            os.utime(self.at(layer, path), ns=(when, when), follow_symlinks=False)

    @rule(layer=layers, path=paths, value=st.sampled_from([b"", b"1", b"\0\xff"]))
    def attribute(self, layer: int, path: str, value: bytes) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setxattr(self.at(layer, path), "user.note", value, follow_symlinks=False)

    # --- what Planarian does

    @rule(layer=layers)
    def prepare(self, layer: int) -> None:
        self.backend.prepare(self.layers[layer % len(self.layers)])

    @rule(layer=layers)
    def capture(self, layer: int) -> None:
        chosen = self.layers[layer % len(self.layers)]
        self.number += 1
        description = describe(chosen.path)
        artefact = self.backend.capture(chosen, f"sp-{self.number}")
        assert_same(describe(chosen.path), description)
        assert artefact.details["gaps"] == []
        self.taken.append((f"sp-{self.number}", description, artefact))

    @precondition(lambda self: self.taken)
    @rule(layer=layers, number=st.integers(0, 50))
    def restore(self, layer: int, number: int) -> None:
        chosen = self.layers[layer % len(self.layers)]
        _, description, artefact = self.taken[number % len(self.taken)]
        self.backend.verify(artefact)
        self.backend.stage(artefact, chosen).switch()
        assert_same(describe(chosen.path), description)

    @precondition(lambda self: self.taken)
    @rule(number=st.integers(0, 50))
    def restore_and_capture(self, number: int) -> None:
        """After a restore nothing needs hashing, and the capture is the same artefact but for its link groups."""
        name, description, artefact = self.taken[number % len(self.taken)]
        chosen = self.layers[0]
        self.backend.stage(artefact, chosen).switch()
        again = self.backend.capture(chosen, name)
        assert_same(describe(chosen.path), description)
        assert again.reference == artefact.reference

    @precondition(lambda self: self.taken and len(self.layers) < 3)
    @rule(number=st.integers(0, 50))
    def fork(self, number: int) -> None:
        _, description, artefact = self.taken[number % len(self.taken)]
        fork = Layer(self.home / f"layer{len(self.layers)}")
        self.backend.stage(artefact, fork).switch()
        assert_same(describe(fork.path), description)
        self.layers.append(fork)

    @precondition(lambda self: len(self.taken) > 2)
    @rule(number=st.integers(0, 50))
    def forget(self, number: int) -> None:
        name, _, _ = self.taken.pop(number % len(self.taken))
        self.backend.discard(name)
        self.backend.collect()
        for _, _, artefact in self.taken:
            self.backend.verify(artefact)


TestCopyRandom = CopyMachine.TestCase
TestCopyRandom.settings = settings(
    max_examples=CASES or 25,
    stateful_step_count=40,
    derandomize=not CASES,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
