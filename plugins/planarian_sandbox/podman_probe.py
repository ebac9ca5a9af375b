"""Whether Podman makes containers here, found out by making one; the finding is kept in the home."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from planarian_core.boot import boot_id
from planarian_core.errors import PlanarianError
from planarian_core.interfaces import Availability
from planarian_core.model import Limits, SandboxSpec, new_id
from planarian_sandbox import cgroups
from planarian_sandbox.podman_engine import Engine, container_arguments, other_groups, stand_ins
from planarian_sandbox.probe import probe as probe_namespaces

_OLDEST = 4
_ROOTLESS = "files only, and no control group enforces the limit of memory"
_LINKS = ("bin", "lib", "lib64", "sbin")


def probe(home: Path, runtime: str = "") -> Availability:
    """Try it; ``reason`` names what is missing or limited."""
    if sys.platform != "linux":
        return Availability(False, "podman: needs Linux", "use the directory backend")
    if not (files := probe_namespaces(home)).available:  # the same mounts
        return files
    try:
        engine = Engine.find(runtime)
        kept = home / "cache" / f"podman-{engine.runtime}.json"
        version = engine.run("version", "--format", "{{.Client.Version}}").strip()
        program = os.stat(shutil.which(engine.runtime) or "/").st_mtime_ns
        key = [boot_id(), os.geteuid(), engine.program, version, program]
        if (found := _read(kept)) is None or found.get("key") != key:
            found = {"key": key, "failure": _failure(home, engine, version)}
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(found), encoding="utf-8")
    except (PlanarianError, OSError) as error:
        return Availability(False, f"podman: {error}", getattr(error, "remedy", ""))
    if found["failure"]:
        return Availability(False, f"podman: {found['failure']}", "podman info shows what it needs")
    rootless = "" if os.geteuid() == 0 else f", rootless: {_ROOTLESS}"
    return Availability(True, f"podman: {version} with {engine.runtime}{rootless}")


def _failure(home: Path, engine: Engine, version: str) -> str:
    """What a trial container says went wrong; empty when it ran."""
    if not version.split(".")[0].isdigit() or int(version.split(".")[0]) < _OLDEST:
        return f"version {version} is too old, {_OLDEST}.0 is needed"
    root = tempfile.mkdtemp(prefix="podman-trial-", dir=home)
    spec = SandboxSpec(new_id("sb"), "/", root, str(home), "podman", limits=Limits(256 * 1024**2, 64))
    try:
        for name in ("usr", "tmp", "etc", "run", "dev", "proc", "sys", "shm"):
            os.mkdir(os.path.join(root, name))
        for name in _LINKS:
            with suppress(OSError):
                os.symlink(os.readlink(f"/{name}"), os.path.join(root, name))
        binds = {"/dev/shm": f"{root}/shm"}  # noqa: S108  # as everywhere
        arguments = container_arguments(spec, engine, root, binds, stand_ins(home), f"{root}/pid")
        engine.run("run", "--rm", "--volume=/usr:/usr:ro", *arguments, "/usr/bin/true")
    except PlanarianError as error:
        return error.message
    finally:
        with suppress(PlanarianError):
            engine.remove([spec.id])
        cgroups.remove(other_groups(spec.id), 2.0)
        cgroups.remove(cgroups.of_sandbox(spec.id), 2.0)
        shutil.rmtree(root, ignore_errors=True)
    return ""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "failure" in found else None
