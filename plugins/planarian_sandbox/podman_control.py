"""The place through which Planarian takes part in a checkpoint or restore of one container: a hook that CRIU runs."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from planarian_core.errors import CaptureError
from planarian_core.model import LiveSandbox, Network, SandboxSpec
from planarian_sandbox.layout import inside_python

_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
"""CRIU has a shell run the hook, so its path must mean nothing to one."""

_COMMON = "criu.common"
_HOOK = """#!/bin/sh
case "$CRTOOLS_SCRIPT_ACTION" in
    post-dump | pre-resume) exec {python} -I -S {program} ;;
esac
"""
"""There are a dozen stages: starting Python at each would take longer than all the rest."""


class Control:
    """The control directory of the container that was made for one sandbox."""

    def __init__(self, home: Path, sandbox_id: str) -> None:
        self.folder = home / "mounts" / f"{sandbox_id}.criu"

    @classmethod
    def of_live(cls, home: Path, spec: SandboxSpec, live: LiveSandbox) -> Control:
        """That of a running sandbox; CaptureError where its container was made without one."""
        control = cls(home, str(live.details.get("made_for", spec.id)))
        if not (control.folder / _COMMON).is_file():
            raise CaptureError(
                f"the memory of this container can't be captured: CRIU's hook is missing in {control.folder}",
                state="nothing was captured; the sandbox runs on",
                remedy="use a home whose path has letters, digits, - _ . alone; or respawn",
            )
        return control

    def make(self, network: Network) -> list[str]:
        """Make it anew; the options by which podman has the runtime use it. None where its path can't be used."""
        self.remove()
        if not _PLAIN.fullmatch(str(self.folder)):
            return []
        self.folder.mkdir(mode=0o700, parents=True)
        hook, program = self.folder / "hook", self.folder / "hook.py"
        program.write_bytes(Path(__file__).with_name("podman_hook.py").read_bytes())
        hook.write_text(_HOOK.format(python=inside_python(), program=program), encoding="ascii")
        hook.chmod(0o700)
        # With loopback alone all ends of a connection stand still together: there is nobody to lock out, by iptables.
        locked = "" if network is Network.HOST else "network-lock skip\n"
        (self.folder / _COMMON).write_text(f"action-script {hook}\n{locked}", encoding="ascii")
        self.configure(False)
        self.order((), False, "")
        return [f"--annotation=org.criu.config={self.folder / 'criu.conf'}"]

    def configure(self, track: bool) -> None:
        """What CRIU does in any checkpoint until this is said anew; ``track``: mark what is written from then on."""
        common = (self.folder / _COMMON).read_text(encoding="ascii")
        draft = self.folder / "criu.new"
        draft.write_text(common + ("track-mem\n" if track else ""), encoding="ascii")
        draft.replace(self.folder / "criu.conf")

    def order(self, kill: Sequence[int], freeze: bool, aside: str) -> None:
        """What the hook is to do before a restored container runs."""
        text = json.dumps({"kill": list(kill), "freeze": freeze, "aside": aside})
        (self.folder / "restore.json").write_text(text, encoding="ascii")

    @contextmanager
    def asked(self, resuming: Callable[[int], object]) -> Iterator[None]:
        """Answer the hook when it asks in a restore, after ``resuming`` was called with the host pid of the init."""
        with self.fifos() as (reached, go), ThreadPoolExecutor(1) as pool:
            ended, end = os.pipe()

            def answer() -> None:
                poll = select.poll()
                poll.register(reached, select.POLLIN)
                poll.register(ended, select.POLLHUP)
                if reached in dict(poll.poll()):
                    resuming(int(os.read(reached, 32)))
                    os.write(go, b"g")

            answering = pool.submit(answer)
            try:
                yield
            finally:
                os.close(end)
                answering.exception()
                os.close(ended)
            answering.result()

    def work(self) -> Path:
        """A new directory for the logs of a checkpoint."""
        return Path(tempfile.mkdtemp(prefix="work-", dir=self.folder))

    @contextmanager
    def fifos(self) -> Iterator[tuple[int, int]]:
        """The two FIFOs by which the hook tells that all stands still, and is told to go on, held open."""
        paths = [self.folder / name for name in ("reached", "go")]
        held: list[int] = []
        try:
            for path in paths:
                path.unlink(missing_ok=True)
                os.mkfifo(path, 0o600)
                held.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            yield held[0], held[1]
        finally:
            for descriptor in held:
                os.close(descriptor)
            for path in paths:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.folder, ignore_errors=True)
