"""Offers the sandbox backends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planarian_core.hookspecs import BackendFactory, hookimpl
from planarian_core.interfaces import SandboxBackend


def _namespace(home: Path) -> SandboxBackend:
    from planarian_sandbox.namespace import NamespaceBackend

    return NamespaceBackend(home)


def _directory(home: Path) -> SandboxBackend:
    from planarian_sandbox.directory import DirectoryBackend

    return DirectoryBackend(home)


def _podman(home: Path) -> SandboxBackend:
    from planarian_sandbox.podman import PodmanBackend

    return PodmanBackend(home)


@hookimpl
def planarian_backends() -> Sequence[BackendFactory]:
    return [
        BackendFactory("sandbox", "namespace", _namespace, rank=20),
        BackendFactory("sandbox", "directory", _directory, rank=10),
        BackendFactory("sandbox", "podman", _podman, rank=5),
    ]
