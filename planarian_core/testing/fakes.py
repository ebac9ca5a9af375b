"""Fakes of the outside world, for tests of runtimes and adapters: backends in plain Python and a remote service.

The file and process fakes do real work in the simplest way (a full copy; real subprocesses), so that a test of the
core sees real files. :class:`FakeService` is a key-value store with an undo log, as a remote MCP service would be.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import CompensationConflict, CompensationError, RestoreError
from planarian_core.hookspecs import BackendFactory, hookimpl
from planarian_core.interfaces import (
    Availability,
    FilesystemCapabilities,
    Instant,
    Layer,
    OutputSink,
    ProcessCapabilities,
    RequestHandler,
    RunningSandbox,
    SandboxCapabilities,
)
from planarian_core.model import (
    Artefact,
    Command,
    CommandResult,
    Domain,
    Gap,
    LiveSandbox,
    RemoteEffect,
    RemotePosition,
    SandboxRecord,
    SandboxSpec,
)


class _StagedCopy:
    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        before, after = _contents(target), _contents(source)
        differing = sorted(name for name in before.keys() | after.keys() if before.get(name, "") != after.get(name, ""))
        self.changed = tuple(differing[:1000])
        self.changed_count = len(differing)

    def switch(self) -> None:
        shutil.rmtree(self._target, ignore_errors=True)
        shutil.copytree(self._source, self._target, symlinks=True)

    def discard(self) -> None:
        return


def _contents(folder: Path) -> dict[str, bytes | None]:
    """What lies below a folder, by relative path: the bytes of files, None for anything else."""
    found = {}
    for path in folder.rglob("*"):
        found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    return found


class FakeFilesystem:
    """Full copies of a directory tree."""

    name = "fake"
    capabilities = FilesystemCapabilities(in_place=False, constant_time=False, rootless=True)

    def __init__(self, home: Path) -> None:
        self._store = home / "fake-files"

    def probe(self) -> Availability:
        return Availability(True)

    def create(self, layer: Layer) -> None:
        layer.path.mkdir()

    def capture(self, layer: Layer, statepoint_id: str) -> Artefact:
        shutil.copytree(layer.path, self._store / statepoint_id, symlinks=True)
        size = sum(len(content or b"") for content in _contents(self._store / statepoint_id).values())
        return Artefact(Domain.FILES, self.name, statepoint_id, stored=size, logical=size)

    def verify(self, artefact: Artefact) -> None:
        if not (self._store / artefact.reference).is_dir():
            raise RestoreError(f"the files of {artefact.reference} are gone", code="artefact-missing")

    def stage(self, artefact: Artefact, layer: Layer) -> _StagedCopy:
        self.verify(artefact)
        return _StagedCopy(self._store / artefact.reference, layer.path)

    def open_tree(self, artefact: Artefact) -> DirectoryTree:
        self.verify(artefact)
        return DirectoryTree(self._store / artefact.reference)

    def discard(self, statepoint_id: str) -> None:
        shutil.rmtree(self._store / statepoint_id, ignore_errors=True)

    def destroy(self, layer: Layer) -> None:
        shutil.rmtree(layer.path, ignore_errors=True)

    def forget(self, layer: Layer) -> None:
        return


class FakeSandbox:
    """Runs commands as plain subprocesses in the layer; nothing survives a call, nothing is confined."""

    name = "fake"
    capabilities = SandboxCapabilities(isolated=False, process_tree=False, in_place=False)

    def __init__(self, home: Path) -> None:
        self._home = home

    def _mark(self, spec: SandboxSpec) -> Path:
        return self._home / "sandboxes" / spec.id / "running"

    def probe(self) -> Availability:
        return Availability(True)

    def prepare(self, spec: SandboxSpec) -> SandboxSpec:
        return spec

    def start(self, spec: SandboxSpec) -> LiveSandbox:
        self._mark(spec).touch()
        return LiveSandbox(0, 0, "fake")

    def execute(
        self,
        spec: SandboxSpec,
        live: LiveSandbox,
        command: Command,
        sink: OutputSink | None = None,
        requests: RequestHandler | None = None,
    ) -> CommandResult:
        started = time.perf_counter()
        done = subprocess.run(
            command.argv, cwd=spec.layer, env=dict(command.env) or None, input=command.stdin, capture_output=True,
            timeout=command.timeout, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        if sink is not None:
            for stream, data in (("stdout", done.stdout), ("stderr", done.stderr)):
                sink(stream, data)
        return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode(), seconds)

    def tasks(self, spec: SandboxSpec, live: LiveSandbox) -> tuple[int, ...]:
        return ()

    def stop(self, spec: SandboxSpec, live: LiveSandbox | None) -> None:
        self._mark(spec).unlink(missing_ok=True)

    def alive(self, spec: SandboxSpec, live: LiveSandbox) -> bool:
        return self._mark(spec).exists()

    def fingerprint(self, spec: SandboxSpec) -> str:
        return "fake"


class FakeProcess:
    """An instant in which nothing needs to be stopped."""

    name = "fake"
    capabilities = ProcessCapabilities(memory=False, restarts=False)

    def __init__(self, home: Path) -> None:
        self._home = home

    def probe(self) -> Availability:
        return Availability(True)

    def serves(self, spec: SandboxSpec, sandbox: SandboxCapabilities) -> Availability:
        return Availability(True)

    @contextmanager
    def instant(self, sandbox: RunningSandbox, images: Path) -> Iterator[Instant]:
        yield Instant()

    def verify(self, artefact: Artefact, images: Path) -> None:
        return

    def discard(self, images: Path) -> None:
        return


@dataclass(frozen=True)
class _Call:
    number: int
    key: str
    before: str | None
    after: str | None
    pivot: bool = False
    parent: int = 0
    undone: bool = False


@dataclass
class FakeService:
    """A remote key-value store with an undo log. ``rows`` is the remote state, ``calls`` the log.

    ``fail_at`` makes the compensation of that call number raise once, as a lost connection would.
    """

    name: str = "fake-service"
    endpoint: str = "fake://service"
    forkable: bool = False
    rows: dict[str, str] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    fail_at: int | None = None

    def put(self, key: str, value: str | None, *, pivot: bool = False) -> None:
        """What the agent does through its MCP tool: set a row, or delete it with None."""
        self.calls.append(_Call(len(self.calls) + 1, key, self.rows.get(key), value, pivot, self._position()))
        self._write(key, value)

    def _position(self) -> int:
        return max((call.number for call in self.calls if not call.undone), default=0)

    def _write(self, key: str, value: str | None) -> None:
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value

    def settle(self, sandbox_id: str) -> None:
        return

    def capture(self, sandbox_id: str) -> RemotePosition:
        return RemotePosition(self.name, self.endpoint, str(self._position()), hook="fake")

    def origin(self, sandbox_id: str) -> RemotePosition | None:
        return None

    def _way(self, position: RemotePosition) -> tuple[list[_Call], list[_Call]]:
        wanted, step = set(), int(position.position)
        while step:
            wanted.add(step)
            step = self.calls[step - 1].parent
        undo = [call for call in reversed(self.calls) if not call.undone and call.number not in wanted]
        return undo, [call for call in self.calls if call.undone and call.number in wanted]

    def plan(self, position: RemotePosition, sandbox_id: str) -> tuple[RemoteEffect, ...]:
        undo, redo = self._way(position)
        return (*(self._effect(call) for call in undo), *(self._effect(call, redo=True) for call in redo))

    def _effect(self, call: _Call, *, redo: bool = False) -> RemoteEffect:
        summary = f"{call.key}: {call.before} -> {call.after}"
        return RemoteEffect(self.name, str(call.number), summary, call.pivot, redo)

    def rehearse(self, position: RemotePosition, sandbox_id: str) -> None:
        undo, _ = self._way(position)
        rows = dict(self.rows)
        for call in undo:
            if not call.pivot:
                if rows.get(call.key) != call.after:
                    raise CompensationConflict(f"{call.key} was changed by somebody else")
                rows[call.key] = call.before or ""

    def compensate(self, position: RemotePosition, sandbox_id: str) -> tuple[RemoteEffect, ...]:
        undo, redo = self._way(position)
        done = []
        for call, expected, value, undone in (
            *((c, c.after, c.before, True) for c in undo if not c.pivot),
            *((c, c.before, c.after, False) for c in redo),
        ):
            if call.number == self.fail_at:
                self.fail_at = None
                raise CompensationError("the connection was lost", code="service-unreachable")
            if self.rows.get(call.key) != expected:
                raise CompensationConflict(f"{call.key} was changed by somebody else")
            self._write(call.key, value)
            self.calls[call.number - 1] = replace(call, undone=undone)
            done.append(self._effect(call, redo=not undone))
        return tuple(done)

    def forget(self, sandbox_id: str) -> None:
        return

    def fence(self, sandbox_id: str, source_id: str, position: RemotePosition) -> Gap | None:
        return None if self.forkable else Gap(Domain.REMOTE, self.name, "the service can't branch: fenced off here")


class FakePlugin:
    """Offers the fake backends (rank below every real one) and the services given."""

    def __init__(self, services: Sequence[FakeService] = ()) -> None:
        self.services = list(services)

    @hookimpl
    def planarian_backends(self) -> Sequence[BackendFactory]:
        return [
            BackendFactory("filesystem", "fake", FakeFilesystem, rank=-10),
            BackendFactory("sandbox", "fake", FakeSandbox, rank=-10),
            BackendFactory("process", "fake", FakeProcess, rank=-10),
        ]

    @hookimpl
    def planarian_services(self, sandbox: SandboxRecord) -> Sequence[FakeService]:
        return self.services
