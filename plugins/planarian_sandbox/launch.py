"""The host's side of the launcher: what it is told, and how its outcome is read."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from planarian_core.boot import boot_id
from planarian_core.errors import ConfigurationError, SandboxError
from planarian_core.model import LiveSandbox, Network, SandboxSpec
from planarian_sandbox import cgroups, launcher, seccomp
from planarian_sandbox.identity import exited, init_handle, process_stat
from planarian_sandbox.inside import Inside
from planarian_sandbox.layout import CALLS, RUNTIME, Layout, inside_python, top_directories

# Imported rather than run as a script, so that its compiled form is kept: that is a third of its time.
LAUNCH = "import sys; sys.path.append(sys.argv.pop(1)); import launcher; sys.exit(launcher.main())"
PROGRAMS = f"{RUNTIME}/bin"
PATH = f"{PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""The container engines' default: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap,
net_bind_service, net_raw, sys_chroot, mknod, audit_write, setfcap."""
BESIDE = ("workspace", "dev")
"""What is mounted below the root; beside it while an image comes back to life."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PATIENCE = 20.0


@contextmanager
def reported(what: str, state: str = "nothing is left running") -> Iterator[None]:
    """Turn an OSError of the host's own files (full, read-only, no permission) into a SandboxError."""
    try:
        yield
    except OSError as error:
        raise SandboxError(
            f"{what}: {error}.",
            code="sandbox-start",
            state=state,
            remedy="check free space and permissions of the Planarian home; planarian doctor",
        ) from error


def check_id(sandbox_id: str) -> str:
    """The id, if it can be a file's name; ConfigurationError if not."""
    if not _ID.fullmatch(sandbox_id) or ".." in sandbox_id:
        raise ConfigurationError(f"{sandbox_id!r} can't be the id of a sandbox.", code="sandbox-id")
    return sandbox_id


def mount_point(home: Path, spec: SandboxSpec, kind: str = "") -> str:
    """An empty directory on which the sandbox's files are mounted, in mount namespaces of their own only.

    ``kind`` is empty for its root, else a dot and one of :data:`BESIDE`.
    """
    path = home / "mounts" / f"{check_id(spec.id)}{kind}"
    path.mkdir(parents=True, exist_ok=True)
    return str(path)


def remove_mount_points(home: Path, sandbox_id: str) -> None:
    """Remove what :func:`mount_point` made for a sandbox. Idempotent."""
    for kind in ("", *(f".{kind}" for kind in BESIDE)):
        with suppress(OSError):
            os.rmdir(home / "mounts" / f"{check_id(sandbox_id)}{kind}")


def files(home: Path, spec: SandboxSpec, layout: Layout) -> dict[str, Any]:
    """What launcher.py is told of the sandbox's files."""
    return {
        "root": mount_point(home, spec),
        "base": spec.root or "/",
        "layer": spec.layer,
        "workspace": layout.workspace,
        "origin": os.path.realpath(spec.origin or spec.workspace),
        "access_times": layout.access_times,
        "rootless": layout.rootless,
        "tops": list(top_directories()) if layout.rootless else [],
    }


def configuration(home: Path, spec: SandboxSpec, layout: Layout, groups: tuple[str, ...]) -> dict[str, Any]:
    """All that launcher.py is told to start a sandbox."""
    supervised = [] if cgroups.unified(groups) else ["subreaper"]
    return {
        **files(home, spec, layout),
        "runtime": os.getpid(),
        "cgroups": list(groups),
        "own_network": spec.network is Network.NONE,
        "capabilities": list(CAPABILITIES),
        "processes": spec.limits.pids if layout.rootless else 0,
        "filters": [str(path) for path in seccomp.filters(home)],
        "init": [inside_python(spec.root), "-I", "-S", f"{RUNTIME}/agent.py", spec.id, *supervised],
        "env": {"PATH": PATH, "LANG": "C.UTF-8"},
        "empty": f"{RUNTIME}/empty",
        "hostname": "sandbox",
    }


def mount_for_restore(config: dict[str, Any], beside: dict[str, str]) -> None:
    """Mount a sandbox's files (:func:`files`) for an image that comes back to life, in the calling thread's own mount
    namespace. OSError names the step that failed.
    """
    try:
        launcher.mount_files(config, beside)
    except OSError as error:
        raise OSError(error.errno, f"{launcher.PROGRESS.step}: {error.strerror}") from error


def launch(config: dict[str, Any]) -> int:
    """Start an init; its host pid. SandboxError names the step that failed; nothing is left then."""
    command = (inside_python(), "-I", "-S", "-c", LAUNCH, str(Path(__file__).parent), json.dumps(config))
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, env={}
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"The sandbox did not start: {error}.", code="sandbox-start") from error
    if done.returncode or not done.stdout.strip().isdigit():
        reason = (done.stdout or done.stderr).strip()[-1000:] or f"exit code {done.returncode}"
        raise SandboxError(
            f"The sandbox did not start: {reason}.", code="sandbox-start", state="nothing is left running"
        )
    return int(done.stdout)


def live_sandbox(init_pid: int, groups: tuple[str, ...], details: dict[str, Any]) -> LiveSandbox:
    """The value that stands for a running init; SandboxError when it is gone already."""
    found = process_stat(init_pid)
    if found is None or found[0] in "ZX":
        raise SandboxError("The sandbox's init ended at once.", code="sandbox-start", state="nothing is left running")
    return LiveSandbox(init_pid, found[1], boot_id(), groups, details)


def await_agent(live: LiveSandbox) -> None:
    """Wait until the init takes calls."""
    deadline = time.monotonic() + _PATIENCE
    pause = 0.001
    with init_handle(live) as init:
        while init is not None and not exited(init):
            if _answers(live):
                return
            if time.monotonic() > deadline:
                raise SandboxError("The sandbox's init does not come up.", code="sandbox-start")
            time.sleep(pause)
            pause = min(pause * 1.3, 0.02)
    raise SandboxError(
        "The sandbox's init ended while it came up; is the sandbox's python3 whole?", code="sandbox-start"
    )


def _answers(live: LiveSandbox) -> bool:
    try:
        with (
            Inside.of_init(live.init_pid) as root,
            root.directory(CALLS.lstrip("/")) as calls,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        ):
            descriptor = os.open("agent.sock", os.O_PATH | os.O_NOFOLLOW, dir_fd=calls.descriptor)
            try:
                connection.settimeout(1)
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    connection.connect(f"/proc/self/fd/{descriptor}")
                    calls.settle()
                    return True
            finally:
                os.close(descriptor)
    except OSError:
        return False
    return False
