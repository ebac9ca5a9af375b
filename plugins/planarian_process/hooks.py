"""Offers the process backends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planarian_core.hookspecs import BackendFactory, hookimpl
from planarian_core.interfaces import ProcessBackend


def _criu(home: Path) -> ProcessBackend:
    from planarian_core.config import load
    from planarian_process.criu import CriuBackend

    return CriuBackend(home, full_every=load(home).full_images)


def _podman(home: Path) -> ProcessBackend:
    from planarian_core.config import load
    from planarian_process.podman import PodmanMemory

    return PodmanMemory(home, full_every=load(home).full_images)


def _respawn(home: Path) -> ProcessBackend:
    from planarian_process.respawn import RespawnBackend

    return RespawnBackend(home)


def _none(home: Path) -> ProcessBackend:
    from planarian_process.none import NoneBackend

    return NoneBackend(home)


@hookimpl
def planarian_backends() -> Sequence[BackendFactory]:
    return [
        BackendFactory("process", "criu", _criu, rank=30),
        BackendFactory("process", "podman", _podman, rank=25),
        BackendFactory("process", "respawn", _respawn, rank=20),
        BackendFactory("process", "none", _none, rank=0),
    ]
