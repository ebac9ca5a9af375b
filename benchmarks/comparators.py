"""What the primitives are compared with: a full snapshot, as a container engine's checkpoint with export makes it.

All memory of all processes (where the process backend can capture memory at all), and a tar of all files, taken while
the processes stand still and written to the disk. Back: unpack the tar, restore the processes. It goes through the
same backends as Planarian's own snapshot, so that only the method differs. Removing the old files isn't counted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from benchmarks.timing import Stopwatch
from planarian_core.interfaces import RestoresTree, RunningSandbox, TreeHost
from planarian_core.model import Artefact, LiveSandbox, SandboxRecord
from planarian_core.runtime import Planarian
from planarian_core.sandbox import Sandbox

_SECONDS = 1800


class FullSnapshot:
    """Full snapshots of one sandbox, each replacing the one before."""

    def __init__(self, planarian: Planarian, sandbox: Sandbox, folder: Path) -> None:
        self._planarian = planarian
        self._sandbox = sandbox
        self._folder = folder
        self._process = planarian.plugins.process(sandbox.record.process)
        self._artefact: Artefact | None = None
        self.memory = self._process.capabilities.memory
        self.words = "all memory + tar of all files" if self.memory else "tar of all files"

    def capture(self, stopwatch: Stopwatch) -> None:
        """Take one."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        record = self._sandbox.record
        with stopwatch:
            if self.memory:
                images = self._folder / "images"
                images.mkdir(mode=0o700)
                with self._process.instant(self._running(record), images) as instant:
                    self._pack(record)
                self._artefact = instant.artefact
            else:
                self._pack(record)

    def restore(self, stopwatch: Stopwatch) -> None:
        """Bring the sandbox back to the last one."""
        record = self._sandbox.record
        sandbox = self._planarian.plugins.sandbox(record.spec.backend)
        layer = Path(record.spec.layer)
        with stopwatch:
            sandbox.stop(record.spec, record.live)
        entries = [str(path) for path in layer.iterdir()]
        subprocess.run(["rm", "-rf", "--", *entries], check=True, timeout=_SECONDS)
        with stopwatch:
            _tar("--extract", "--same-permissions", "--directory", str(layer), file=self._archive)
            live = self._start(record)
        self._planarian.registry.update_sandbox(replace(record, live=live))

    def _start(self, record: SandboxRecord) -> LiveSandbox:
        sandbox = self._planarian.plugins.sandbox(record.spec.backend)
        if not self.memory:
            return sandbox.start(record.spec)
        assert isinstance(self._process, RestoresTree)
        assert isinstance(sandbox, TreeHost)
        assert self._artefact is not None
        environment = sandbox.restore_environment(record.spec)
        return sandbox.adopt(record.spec, self._process.restore(self._artefact, self._folder / "images", environment))

    @property
    def _archive(self) -> Path:
        return self._folder / "files.tar"

    def _running(self, record: SandboxRecord) -> RunningSandbox:
        spec, live = record.spec, record.live
        assert live is not None
        sandbox = self._planarian.plugins.sandbox(spec.backend)
        return RunningSandbox.of(sandbox, spec, live)

    def _pack(self, record: SandboxRecord) -> None:
        excluded = [f"--exclude=./{pattern.lstrip('/')}" for pattern in record.spec.exclude]
        _tar("--create", *excluded, "--directory", record.spec.layer, ".", file=self._archive)
        with self._archive.open("rb") as archive:
            os.fsync(archive.fileno())


def _tar(*arguments: str, file: Path) -> None:
    command = ["tar", "--file", str(file), "--xattrs", "--xattrs-include=*", "--numeric-owner", "--sparse", *arguments]
    subprocess.run(command, check=True, timeout=_SECONDS, stderr=subprocess.PIPE)
