"""The life cycle of sandboxes: which backends, where the files are, creation, dispatch of commands, removal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from planarian_core import lineage
from planarian_core.config import Config
from planarian_core.errors import BackendUnavailable, ConfigurationError, LineageError, SandboxError
from planarian_core.faults import reach
from planarian_core.hookspecs import BackendKind
from planarian_core.interfaces import Layer, OutputSink, PlacesLayers, RequestHandler, WritesBack
from planarian_core.locks import Held, SandboxLock
from planarian_core.model import (
    Branch,
    Command,
    CommandResult,
    Domain,
    Gap,
    Limits,
    Network,
    SandboxRecord,
    SandboxSpec,
    new_id,
    utc_now,
)
from planarian_core.plugin_manager import PluginManager
from planarian_core.policy import check_policy
from planarian_core.registry import Operation, Registry, check_free
from planarian_core.revival import start
from planarian_core.workspace_copy import copy_workspace, remove_copy
from planarian_core.workspaces import checked_root, checked_workspace, workspace_in

_DESCRIBE_SECONDS = 5.0


@dataclass(frozen=True)
class SandboxRequest:
    """What a caller wants of a new sandbox; empty backend names mean the best one that this host allows."""

    workspace: Path
    name: str = ""
    sandbox: str = ""
    filesystem: str = ""
    process: str = ""
    network: str = ""
    limits: Limits = field(default_factory=Limits)
    hidden: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    policy: str = ""
    root: Path | None = None


def layer_of(spec: SandboxSpec) -> Layer:
    return Layer(Path(spec.layer), spec.exclude)


class SandboxManager:
    """Creates, finds, dispatches to and ends the sandboxes of one home."""

    def __init__(self, home: Path, registry: Registry, plugins: PluginManager, config: Config) -> None:
        self.home = home
        self.registry = registry
        self.plugins = plugins
        self.config = config

    def lock(self, sandbox_id: str) -> SandboxLock:
        return SandboxLock(self.home / "locks", sandbox_id)

    def hold(self, sandbox_id: str, *, exclusive: bool) -> Held:
        """The sandbox's lock, waited for as long as the configuration says; ``sandbox-busy`` after that."""
        return self.lock(sandbox_id).acquire(exclusive=exclusive, timeout=self.config.lock_timeout)

    def folder(self, sandbox_id: str) -> Path:
        """Where a sandbox keeps what is its own on the host side."""
        return self.home / "sandboxes" / sandbox_id

    # --- finding ---

    def find(self, reference: str) -> SandboxRecord:
        """A sandbox by id, name, or a unique beginning of its id.

        Raises:
            LineageError: ``sandbox-unknown`` or ``sandbox-ambiguous``.
        """
        records = self.registry.sandboxes()
        for record in records:
            if record.id == reference:
                return record
        prefix = reference if reference.startswith("sb-") else f"sb-{reference}"
        found = [r for r in records if r.name and r.name == reference]
        found = found or [r for r in records if len(reference) >= 2 and r.id.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(r.id for r in found[:8])
            raise LineageError(
                f"{reference!r} is ambiguous: {ids}", code="sandbox-ambiguous", remedy="give more of the id"
            )
        raise LineageError(
            f"no sandbox is called {reference!r}", code="sandbox-unknown", remedy="planarian list shows what there is"
        )

    def only(self) -> SandboxRecord:
        """The one open sandbox of this home, for commands that name none."""
        records = [r for r in self.registry.sandboxes() if not r.closed]
        if len(records) == 1:
            return records[0]
        if not records:
            raise LineageError("there is no sandbox yet", code="sandbox-unknown", remedy="planarian new")
        names = ", ".join(r.name or r.id for r in records[-8:])
        raise LineageError(
            f"there are {len(records)} sandboxes: {names}",
            code="sandbox-ambiguous",
            remedy="say which: --sandbox ID, or set PLANARIAN_SANDBOX",
        )

    # --- creating ---

    def create(self, request: SandboxRequest) -> SandboxRecord:
        """Make a sandbox and start it.

        Raises:
            ConfigurationError: the workspace can't be one, or a name is taken or unknown.
            BackendUnavailable: a backend asked for by name doesn't work here.
            SandboxError: it did not start; nothing remains of it.
        """
        root = checked_root(request.root, self.home) if request.root is not None else None
        if root is None:
            workspace = checked_workspace(request.workspace, self.home)
        else:
            workspace = workspace_in(root, str(request.workspace))
        self.check_name(request.name)
        if request.policy:
            check_policy(request.policy)
        sandbox_id = new_id("sb")
        backend = self.choose("sandbox", request.sandbox or self.config.sandbox)
        sandbox = self.plugins.sandbox(backend)
        if root is not None and not sandbox.capabilities.other_root:
            raise BackendUnavailable(
                f"a {backend} sandbox can't stand on another root than the host's",
                code="root-unsupported",
                remedy="choose one that can (namespace, as root); planarian doctor",
            )
        in_place = sandbox.capabilities.in_place
        filesystem = self.choose_filesystem(request.filesystem or self.config.filesystem, in_place=in_place)
        if in_place:
            self._check_not_shared(workspace)
        spec = SandboxSpec(
            id=sandbox_id,
            workspace=str(workspace),
            layer=str(workspace if in_place else self.place(sandbox_id, filesystem)),
            home=str(self.home),
            backend=backend,
            network=Network(request.network or self.config.network),
            limits=request.limits,
            hidden=(*self.config.hidden, *request.hidden),
            env=dict(request.env),
            origin="" if in_place else str(self.home / "origins" / sandbox_id),
            root=str(root or ""),
        )
        process = self.choose_process(spec, request.process or self.config.process)
        record = SandboxRecord(spec, new_id("br"), filesystem, process, utc_now(), request.name, policy=request.policy)
        with self.lock(sandbox_id).acquire(exclusive=True):
            operation = Operation(new_id("op"), "create", sandbox_id)
            self.registry.add_sandbox(record, Branch(record.branch_id, record.id), operation)
            try:
                reach("create.begun")
                record = self._start_new(record)
                reach("create.started")
            except BaseException:
                self.destroy(record, operation)
                raise
            self.registry.end(operation, record=record)
        return record

    def check_name(self, name: str) -> None:
        """LineageError when the name can't be one, or an open sandbox has it; no name is fine."""
        if not name:
            return
        lineage.check_text(name)
        check_free(name, self.registry.sandboxes())

    def _start_new(self, record: SandboxRecord) -> SandboxRecord:
        spec = record.spec
        sandbox = self.plugins.sandbox(spec.backend)
        self.folder(spec.id).mkdir(mode=0o700, parents=True)
        gaps: tuple[Gap, ...] = ()
        if not sandbox.capabilities.in_place:
            gaps = copy_workspace(Path(f"{spec.root}{spec.workspace}"), Path(spec.origin))
            self.plugins.filesystem(record.filesystem).create(layer_of(spec))
        record = replace(record, spec=sandbox.prepare(spec), gaps=gaps)
        return replace(record, live=start(self.plugins, record), base=sandbox.fingerprint(record.spec))

    def choose(self, kind: BackendKind, wanted: str) -> str:
        """The backend asked for, if it works here; else the preferred one that does."""
        if wanted:
            self.plugins.require(kind, wanted)
            return wanted
        reasons = []
        for name in self.plugins.names(kind):
            found = self.plugins.probe(kind, name)
            if found.available:
                return name
            reasons.append(f"{name}: {found.reason}")
        raise BackendUnavailable(
            f"no {kind} backend works here ({'; '.join(reasons) or 'none is installed'})", remedy="planarian doctor"
        )

    def choose_filesystem(self, wanted: str, *, in_place: bool) -> str:
        """A filesystem backend that works here; for a sandbox that is in place one that can serve the user's own files.

        A configured backend that can't is passed over for such a sandbox.
        """
        if not in_place:
            return self.choose("filesystem", wanted)
        names = [
            name for name in self.plugins.names("filesystem") if self.plugins.filesystem(name).capabilities.in_place
        ]
        if wanted in names:
            return self.choose("filesystem", wanted)
        for name in names:
            if self.plugins.probe("filesystem", name).available:
                return name
        raise BackendUnavailable("no filesystem backend that works in place is there", remedy="planarian doctor")

    def place(self, sandbox_id: str, filesystem: str) -> Path:
        """Where the layer of a new sandbox goes."""
        backend = self.plugins.filesystem(filesystem)
        return backend.place(sandbox_id) if isinstance(backend, PlacesLayers) else self.folder(sandbox_id) / "layer"

    def successor(self, source: SandboxRecord, name: str = "", made_by: str = "") -> SandboxRecord:
        """The record of a new sandbox that is to begin where a statepoint of ``source`` ends; nothing of it exists."""
        sandbox_id = new_id("sb")
        in_place = self.plugins.sandbox(source.spec.backend).capabilities.in_place
        layer = self.folder(sandbox_id) / "workspace" if in_place else self.place(sandbox_id, source.filesystem)
        workspace = str(layer) if in_place else source.spec.workspace
        spec = replace(source.spec, id=sandbox_id, layer=str(layer), workspace=workspace)
        return replace(
            source, spec=spec, branch_id=new_id("br"), created_at=utc_now(), name=name, live=None, closed=False,
            made_by=made_by,
        )  # fmt: skip

    def choose_process(self, spec: SandboxSpec, wanted: str) -> str:
        """A process backend that works here and serves this kind of sandbox."""
        capabilities = self.plugins.sandbox(spec.backend).capabilities
        names = [wanted] if wanted else self.plugins.names("process")
        reasons = []
        for name in names:
            backend = self.plugins.process(name)
            found = backend.serves(spec, capabilities)
            if found.available:
                found = self.plugins.probe("process", name)
            if found.available:
                return name
            reasons.append(f"{name}: {found.reason}")
        raise BackendUnavailable(f"no process backend serves here ({'; '.join(reasons)})", remedy="planarian doctor")

    def _check_not_shared(self, workspace: Path) -> None:
        for other in self.registry.sandboxes():
            if other.closed or not self.plugins.sandbox(other.spec.backend).capabilities.in_place:
                continue
            taken = Path(other.spec.layer)
            if workspace == taken or workspace.is_relative_to(taken) or taken.is_relative_to(workspace):
                raise ConfigurationError(
                    f"{other.name or other.id} works in place in {taken}: two would undo each other's changes",
                    code="workspace-shared",
                    remedy=f"use that one, or remove it: planarian rm {other.id}",
                )

    # --- using ---

    def running(self, record: SandboxRecord) -> bool:
        """Whether the sandbox can run commands now."""
        return record.live is not None and self.plugins.sandbox(record.spec.backend).alive(record.spec, record.live)

    def check_running(self, record: SandboxRecord) -> None:
        """SandboxError, saying how it comes back to life, unless the sandbox runs."""
        if record.closed:
            raise SandboxError(f"{record.id} was closed", code="sandbox-closed", remedy=f"planarian attach {record.id}")
        if self.running(record):
            return
        pending = self.registry.operations(record.id)
        if pending:
            raise SandboxError(
                f"{record.id} is in the middle of a {pending[0].kind} that was cut off",
                code="sandbox-unfinished",
                remedy="planarian recover",
            )
        raise SandboxError(
            f"{record.id} doesn't run any more: its init is gone",
            code="sandbox-dead",
            state="its files are as they were left",
            remedy=f"planarian attach {record.id}",
        )

    def execute(
        self,
        record: SandboxRecord,
        command: Command,
        sink: OutputSink | None = None,
        requests: RequestHandler | None = None,
    ) -> CommandResult:
        """Run a command in a sandbox whose lock the caller holds."""
        self.check_running(record)
        assert record.live is not None
        result = self.plugins.sandbox(record.spec.backend).execute(record.spec, record.live, command, sink, requests)
        filesystem = self.plugins.filesystem(record.filesystem)
        if isinstance(filesystem, WritesBack):
            filesystem.write_back(layer_of(record.spec))
        return result

    def describe(self, record: SandboxRecord) -> tuple[list[Mapping[str, str]], list[Gap]]:
        """What plugins have to say of the state now; a plugin that fails becomes a gap."""
        if not self.running(record):
            return [], []

        def run(argv: Sequence[str]) -> CommandResult:
            return self.execute(record, Command(tuple(argv), timeout=_DESCRIBE_SECONDS, output_limit=65536))

        try:
            return list(self.plugins.hook.planarian_describe_state(sandbox=record, run=run)), []
        except Exception as error:  # a plugin is foreign code; a description isn't worth a snapshot
            return [], [Gap(Domain.FILES, "description", f"{type(error).__name__}: {error}")]

    def standing_gaps(self, record: SandboxRecord) -> list[Gap]:
        """What no statepoint of this sandbox captures."""
        gaps = [*self.registry.fences(record.id), *record.gaps]
        if self.plugins.sandbox(record.spec.backend).capabilities.in_place:
            reason = "a directory sandbox captures its workspace only"
            gaps.append(Gap(Domain.FILES, "files outside the workspace", reason))
        return gaps

    # --- ending ---

    def stop(self, record: SandboxRecord) -> SandboxRecord:
        """End all processes; files and statepoints stay, a rollback brings it back. The caller holds the lock."""
        self.plugins.sandbox(record.spec.backend).stop(record.spec, record.live)
        record = replace(record, live=None, closed=True)
        self.registry.update_sandbox(record)
        return record

    def destroy(self, record: SandboxRecord, operation: Operation | None = None) -> None:
        """Remove a sandbox and its files (never a workspace that is the user's own). Idempotent.

        The registry forgets it last: a crash before leaves it known, and the removal can be repeated.
        """
        self.clear(record)
        origin = record.spec.origin
        if origin and not any(r.spec.origin == origin for r in self.registry.sandboxes() if r.id != record.id):
            remove_copy(Path(origin))
        self.registry.forget_sandbox(record.id, operation)
        self.lock(record.id).remove()
        for left in (self.home / "locks").glob(f"{record.id}.*.*"):  # of calls of remote services
            left.unlink(missing_ok=True)

    def clear(self, record: SandboxRecord) -> None:
        """End what runs of a sandbox and remove its layer and folder. Idempotent."""
        self.plugins.sandbox(record.spec.backend).stop(record.spec, record.live)
        filesystem = self.plugins.filesystem(record.filesystem)
        if self.owns_layer(record):
            filesystem.destroy(layer_of(record.spec))
        else:
            filesystem.forget(layer_of(record.spec))
        shutil.rmtree(self.folder(record.id), ignore_errors=True)
        made = Path(record.spec.layer).parent  # a layer that was taken over lies where its copy was made
        if made.parent == self.folder(record.id).parent and not self.registry.known({"sandboxes": [made.name]}):
            with suppress(OSError):
                os.rmdir(made)

    def owns_layer(self, record: SandboxRecord) -> bool:
        """Whether the layer was made for the sandbox, and isn't a workspace that is the user's own."""
        in_place = self.plugins.sandbox(record.spec.backend).capabilities.in_place
        return not in_place or Path(record.spec.layer).is_relative_to(self.home)
