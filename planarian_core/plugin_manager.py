"""Loads plugins one by one and finds backends among them. A broken plugin is reported; the others load."""

from __future__ import annotations

import importlib.metadata
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pluggy

from planarian_core import builtin_hooks, hookspecs
from planarian_core.errors import BackendUnavailable, ConfigurationError
from planarian_core.hookspecs import BackendFactory, BackendKind
from planarian_core.interfaces import Availability, FilesystemBackend, ProcessBackend, SandboxBackend

GROUP = "planarian"


@dataclass(frozen=True)
class BrokenPlugin:
    """An entry point that could not be loaded."""

    name: str
    error: str


class PluginManager:
    """All plugins of this environment, and the backends that they offer for one home."""

    def __init__(self, home: Path, extra: tuple[object, ...] = ()) -> None:
        """Load the entry points of the group ``planarian``, then ``extra`` plugin objects (tests, applications)."""
        self.home = home
        self.broken: list[BrokenPlugin] = []
        self._pluggy = pluggy.PluginManager("planarian")
        self._pluggy.add_hookspecs(hookspecs)
        self._pluggy.register(builtin_hooks, "planarian_core")
        for entry in importlib.metadata.entry_points(group=GROUP):
            try:
                self._pluggy.register(entry.load(), entry.name)
            except Exception as error:  # a plugin is foreign code: whatever it raises is reported, not fatal
                self.broken.append(BrokenPlugin(entry.name, f"{type(error).__name__}: {error}"))
        for plugin in extra:
            self._pluggy.register(plugin)
        self._factories = self._collect()
        self._made: dict[tuple[str, str], Any] = {}

    @property
    def hook(self) -> Any:
        """Call hooks here: ``manager.hook.planarian_forked(...)``."""
        return self._pluggy.hook

    def notify(self, hook: str, **arguments: Any) -> None:
        """Tell listeners of what has happened; one that fails is logged and changes nothing."""
        try:
            getattr(self._pluggy.hook, hook)(**arguments)
        except Exception:  # foreign code
            logging.getLogger(__name__).exception("a plugin failed in %s", hook)

    def _collect(self) -> dict[tuple[str, str], BackendFactory]:
        found: dict[tuple[str, str], BackendFactory] = {}
        for result in self._pluggy.hook.planarian_backends():
            for factory in result:
                key = (factory.kind, factory.name)
                if key in found:
                    raise ConfigurationError(
                        f"two plugins offer a {factory.kind} backend called {factory.name!r}",
                        code="backend-duplicate",
                        remedy="uninstall one of them (pip list)",
                    )
                found[key] = factory
        return found

    def names(self, kind: BackendKind) -> list[str]:
        """Backend names of a kind, preferred first."""
        ranked = sorted((f for f in self._factories.values() if f.kind == kind), key=lambda f: (-f.rank, f.name))
        return [f.name for f in ranked]

    def missed(self, kind: BackendKind, name: str) -> bool:
        """Whether a user wants to know why a backend doesn't serve (:class:`BackendFactory`)."""
        return self._factories[kind, name].missed

    def _backend(self, kind: BackendKind, name: str) -> Any:
        factory = self._factories.get((kind, name))
        if factory is None:
            raise ConfigurationError(
                f"there is no {kind} backend called {name!r}",
                code="backend-unknown",
                remedy=f"one of: {', '.join(self.names(kind))}",
            )
        if (kind, name) not in self._made:
            self._made[kind, name] = factory.make(self.home)
        return self._made[kind, name]

    def filesystem(self, name: str) -> FilesystemBackend:
        return cast(FilesystemBackend, self._backend("filesystem", name))

    def process(self, name: str) -> ProcessBackend:
        return cast(ProcessBackend, self._backend("process", name))

    def sandbox(self, name: str) -> SandboxBackend:
        return cast(SandboxBackend, self._backend("sandbox", name))

    def probe(self, kind: BackendKind, name: str) -> Availability:
        """What this host allows of a backend; an exception in its factory or probe is the reason why not."""
        try:
            return cast(Availability, self._backend(kind, name).probe())
        except ConfigurationError:
            raise
        except Exception as error:  # foreign code; doctor must go on to the next backend
            return Availability(False, f"{type(error).__name__}: {error}")

    def require(self, kind: BackendKind, name: str) -> None:
        """BackendUnavailable, with the reason and what mends it, unless the backend works here."""
        found = self.probe(kind, name)
        if not found.available:
            raise BackendUnavailable(
                f"the {kind} backend {name!r} doesn't work here: {found.reason}",
                remedy=found.remedy or "planarian doctor",
            )
