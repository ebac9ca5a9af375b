"""The two ways to a statepoint, each ready before anything is touched: its staged files, or a warm copy of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from planarian_core.errors import SandboxError
from planarian_core.faults import reach
from planarian_core.interfaces import NamesPaths
from planarian_core.model import SandboxRecord, SandboxSpec, Standby, Statepoint
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Registry
from planarian_core.revival import Revived, bring_up, described
from planarian_core.sandbox_manager import layer_of
from planarian_core.standby import StandbyManager

_SAMPLE = 50


class Destination(Protocol):
    """A way to a statepoint. ``taken`` and ``left`` are what the registry is told when the sandbox has arrived."""

    taken: Standby | None
    left: Standby | None
    apart: bool
    """Arriving touches nothing that the processes have which ran before: they need only be killed."""

    def arrive(self, record: SandboxRecord) -> tuple[SandboxRecord, Revived]:
        """Put a sandbox there whose processes have ended; its record as it runs. What fails leaves nothing running."""

    def changed(self, record: SandboxRecord) -> tuple[int | None, tuple[str, ...]]:
        """How many files arriving changes, and a sample of their names inside; None where it isn't known."""

    def finish(self) -> None:
        """Let go of what was made ready, whether it was used or not. Idempotent."""


class ByFiles:
    """The files are staged and verified; the processes are brought back, or started again, on them."""

    taken: Standby | None = None
    left: Standby | None = None
    apart = False

    def __init__(
        self,
        home: Path,
        registry: Registry,
        plugins: PluginManager,
        record: SandboxRecord,
        statepoint: Statepoint,
        *,
        switched: str = "rollback.switched",
        files_only: bool = False,
    ) -> None:
        """Stage the files of ``statepoint`` for a sandbox; RestoreError when they are damaged or there is no room.

        ``switched`` is the fault point on the way; a way back has none.
        """
        self._home = home
        self._registry = registry
        self._plugins = plugins
        self._statepoint = statepoint
        self._switched = switched
        self._files_only = files_only
        assert statepoint.files is not None
        self._staged = plugins.filesystem(statepoint.files.backend).stage(statepoint.files, layer_of(record.spec))

    def arrive(self, record: SandboxRecord) -> tuple[SandboxRecord, Revived]:
        self._staged.switch()
        if self._switched:
            reach(self._switched)
        revived = bring_up(
            self._home, self._registry, self._plugins, record, self._statepoint, files_only=self._files_only
        )
        fingerprint = self._plugins.sandbox(record.spec.backend).fingerprint(record.spec)
        return replace(record, live=revived.live, closed=False, base=fingerprint), revived

    def changed(self, record: SandboxRecord) -> tuple[int | None, tuple[str, ...]]:
        staged = self._staged
        sandbox = self._plugins.sandbox(record.spec.backend)
        if not isinstance(sandbox, NamesPaths):
            return staged.changed_count, tuple(staged.changed[:_SAMPLE])
        named = [name for path in staged.changed if (name := sandbox.inside(record.spec, path))]
        unnamed = staged.changed_count - len(staged.changed)
        return len(named) + unnamed, tuple(named[:_SAMPLE])

    def finish(self) -> None:
        self._staged.discard()


class ByCopy:
    """A copy that is restored already: the sandbox takes its layer and its processes over."""

    def __init__(
        self,
        home: Path,
        registry: Registry,
        plugins: PluginManager,
        standbys: StandbyManager,
        standby: Standby,
        statepoint: Statepoint,
    ) -> None:
        self.taken: Standby | None = standby
        self.left: Standby | None = None
        self.apart = standby.record.live is not None
        self._home = home
        self._registry = registry
        self._plugins = plugins
        self._standbys = standbys
        self._standby = standby
        self._statepoint = statepoint

    @property
    def spec(self) -> SandboxSpec:
        """The sandbox that the copy is."""
        return self._standby.record.spec

    def arrive(self, record: SandboxRecord) -> tuple[SandboxRecord, Revived]:
        copy = self._standby.record
        try:
            live = self._standbys.wake(self._standby)
        except SandboxError:  # it died as it was handed over: the long way is still there
            return self._the_long_way(record)
        reach("standby.woken")
        if record.spec.layer != copy.spec.layer:  # a fork has no layer of its own before
            self.left = self._standbys.remnant(record)
        spec = replace(record.spec, layer=copy.spec.layer, exclude=copy.spec.exclude)
        record = replace(record, spec=spec, base=copy.base, live=live, closed=False)
        if live is not None:
            return record, Revived(live, described(self._statepoint))
        revived = bring_up(self._home, self._registry, self._plugins, record, self._statepoint)
        return replace(record, live=revived.live), revived

    def _the_long_way(self, record: SandboxRecord) -> tuple[SandboxRecord, Revived]:
        copy = self._standby.record
        self._plugins.sandbox(copy.spec.backend).stop(copy.spec, copy.live)
        self._plugins.sandbox(record.spec.backend).stop(record.spec, record.live)  # it was only killed, maybe
        self.finish()
        self.taken = None
        return ByFiles(self._home, self._registry, self._plugins, record, self._statepoint).arrive(record)

    def changed(self, record: SandboxRecord) -> tuple[int | None, tuple[str, ...]]:
        return None, ()

    def finish(self) -> None:
        """A copy that was not used is dropped: its processes may have run."""
        if self.taken is not None and self._registry.standbys.get(self._standby.id) is not None:
            self._standbys.drop(self._standby)
