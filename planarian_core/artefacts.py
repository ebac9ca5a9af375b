"""Where the parts of a statepoint are kept, and when they may go: several statepoints can share one.

A statepoint of which nothing had changed shares the artefacts of the one before (:attr:`Artefact.owner`); a promoted
one shares those of the fork. An artefact goes when the last statepoint that refers to it does.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from planarian_core.interfaces import SharesPages
from planarian_core.model import Artefact, Domain, SandboxRecord, Statepoint
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Registry


def images_of(home: Path, owner: str) -> Path:
    """The directory of the process images that are kept under a statepoint's id."""
    return home / "statepoints" / owner / "images"


class Artefacts:
    """The artefacts of one home."""

    def __init__(self, home: Path, registry: Registry, plugins: PluginManager) -> None:
        self._home = home
        self._registry = registry
        self._plugins = plugins

    def images(self, statepoint: Statepoint) -> Path:
        """The directory of a statepoint's process images, which may be another one's."""
        return self._folder(statepoint.owner(statepoint.processes) if statepoint.processes else statepoint.id)

    def _folder(self, owner: str) -> Path:
        return images_of(self._home, owner)

    def drop(self, record: SandboxRecord, statepoint: Statepoint, leaving: Collection[str] = ()) -> Counter[str]:
        """Remove what only this statepoint needs, of a capture that was not finished too. Idempotent.

        Returns the bytes of process images that this freed, by backend, of those backends whose images share some.

        Args:
            leaving: ids of statepoints that go as well, so that their need doesn't count.
        """
        without = {statepoint.id, *leaving}
        freed: Counter[str] = Counter()
        for owner, backend in self._kept(statepoint, statepoint.files, record.filesystem).items():
            if not self._registry.sharers(Domain.FILES, owner) - without:
                self._plugins.filesystem(backend).discard(owner)
        for owner, backend in self._kept(statepoint, statepoint.processes, record.process).items():
            if not self._registry.sharers(Domain.PROCESSES, owner) - without:
                images = self._folder(owner)
                process = self._plugins.process(backend)
                if isinstance(process, SharesPages):
                    freed[backend] += process.freed(images)
                process.discard(images)
                shutil.rmtree(images.parent, ignore_errors=True)
        return freed

    @staticmethod
    def _kept(statepoint: Statepoint, artefact: Artefact | None, backend: str) -> dict[str, str]:
        """The ids under which something of a statepoint may lie, and by which backend."""
        kept = {statepoint.id: artefact.backend if artefact else backend}
        if artefact is not None:
            kept[statepoint.owner(artefact)] = artefact.backend
        return kept
