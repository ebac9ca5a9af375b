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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar, overload

from planarian_core import agent_requests, bundle, context, remote_verbs, verbs
from planarian_core.capture import SnapshotRequest
from planarian_core.config import Config, default_home, load
from planarian_core.context import Ledger
from planarian_core.errors import ConfigurationError, LineageError, PlanarianError
from planarian_core.faults import reach
from planarian_core.interfaces import Collects, OutputSink
from planarian_core.locks import Held
from planarian_core.model import (
    Command,
    CommandResult,
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
from planarian_core.recovery import Recovered, Recovery
from planarian_core.references import References
from planarian_core.registry import Operation, Registry
from planarian_core.sandbox import Sandbox, StatepointRef
from planarian_core.sandbox_manager import SandboxManager, SandboxRequest
from planarian_core.service_tools import ServiceTools
from planarian_core.standby import StandbyManager
from planarian_core.statepoint_manager import StatepointManager
from planarian_core.warming import Warmer

T = TypeVar("T")

_PRUNED_AT_ONCE = 10
"""By configuration: collecting what is left costs about the same for one statepoint as for many."""


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
        self.service_tools = ServiceTools(self)

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
        self.service_tools.close()
        self.warmer.close()
        self.standbys.close()
        with suppress(PlanarianError):  # what is left is asked for later
            self.registry.effects.reservations.release()
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
        root: str | Path | None = None,
    ) -> Sandbox:
        """Make and start a sandbox on a host directory; backends not named are the best that this host allows.

        Args:
            policy: when adapters take statepoints of it by themselves; the home's policy if empty.
            root: a directory with an unpacked image that the sandbox stands on in place of the host's own files; then
                ``workspace`` is a directory in it. It has to stay as it is while the sandbox and its forks are there.

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
            Path(root) if root is not None else None,
        )
        return Sandbox(self, self.sandboxes.create(request).id)

    def sandbox(self, reference: str = "") -> Sandbox:
        """A sandbox by id, unique beginning of it, or name; the only one there is if empty."""
        record = self.sandboxes.find(reference) if reference else self.sandboxes.only()
        return Sandbox(self, record.id)

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        """End a sandbox and delete its files and statepoints. A ``directory`` sandbox's workspace stays as it is."""
        self.service_tools.let_go(sandbox)
        with self.sandboxes.hold(sandbox.id, exclusive=True):
            record = sandbox.record
            own = {statepoint.id for statepoint in self.registry.statepoints(record.id)}
            forks = [branch.sandbox_id for branch in self.registry.branches() if branch.forked_from in own]
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

    def dispatch(
        self,
        sandbox: Sandbox,
        command: Command,
        sink: OutputSink | None = None,
        *,
        forks: str = "agent",
        within: bool = False,
    ) -> CommandResult:
        """Run a command under the sandbox's shared lock, and serve requests that come from inside meanwhile.

        Args:
            forks: what an agent inside may do with forks: one of :data:`planarian_core.agent_requests.FORKS`.
            within: an agent runs this in a fork of its own, from a call that waits for it.
        """
        with self.sandboxes.hold(sandbox.id, exclusive=False) as held:
            server = agent_requests.RequestServer(self, sandbox, held, command, forks, within)
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

        return work() if wait else self._in_background(work, held)

    def _in_background(self, work: Callable[[], T], held: Held) -> Future[T]:
        """Begin what lets go of ``held`` in the end; so does a future that is cancelled before it began."""
        try:
            future = self._workers.submit(work)
        except BaseException:
            held.release()
            raise
        future.add_done_callback(lambda _: held.release())
        return future

    def take(self, record: SandboxRecord, request: SnapshotRequest, *, anyway: bool = False) -> Statepoint:
        """Take a statepoint of a sandbox whose exclusive lock the caller holds; calls are counted from here anew.

        One that nobody asked for (``anyway``, or automatic) is of the files alone where processes can't be captured.
        """
        anyway = anyway or request.automatic
        snapshot = self.statepoints.snapshot_anyway if anyway else self.statepoints.snapshot
        statepoint = snapshot(record, request)
        self.moved(record.id)
        return statepoint

    def moved(self, sandbox_id: str) -> None:
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
            self.moved(record.id)
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
        self,
        statepoint: StatepointRef,
        *,
        of: Sandbox | None = None,
        name: str = "",
        files_only: bool = False,
        by_agent: bool = False,
    ) -> tuple[Sandbox, RestoreContext]:
        """:meth:`fork`, and the restore context for the agent that goes on in the fork.

        Args:
            by_agent: an agent asks for it of itself: only as many as the configuration allows (``agent_forks``).
        """
        source = of or self.owner_of(statepoint)
        with self.sandboxes.hold(source.id, exclusive=False):
            point = self.resolve(source, statepoint)
            maker = agent_requests.maker_of(self, source) if by_agent else ""
            record, restored = self.statepoints.fork(source.record, point, name, files_only=files_only, made_by=maker)
        self.warmer.look(source.id)
        return Sandbox(self, record.id), restored

    def recover(self, *, files_only: bool = False) -> list[Recovered]:
        """Finish what killed runtimes left behind; what another process is doing right now is left alone.

        Args:
            files_only: where processes can't be brought back, let them start anew.
        """
        self.standbys.sweep()
        return Recovery(self.registry, self.sandboxes, self.statepoints, files_only=files_only).run()

    # --- evidence ---

    def resolve(self, sandbox: Sandbox, reference: StatepointRef) -> Statepoint:
        """The committed statepoint that a reference means in a sandbox.

        A fork may go back to the statepoint that it came from.
        """
        return self.references.resolve(sandbox.id, reference.id if isinstance(reference, Statepoint) else reference)

    def owner_of(self, reference: StatepointRef) -> Sandbox:
        """The sandbox that a statepoint belongs to; the only one there is for a reference that is no whole id."""
        owner = reference.sandbox_id if isinstance(reference, Statepoint) else self.references.owner(reference)
        return Sandbox(self, owner) if owner else self.sandbox()

    def append_outcome(
        self, statepoint: StatepointRef, text: str, *, status: str = "note", author: str = "", of: Sandbox | None = None
    ) -> Outcome:
        """Add how a run that went on from a statepoint ended: ``note``, ``succeeded`` or ``failed``."""
        if not isinstance(statepoint, Statepoint):
            statepoint = self.resolve(of or self.owner_of(statepoint), statepoint)
        return context.append_outcome(self.registry, statepoint, text, status, author)

    def ledger(self, sandbox: Sandbox, *, limit: int | None = None, automatic: bool = True) -> Ledger:
        """The evidence to choose a statepoint from, newest first, in at most ``limit`` characters."""
        head = self.registry.branch(sandbox.id).head
        limit = limit or self.config.ledger_characters
        return context.construct_ledger(self.registry, sandbox.id, head, limit, automatic=automatic)

    def _prune_by_config(self, sandbox: Sandbox) -> None:
        """Prune as the configuration says, some at a time; a snapshot never fails for it, nor waits for others."""
        keep = self.config.keep_last
        if keep is None:
            return
        left = max(keep, self._left.get(sandbox.id, 0))
        if self.registry.count(sandbox.id) <= left + max(_PRUNED_AT_ONCE, keep // 10):
            return
        from planarian_core.prune_choice import PrunePolicy
        from planarian_core.reclaim import Reclaimer

        try:
            Reclaimer(self.statepoints).prune([sandbox.record], PrunePolicy(keep_last=keep), timeout=0)
        except (PlanarianError, OSError) as error:
            logging.getLogger(__name__).warning("statepoints of %s could not be pruned: %s", sandbox.id, error)
        else:
            self._left[sandbox.id] = self.registry.count(sandbox.id)

    # --- by hand ---

    diff = verbs.diff
    restore_paths = verbs.restore_paths
    apply = verbs.apply
    undo_application = verbs.undo_application
    sandbox_of_application = verbs.sandbox_of_application
    hold = verbs.hold
    release = verbs.release
    prune = verbs.prune
    promote = verbs.promote
    adopt = verbs.adopt
    preview_promotion = verbs.preview_promotion
    attach = verbs.attach
    keep_warm = verbs.keep_warm
    drill = verbs.drill
    export = bundle.export
    export_with_report = bundle.export_with_report
    import_ = bundle.import_
    import_with_report = bundle.import_with_report

    # --- remote services ---

    remote_session = remote_verbs.remote_session
    effects = remote_verbs.effects
    settle_effect = remote_verbs.settle_effect
    approvals = remote_verbs.approvals
    approve = remote_verbs.approve

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

        return work() if wait else self._in_background(work, held)

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
