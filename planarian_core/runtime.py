"""The runtime: the facade that users, adapters and the command line call.

::

    with Planarian.open() as planarian:
        sandbox = planarian.create_sandbox(workspace="repo")
        sandbox.run("pip install -r requirements.txt")
        point = planarian.snapshot(sandbox, name="deps")
        sandbox.run("rm -rf src")
        context = planarian.rollback(sandbox, point)
        branch = planarian.fork(point)

Daemonless: any number of processes may open one home. Every method is safe to call from any thread; ``asyncio`` code
calls them through a thread (``anyio.to_thread.run_sync``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from planarian_core import agent_requests, attach, context, reclaim
from planarian_core.applied_changes import AppliedChanges, ApplyRequest, Undone
from planarian_core.apply import Applier
from planarian_core.apply_undo import LAST, Undoer
from planarian_core.capture import SnapshotRequest
from planarian_core.config import Config, default_home, load
from planarian_core.context import Ledger
from planarian_core.diff import Diff, Side, diff
from planarian_core.errors import ConfigurationError, LineageError, PlanarianError, RestoreError
from planarian_core.faults import reach
from planarian_core.interfaces import Collects, OutputSink
from planarian_core.model import (
    Command,
    CommandResult,
    Drill,
    Hold,
    Limits,
    Outcome,
    RestoreContext,
    RollbackPreview,
    SandboxRecord,
    Statepoint,
    new_id,
)
from planarian_core.plugin_manager import PluginManager
from planarian_core.policy import CallCounter, Verdict, check_policy, verdict
from planarian_core.promote import Promotion, PromotionPreview, source_of
from planarian_core.prune_choice import PrunePolicy
from planarian_core.reclaim import Pruned, Reclaimer
from planarian_core.recovery import Recovered, Recovery
from planarian_core.references import References
from planarian_core.registry import Operation, Registry
from planarian_core.restore_paths import RestoredPaths, restore_paths
from planarian_core.sandbox import Sandbox, StatepointRef
from planarian_core.sandbox_manager import SandboxManager, SandboxRequest
from planarian_core.standby import StandbyManager
from planarian_core.statepoint_manager import StatepointManager
from planarian_core.warming import Warmer

_PRUNED_AT_ONCE = 10
"""By configuration: collecting what is left costs about the same for one statepoint as for many."""

if TYPE_CHECKING:
    from planarian_core.bundle_reading import Imported
    from planarian_core.bundle_writing import Exported


class Planarian:
    """One home: its sandboxes, statepoints and evidence. Make one with :meth:`open`."""

    def __init__(self, home: Path, config: Config, plugins: PluginManager, registry: Registry) -> None:
        self.home = home
        self.config = config
        self.plugins = plugins
        self.registry = registry
        self.sandboxes = SandboxManager(home, registry, plugins, config)
        self.standbys = StandbyManager(home, registry, plugins, self.sandboxes)
        self.statepoints = StatepointManager(home, registry, plugins, self.sandboxes, self.standbys)
        self.warmer = Warmer(registry, self.sandboxes, self.standbys)
        self.references = References(registry)
        self._workers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="planarian")
        self.calls = CallCounter(home)
        self._left: dict[str, int] = {}
        self.recovered: list[Recovered] = []

    @classmethod
    def open(cls, home: str | Path | None = None, *, plugins: Sequence[object] = (), recover: bool = True) -> Planarian:
        """Open a home, made if need be, and finish what a killed runtime left in it.

        Args:
            home: ``PLANARIAN_HOME`` or the user's data directory if None.
            plugins: plugin objects beside the installed ones.
            recover: False leaves unfinished operations to ``planarian recover``.

        Raises:
            ConfigurationError: the home can't be made, or its configuration is wrong.
            RegistryCorrupt: the registry can't be read or written.
        """
        path = Path(home).expanduser().absolute() if home is not None else default_home()
        try:
            for folder in (path, path / "locks", path / "sandboxes", path / "statepoints", path / "cache"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A looser mode would let other users read what sandboxes hold, and let them in by a setuid file.
            if path.stat().st_mode & 0o077:
                path.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(
                f"the home {path} can't be used: {error.strerror or error}",
                code="home-unusable",
                remedy="make it writable, or set PLANARIAN_HOME to a directory that is",
            ) from error
        planarian = cls(path, load(path), PluginManager(path, tuple(plugins)), Registry(path / "registry.sqlite"))
        if recover:
            planarian.recovered = planarian.recover()
        return planarian

    def close(self) -> None:
        """Wait for background snapshots, drop warm copies and let go of the home. Sandboxes go on running."""
        self._workers.shutdown(wait=True)
        self.warmer.close()
        self.standbys.close()
        self.registry.close()

    def __enter__(self) -> Planarian:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- sandboxes ---

    def create_sandbox(
        self,
        workspace: str | Path,
        *,
        name: str = "",
        sandbox: str = "",
        filesystem: str = "",
        process: str = "",
        network: str = "",
        limits: Limits | None = None,
        hidden: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        policy: str = "",
    ) -> Sandbox:
        """Make and start a sandbox on a host directory; backends not named are the best that this host allows.

        Args:
            policy: when adapters take statepoints of it by themselves; the home's policy if empty.

        Raises:
            ConfigurationError, BackendUnavailable, SandboxError: nothing remains of it.
        """
        request = SandboxRequest(
            Path(workspace),
            name,
            sandbox,
            filesystem,
            process,
            network,
            limits or Limits(),
            tuple(hidden),
            dict(env or {}),
            policy,
        )
        return Sandbox(self, self.sandboxes.create(request).id)

    def sandbox(self, reference: str = "") -> Sandbox:
        """A sandbox by id, unique beginning of it, or name; the only one there is if empty."""
        record = self.sandboxes.find(reference) if reference else self.sandboxes.only()
        return Sandbox(self, record.id)

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        """End a sandbox and delete its files and statepoints. A ``directory`` sandbox's workspace stays as it is."""
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            record = sandbox.record
            own = {statepoint.id for statepoint in self.registry.statepoints(record.id)}
            forks = [r.id for r in self.registry.sandboxes() if self.registry.branch(r.id).forked_from in own]
            if forks:
                raise LineageError(
                    f"{sandbox.id} can't be removed: {', '.join(forks)} grew from its statepoints",
                    code="sandbox-needed",
                    state="nothing was changed",
                    remedy=f"remove the forks first: planarian rm {' '.join(forks)}; or only stop it: planarian stop",
                )
            self.warmer.forget(own)
            operation = self.registry.begin(Operation(new_id("op"), "remove", record.id))
            reach("remove.begun")
            self.statepoints.remove(record, operation)
        filesystem = self.plugins.filesystem(record.filesystem)
        if isinstance(filesystem, Collects):
            filesystem.collect()

    def dispatch(self, sandbox: Sandbox, command: Command, sink: OutputSink | None = None) -> CommandResult:
        """Run a command under the sandbox's shared lock, and serve requests that come from inside meanwhile."""
        with self.sandboxes.hold(sandbox.id, exclusive=False) as held:
            server = agent_requests.RequestServer(self, sandbox, held)
            result = self.sandboxes.execute(sandbox.record, command, sink, server.handle)
            self.calls.add(sandbox.id)
        return server.after(result, sink)

    # --- the primitives ---

    @overload
    def snapshot(
        self,
        sandbox: Sandbox,
        *,
        name: str = ...,
        description: str = ...,
        automatic: bool = ...,
        files_only: bool = ...,
    ) -> Statepoint: ...

    @overload
    def snapshot(
        self,
        sandbox: Sandbox,
        *,
        name: str = ...,
        description: str = ...,
        automatic: bool = ...,
        files_only: bool = ...,
        wait: Literal[False],
    ) -> Future[Statepoint]: ...

    def snapshot(
        self,
        sandbox: Sandbox,
        *,
        name: str = "",
        description: str = "",
        automatic: bool = False,
        files_only: bool = False,
        wait: bool = True,
    ) -> Statepoint | Future[Statepoint]:
        """Record a statepoint (paper, section 3.2).

        Args:
            automatic: taken by a policy, not asked for; where processes can't be captured it is of the files alone,
                and says so.
            files_only: leave the processes out.
            wait: False returns as soon as the lock is held; the capture overlaps what the caller does next, and the
                next tool call waits for it. The future raises what the capture raises.

        Raises:
            CaptureError: nothing was committed; the sandbox runs on.
        """
        request = SnapshotRequest(name, description, automatic, files_only="by request" if files_only else "")
        held = self.sandboxes.hold(sandbox.id, exclusive=True)

        def work() -> Statepoint:
            with held:
                record = sandbox.record
                self.sandboxes.check_running(record)
                taken = self.take(record, request)
            self._prune_by_config(sandbox)
            return taken

        return work() if wait else self._workers.submit(work)

    def take(self, record: SandboxRecord, request: SnapshotRequest, *, anyway: bool = False) -> Statepoint:
        """Take a statepoint of a sandbox whose exclusive lock the caller holds; calls are counted from here anew.

        One that nobody asked for (``anyway``, or automatic) is of the files alone where processes can't be captured.
        """
        anyway = anyway or request.automatic
        snapshot = self.statepoints.snapshot_anyway if anyway else self.statepoints.snapshot
        statepoint = snapshot(record, request)
        self._moved(record.id)
        return statepoint

    def _moved(self, sandbox_id: str) -> None:
        """A statepoint of a sandbox was taken, or it was brought to one: what follows that begins anew."""
        self.calls.reset(sandbox_id)
        self.warmer.look(sandbox_id)

    def rollback(
        self,
        sandbox: Sandbox,
        to: StatepointRef,
        *,
        safety: bool = True,
        files_only: bool = False,
        accept_pivots: bool = False,
    ) -> RestoreContext:
        """Return to a statepoint of this sandbox, remote effects included (paper, section 3.2).

        Args:
            safety: take a statepoint of the present state first, so that the rollback can be undone.
            files_only: let processes start anew instead of bringing their memory back.
            accept_pivots: go back past remote effects that can't be undone.

        Raises:
            LineageError, RestoreError, CompensationError: the error's ``state`` says where the sandbox is now.
        """
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            record = sandbox.record
            statepoint = self.resolve(sandbox, to)
            restored = self.statepoints.rollback(
                record, statepoint, safety=safety, files_only=files_only, accept_pivots=accept_pivots
            )
            self._moved(record.id)
            return restored

    def preview_rollback(self, sandbox: Sandbox, to: StatepointRef) -> RollbackPreview:
        """What :meth:`rollback` would do now."""
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            return self.statepoints.preview(sandbox.record, self.resolve(sandbox, to))

    def fork(
        self, statepoint: StatepointRef, *, of: Sandbox | None = None, name: str = "", files_only: bool = False
    ) -> Sandbox:
        """Make an independent sandbox from a statepoint; the source isn't touched (paper, section 3.2).

        Args:
            statepoint: a Statepoint, or a reference; then ``of`` says whose.
            files_only: let processes start anew instead of bringing their memory back.
        """
        return self.fork_with_context(statepoint, of=of, name=name, files_only=files_only)[0]

    def fork_with_context(
        self, statepoint: StatepointRef, *, of: Sandbox | None = None, name: str = "", files_only: bool = False
    ) -> tuple[Sandbox, RestoreContext]:
        """:meth:`fork`, and the restore context for the agent that goes on in the fork."""
        source = of or self._owner(statepoint)
        with self.sandboxes.hold(source.id, exclusive=False):
            point = self.resolve(source, statepoint)
            record, restored = self.statepoints.fork(source.record, point, name, files_only=files_only)
        self.warmer.look(source.id)
        return Sandbox(self, record.id), restored

    # --- bundles ---

    def export(self, statepoint: StatepointRef, file: str | Path, *, of: Sandbox | None = None) -> Path:
        """Write a statepoint with its artefacts, evidence and lineage into one new file (``docs/bundles.md``).

        Raises:
            BundleError, LineageError, RestoreError: nothing was written.
        """
        return self.export_with_report(statepoint, file, of=of).file

    def export_with_report(
        self,
        statepoint: StatepointRef,
        file: str | Path,
        *,
        of: Sandbox | None = None,
        force: bool = False,
        key_file: Path | None = None,
        progress: Callable[[int], None] = lambda size: None,
        begin: Callable[[int], None] = lambda size: None,
    ) -> Exported:
        """:meth:`export`, and what was written.

        Args:
            force: replace a file that is there.
            key_file: the key to seal it with, instead of the home's.
            progress: told of bytes that were read; ``begin`` before them how many there are.
        """
        from planarian_core import __version__
        from planarian_core.bundle_key import make_key
        from planarian_core.bundle_writing import Exporter

        point = self.resolve(of or self._owner(statepoint), statepoint)
        exporter = Exporter(self.home, self.registry, self.plugins, __version__)
        key = make_key(self.home, key_file)
        path = Path(file).expanduser().absolute()
        return exporter.export(point, path, key, force=force, progress=progress, begin=begin)

    def import_(self, file: str | Path, *, name: str = "", trust_images: bool = False) -> Sandbox:
        """Make a stopped sandbox whose head is a bundle's statepoint; a rollback to it brings it to life.

        Args:
            name: the bundle's own, where nobody has it, if empty.
            trust_images: vouch for who made it, if this home didn't: take its processes, and what else would let it
                do more here than files can.

        Raises:
            BundleError: damaged, hostile, known already, or not to be restored on this host. Nothing was imported.
        """
        return Sandbox(self, self.import_with_report(file, name=name, trust_images=trust_images).record.id)

    def import_with_report(
        self,
        file: str | Path,
        *,
        check: bool = False,
        name: str = "",
        filesystem: str = "",
        files_only: bool = False,
        again: bool = False,
        trust_images: bool = False,
        key_file: Path | None = None,
        progress: Callable[[int], None] = lambda size: None,
    ) -> Imported:
        """:meth:`import_`, and what came along.

        Args:
            check: only find out; nothing is written.
            filesystem: the file backend; the best one that this host allows if empty.
            files_only: leave the processes out.
            again: give everything in it fresh ids, as where it was imported before.
            key_file: the key to know it by, instead of the home's.
        """
        from planarian_core.bundle_fitting import ImportRequest
        from planarian_core.bundle_reading import Importer

        request = ImportRequest(name, filesystem, trust_images, files_only, again, key_file)
        importer = Importer(self.sandboxes, self.config)
        path = Path(file).expanduser().absolute()
        return importer.check(path, request, progress) if check else importer.run(path, request, progress)

    def recover(self, *, files_only: bool = False) -> list[Recovered]:
        """Finish what killed runtimes left behind; what another process is doing right now is left alone.

        Args:
            files_only: where processes can't be brought back, let them start anew.
        """
        self.standbys.sweep()
        return Recovery(self.registry, self.sandboxes, self.statepoints, files_only=files_only).run()

    # --- hot standby ---

    def keep_warm(
        self, statepoint: StatepointRef, copies: int = 1, *, of: Sandbox | None = None, wait: bool = False
    ) -> None:
        """Keep restored copies of a statepoint ready, whatever the policy ``standby`` says, for rollbacks and forks.

        Args:
            copies: how many; 0 leaves the statepoint to the policy again.
            wait: until they are there, or can't be made (memory, or see :meth:`drill`).
        """
        source = of or self._owner(statepoint)
        self.warmer.keep(self.resolve(source, statepoint), copies)
        if wait:
            self.warmer.settle()

    def drill(self, statepoint: StatepointRef, *, of: Sandbox | None = None) -> Drill:
        """Restore a statepoint beside everything else, to see that it can be, and drop that copy again.

        Returns what the registry says from now on: one that failed can't be gone back to with its processes.
        """
        source = of or self._owner(statepoint)
        point = self.resolve(source, statepoint)
        record = self.registry.sandbox(point.sandbox_id)
        with suppress(RestoreError):  # the registry's word is the result
            self.standbys.spare(self.standbys.build(record, point))
        drill = self.registry.drills.get(point.id)
        assert drill is not None
        return drill

    # --- verbs ---

    def diff(
        self,
        a: StatepointRef,
        b: StatepointRef | None = None,
        *,
        of: Sandbox | None = None,
        paths: Sequence[str] = (),
        text: bool = True,
    ) -> Diff:
        """What lies between two statepoints, of a sandbox or of it and its forks; see :func:`planarian_core.diff.diff`.

        Args:
            b: None is the sandbox as it is now.
            of: the sandbox that references are of; the owner of ``a`` if None.
        """
        source = of or self._owner(a)
        with self.sandboxes.hold(source.id, exclusive=b is None):
            before = self._side(source, a)
            after = self._side(source, b) if b is not None else Side(source.record)
            return diff(self.plugins, self.statepoints.remote, before, after, paths=paths, text=text)

    def restore_paths(
        self, sandbox: Sandbox, statepoint: StatepointRef, paths: Sequence[str], *, safety: bool = True
    ) -> RestoredPaths:
        """Bring single paths back from a statepoint: files, or directories with all in them; removed where they
        weren't there. The rest of the sandbox, and what runs in it, is not touched.

        Args:
            paths: relative to the workspace, or absolute as the sandbox sees them. Symlinks are not followed.
            safety: take a statepoint of the present state first.

        Raises:
            SandboxError: it doesn't run. ConfigurationError: a path is unknown. RestoreError: ``state`` says what is.
        """
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            point = self.resolve(sandbox, statepoint)
            return restore_paths(self.statepoints, sandbox.record, point, paths, safety=safety)

    def apply(
        self,
        sandbox: Sandbox,
        *,
        paths: Sequence[str] = (),
        preview: bool = False,
        theirs: bool = False,
        skip_conflicts: bool = False,
        with_git_config: bool = False,
    ) -> AppliedChanges:
        """Write what a sandbox changed in its workspace back to the host's; a fork in place: to its source's.

        Three-way: what the host did not change since the sandbox was made (or last applied) is written, what both have
        alike is left, the rest is a conflict. Owners stay those of the host; setuid bits, device nodes, attributes that
        mean something to the kernel, and what git on the host would execute are not written, and named.

        Args:
            paths: only these; relative to the workspace.
            preview: only say what would be done. Takes no statepoint, writes nothing.
            theirs: where there is a conflict, the sandbox's version.
            skip_conflicts: where there is one, the host's; without either a conflict is an error, nothing written.
            with_git_config: hooks, configuration and the like of version control, too.

        Raises:
            ApplyConflict: both sides changed a path. RestoreError: it could not be written; ``state`` says what is.
            ConfigurationError: there is nothing to apply to.
        """
        request = ApplyRequest(tuple(paths), preview, theirs, skip_conflicts, with_git_config)
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            return Applier(self.statepoints).apply(sandbox.record, request)

    def undo_application(self, sandbox: Sandbox, application: str = LAST, *, skip_conflicts: bool = False) -> Undone:
        """Put back what an application replaced on the host; what somebody changed there since is a conflict.

        The handle may be of a sandbox that was removed since (:meth:`sandbox_of_application`).
        """
        undoer = Undoer(self.statepoints)
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            return undoer.undo(undoer.find(sandbox.id, application), skip_conflicts=skip_conflicts)

    def sandbox_of_application(self, application: str) -> Sandbox | None:
        """A handle on whose changes were applied, be it there or not; None for an id that nothing has."""
        found = self.registry.applications.get(application)
        return Sandbox(self, found.sandbox_id) if found is not None else None

    def _side(self, source: Sandbox, reference: StatepointRef) -> Side:
        """A statepoint with the sandbox that it is of; a full id may be another sandbox's."""
        found = reference if isinstance(reference, Statepoint) else None
        if found is None and isinstance(reference, str) and reference.startswith("sp-"):
            with suppress(LineageError):
                found = self.registry.statepoint(reference)
        found = found if found is not None and found.sandbox_id != source.id else self.resolve(source, reference)
        return Side(self.registry.sandbox(found.sandbox_id), found)

    # --- evidence ---

    def resolve(self, sandbox: Sandbox, reference: StatepointRef) -> Statepoint:
        """The committed statepoint that a reference means in a sandbox.

        A fork may go back to the statepoint that it came from.
        """
        return self.references.resolve(sandbox.id, reference.id if isinstance(reference, Statepoint) else reference)

    def _owner(self, reference: StatepointRef) -> Sandbox:
        """The sandbox that a statepoint belongs to; the only one there is for a reference that is no whole id."""
        owner = reference.sandbox_id if isinstance(reference, Statepoint) else self.references.owner(reference)
        return Sandbox(self, owner) if owner else self.sandbox()

    def append_outcome(
        self, statepoint: StatepointRef, text: str, *, status: str = "note", author: str = "", of: Sandbox | None = None
    ) -> Outcome:
        """Add how a run that went on from a statepoint ended: ``note``, ``succeeded`` or ``failed``."""
        if not isinstance(statepoint, Statepoint):
            statepoint = self.resolve(of or self._owner(statepoint), statepoint)
        return context.append_outcome(self.registry, statepoint, text, status, author)

    def ledger(self, sandbox: Sandbox, *, limit: int | None = None, automatic: bool = True) -> Ledger:
        """The evidence to choose a statepoint from, newest first, in at most ``limit`` characters."""
        head = self.registry.branch(sandbox.id).head
        limit = limit or self.config.ledger_characters
        return context.construct_ledger(self.registry, sandbox.id, head, limit, automatic=automatic)

    def hold(self, statepoint: StatepointRef, note: str = "", *, of: Sandbox | None = None) -> Hold:
        """Keep a statepoint from every pruning until it is released.

        Args:
            note: why, for people.
            of: whose statepoint a reference means.
        """
        return reclaim.hold(self.registry, self.resolve(of or self._owner(statepoint), statepoint), note)

    def release(self, statepoint: StatepointRef, *, of: Sandbox | None = None) -> bool:
        """Let a held statepoint go; whether it was held."""
        found = self.resolve(of or self._owner(statepoint), statepoint)
        held = self.registry.holds.get(found.id) is not None
        self.registry.holds.remove(found.id)
        return held

    def prune(
        self, policy: PrunePolicy, sandboxes: Sequence[Sandbox] | None = None, *, dry_run: bool = False
    ) -> Pruned:
        """Give up statepoints and free what they alone hold; their records, evidence and outcomes stay.

        Args:
            sandboxes: whose; all sandboxes of the home if None. Busy ones are passed over, and named.
            dry_run: only say what would go.

        Raises:
            PlanarianError: ``prune-unfinished`` or ``prune-not-freed``: what is pruned stays so, and ``state`` says it.
        """
        records = self.registry.sandboxes() if sandboxes is None else [sandbox.record for sandbox in sandboxes]
        timeout = self.config.lock_timeout
        pruned = Reclaimer(self.statepoints).prune(records, policy, dry_run=dry_run, timeout=timeout)
        if pruned.statepoints and not dry_run:
            self.warmer.forget(pruned.statepoints)
        return pruned

    def _prune_by_config(self, sandbox: Sandbox) -> None:
        """Prune as the configuration says, some at a time; a snapshot never fails for it, nor waits for others."""
        keep = self.config.keep_last
        if keep is None:
            return
        left = max(keep, self._left.get(sandbox.id, 0))
        if self.registry.count(sandbox.id) <= left + max(_PRUNED_AT_ONCE, keep // 10):
            return
        try:
            Reclaimer(self.statepoints).prune([sandbox.record], PrunePolicy(keep_last=keep), timeout=0)
        except (PlanarianError, OSError) as error:
            logging.getLogger(__name__).warning("statepoints of %s could not be pruned: %s", sandbox.id, error)
        else:
            self._left[sandbox.id] = self.registry.count(sandbox.id)

    def promote(
        self, fork: Sandbox, *, force: bool = False, files_only: bool = False, accept_pivots: bool = False
    ) -> RestoreContext:
        """Make the present state of a fork the head of the sandbox that it came from; the fork stays as it is.

        The source's old head stays reachable. Its remote services stay where they are: the fork was fenced off.

        Args:
            force: set aside what the source did since the fork point; a safety statepoint keeps it.
            files_only: leave the fork's processes out.
            accept_pivots: as in :meth:`rollback`.

        Raises:
            LineageError: it is no fork, or its source is gone.
            RestoreError: ``promote-conflict`` names what the source did since; nothing was changed.
        """
        with self._promotion(fork) as promotion:
            restored = promotion.run(force=force, files_only=files_only, accept_pivots=accept_pivots)
            self._moved(restored.sandbox_id)
            self._moved(fork.id)
            return restored

    def preview_promotion(self, fork: Sandbox) -> PromotionPreview:
        """What :meth:`promote` would set aside."""
        with self._promotion(fork) as promotion:
            return promotion.preview()

    @contextmanager
    def _promotion(self, fork: Sandbox) -> Iterator[Promotion]:
        source_id = source_of(self.statepoints, fork.record)
        with self.sandboxes.hold(source_id, exclusive=True), self.sandboxes.hold(fork.id, exclusive=True):
            source = self.registry.sandbox(source_id)
            yield Promotion(self.statepoints, self.calls, source, fork.record)

    def attach(
        self, sandbox: Sandbox, *, as_left: bool = False, files_only: bool = False, accept_pivots: bool = False
    ) -> RestoreContext | None:
        """Pick a sandbox up again that doesn't run, at its newest statepoint; also after a reboot of the host.

        Files that were left otherwise are kept first, as a safety statepoint.

        Args:
            as_left: go on with the files as they were left; processes start anew.
            files_only: of the newest statepoint let processes start anew.
            accept_pivots: as in :meth:`rollback`.

        Returns:
            None when it runs already, and nothing was to be done.

        Raises:
            SandboxError, RestoreError, CaptureError: it doesn't run; nothing is lost.
        """
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            restored = attach.attach(
                self.statepoints, sandbox.record, as_left=as_left, files_only=files_only, accept_pivots=accept_pivots
            )
            if restored is not None:
                self._moved(sandbox.id)
        return restored

    # --- policy ---

    def should_snapshot(self, sandbox: Sandbox, trigger: str = "tool-call") -> bool:
        """Whether a statepoint is due now: a plugin's word, else the sandbox's policy, else the home's.

        Args:
            trigger: ``tool-call``, ``milestone:NAME`` or ``submit``.
        """
        found = self._verdict(sandbox.record, trigger)
        if found is not Verdict.TAKE_IF_CHANGED:
            return found is Verdict.TAKE
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            return not self.statepoints.unchanged(sandbox.record)

    def _verdict(self, record: SandboxRecord, trigger: str) -> Verdict:
        calls = self.calls.count(record.id)
        said = self.plugins.hook.planarian_should_snapshot(sandbox=record, trigger=trigger, calls=calls)
        if said is not None:
            return Verdict.TAKE if said else Verdict.SKIP
        return verdict(record.policy or self.config.policy, trigger, calls)

    @overload
    def snapshot_by_policy(
        self, sandbox: Sandbox, trigger: str = ..., *, name: str = ..., description: str = ...
    ) -> Statepoint | None: ...

    @overload
    def snapshot_by_policy(
        self, sandbox: Sandbox, trigger: str = ..., *, name: str = ..., description: str = ..., wait: Literal[False]
    ) -> Future[Statepoint | None]: ...

    def snapshot_by_policy(
        self,
        sandbox: Sandbox,
        trigger: str = "tool-call",
        *,
        name: str = "",
        description: str = "",
        wait: bool = True,
    ) -> Statepoint | Future[Statepoint | None] | None:
        """What an adapter calls after each tool call, at milestones and at the end: a statepoint, if one is due.

        Args:
            trigger: ``tool-call``, ``milestone:NAME`` or ``submit``.
            wait: as in :meth:`snapshot`; the future's result is None as well where none is due.

        Raises:
            CaptureError: nothing was committed; the sandbox runs on.
        """
        found = self._verdict(sandbox.record, trigger)
        if found is Verdict.SKIP:
            return None if wait else _done(None)
        held = self.sandboxes.hold(sandbox.id, exclusive=True)

        def work() -> Statepoint | None:
            with held:
                record = sandbox.record
                self.sandboxes.check_running(record)
                if found is Verdict.TAKE_IF_CHANGED and self.statepoints.unchanged(record):
                    return None
                taken = self.take(record, SnapshotRequest(name, description, automatic=not name), anyway=True)
            self._prune_by_config(sandbox)
            return taken

        return work() if wait else self._workers.submit(work)

    def set_policy(self, sandbox: Sandbox, policy: str) -> None:
        """Change when adapters take statepoints of a sandbox; empty for the home's policy.

        Raises:
            ConfigurationError: there is no such policy.
        """
        if policy:
            check_policy(policy)
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            self.registry.update_sandbox(replace(sandbox.record, policy=policy))

    def with_config(self, **changes: object) -> None:
        """Change defaults of this open home only (an adapter's own configuration)."""
        self.config = replace(self.config, **changes)  # type: ignore[arg-type]  # Config checks its own fields
        self.sandboxes.config = self.config


def _done(result: Statepoint | None) -> Future[Statepoint | None]:
    """A future that has its result already."""
    done: Future[Statepoint | None] = Future()
    done.set_result(result)
    return done
