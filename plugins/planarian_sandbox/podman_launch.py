"""The host's side of :mod:`planarian_sandbox.podman_launcher`: a container started, or brought back from an image."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planarian_core.errors import RestoreError, SandboxError
from planarian_core.interfaces import CheckpointFailed
from planarian_core.model import SandboxSpec
from planarian_sandbox import cgroups
from planarian_sandbox.identity import descendants, end_found
from planarian_sandbox.launch import BESIDE, mount_point
from planarian_sandbox.layout import RUNTIME, inside_python
from planarian_sandbox.podman_control import Control
from planarian_sandbox.podman_engine import (
    Engine,
    container_arguments,
    container_name,
    entered,
    finished,
    stand_ins,
)

# Imported rather than run as a script, so that its compiled form is kept.
_LAUNCH = """import sys
sys.path.append(sys.argv.pop(1))
from planarian_sandbox.podman_launcher import main
sys.exit(main())"""
_ENDS_WITHIN = 10.0


@dataclass(frozen=True)
class Place:
    """What a sandbox's container is made of. ``files``: see :func:`planarian_sandbox.launch.files`; ``group``: the
    sandbox's version 2 control group, empty where there is none.
    """

    home: Path
    engine: Engine
    spec: SandboxSpec
    files: dict[str, Any]
    group: str


def start_container(place: Place) -> int:
    """Have Podman run Planarian's init in a new container; its host pid."""
    options = Control(place.home, place.spec.id).make(place.spec.network)
    return _launch(place, [place.engine.argv("run", "--detach", *options, *_arguments(place))], starts=True)


def restore_container(
    place: Place, images: Path, doomed: Sequence[int], frozen: bool, resuming: Callable[[int], object]
) -> int:
    """Have Podman restore an image of the processes in a new container; the host pid of its init.

    Podman restores what has been run before, so that is made first and ended before it runs anything of its own.
    ``resuming`` is called with the pid when all is restored and nothing has run yet.

    Raises:
        CheckpointFailed: with CRIU's own words. What was made remains, for the caller to end.
    """
    engine, name = place.engine, container_name(place.spec.id)
    control = Control(place.home, place.spec.id)
    options = control.make(place.spec.network)
    if not options:
        raise RestoreError("CRIU's hook can't lie in this home", remedy="use a home with a plain path, or --files-only")
    control.order(doomed, frozen, cgroups.make_for_call(place.group, "launch") if place.group else "")
    _launch(
        place,
        [
            engine.argv("create", *options, *_arguments(place)),
            engine.argv("init", name),
            engine.argv("stop", "--time=0", name),
        ],
    )
    static = Path(engine.run("inspect", "--format={{.StaticDir}}", name).strip())
    with suppress(FileNotFoundError):
        os.unlink(static / "checkpoint")
    os.symlink(images, static / "checkpoint")
    flags = ("--keep", "--tcp-established", "--file-locks")
    try:
        with control.asked(resuming):
            return _launch(place, [engine.argv("container", "restore", *flags, name)])
    except SandboxError as error:
        log = ""
        with suppress(OSError):
            log = (static / "restore.log").read_text(encoding="utf-8", errors="replace")
        raise CheckpointFailed(error.message, log, error.message) from error


def end_half_made(sandbox_id: str) -> None:
    """End what a killed runtime's podman had begun for an ordinary user, who has no control groups that hold it:
    conmon, and the container that this was about to start. Idempotent.
    """
    name = f"\0-n\0{container_name(sandbox_id)}\0".encode()

    def found() -> set[int]:
        conmons = {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if name in _arguments_of(pid)}
        return conmons.union(*map(descendants, conmons))

    end_found(found, _ENDS_WITHIN)


def _arguments_of(pid: int) -> bytes:
    """Of a process of this user; empty for another's, and for one that is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(65536) if os.fstat(file.fileno()).st_uid == os.geteuid() else b""
    except OSError:
        return b""


def forget_place(home: Path, sandbox_id: str) -> None:
    """Remove what a container needed beside its layer. Idempotent."""
    _pidfile(home, sandbox_id).unlink(missing_ok=True)
    Control(home, sandbox_id).remove()


def _arguments(place: Place) -> list[str]:
    spec, beside = place.spec, _beside(place)
    binds = {"/dev/shm": f"{beside['dev']}/shm"}  # noqa: S108  # as everywhere
    if "workspace" in beside:
        binds[place.files["workspace"]] = beside["workspace"]
    pidfile = str(_pidfile(place.home, spec.id))
    supervised = [] if place.group else ["subreaper"]
    return [
        *container_arguments(spec, place.engine, place.files["root"], binds, stand_ins(place.home), pidfile),
        *(inside_python(spec.root), "-I", "-S", f"{RUNTIME}/agent.py", spec.id, *supervised),
    ]


def _beside(place: Place) -> dict[str, str]:
    kinds = ("dev",) if place.files["rootless"] else BESIDE  # an ordinary user's workspace is mounted below the root
    return {kind: mount_point(place.home, place.spec, f".{kind}") for kind in kinds}


def _launch(place: Place, commands: list[list[str]], *, starts: bool = False) -> int:
    """Run podman where the files are mounted; the pid that it wrote, 0 where it wrote none. ``starts``: it starts a new
    container.
    """
    pidfile = _pidfile(place.home, place.spec.id)
    pidfile.unlink(missing_ok=True)
    config = {
        "runtime": os.getpid(),
        "files": place.files,
        "beside": _beside(place),
        "group": cgroups.make_for_call(place.group, "launch") if place.group else "",
        "podman": commands,
        "pidfile": str(pidfile) if starts else "",
    }
    launcher = [inside_python(), "-I", "-S", "-c", _LAUNCH, str(Path(__file__).parents[1]), json.dumps(config)]
    finished(entered(launcher))  # what podman finds in the environment goes on to it: arguments can be read by anybody
    return int(pidfile.read_text(encoding="ascii")) if pidfile.exists() else 0


def _pidfile(home: Path, sandbox_id: str) -> Path:
    """Where podman writes the host pid of a sandbox's init."""
    return home / "mounts" / f"{sandbox_id}.pid"
