"""The user's own podman: which runtime it is used with, how a container is asked for, found and removed.

Planarian never pulls an image. All that it makes carries the labels below and a name of its own.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planarian_core.errors import BackendUnavailable, SandboxError
from planarian_core.model import Network, SandboxSpec
from planarian_sandbox import cgroups
from planarian_sandbox.launcher import MASKED_FILES
from planarian_sandbox.podman_seccomp import profile

LABEL_SANDBOX = "planarian.sandbox"
LABEL_LAYER = "planarian.layer"
INSTALL = "apt-get install podman crun (or runc)"
_PATIENCE = 120.0
_CONTAINER = re.compile(r"/libpod-([0-9a-f]{64})\b")
_CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("NET_BIND_SERVICE", "NET_RAW", "SYS_CHROOT", "MKNOD", "AUDIT_WRITE", "SETFCAP"),
)
"""What a namespace sandbox has too; said one by one, because the user's containers.conf may allow more."""
_FILES, _PROCESSES = 1 << 20, 32768


def container_name(sandbox_id: str) -> str:
    """The container of a sandbox."""
    return f"planarian-{sandbox_id}"


@dataclass(frozen=True)
class Engine:
    """podman with one OCI runtime, control groups made directly (as Planarian makes its own)."""

    program: str
    runtime: str

    @classmethod
    def find(cls, runtime: str = "") -> Engine:
        """The one on this host. Without ``runtime`` crun is taken where control groups are version 2 alone, which it
        demands, and runc elsewhere or where there is no crun. BackendUnavailable names what is missing.
        """
        program = shutil.which("podman")
        if not program:
            raise BackendUnavailable("podman is not installed.", code="podman-missing", remedy=INSTALL)
        fitting = (runtime,) if runtime else ("crun", "runc") if only_version_2() else ("runc",)
        for name in fitting:
            if shutil.which(name):
                return cls(program, name)
        why = "" if runtime or only_version_2() else ", the one that works with control groups of version 1"
        raise BackendUnavailable(
            f"{' and '.join(fitting)}{why}, is not installed." if why else f"{' or '.join(fitting)} is not installed.",
            code="podman-runtime",
            remedy=f"apt-get install {fitting[-1]}",
        )

    def argv(self, *arguments: str) -> list[str]:
        """The argument list of a podman command."""
        return [self.program, "--cgroup-manager=cgroupfs", f"--runtime={self.runtime}", *arguments]

    def run(self, *arguments: str, timeout: float = _PATIENCE) -> str:
        """Run a podman command to its end; what it printed. SandboxError with podman's own words when it fails."""
        return finished(entered(self.argv(*arguments)), timeout)

    def remove(self, sandbox_ids: Sequence[str]) -> None:
        """End and remove the containers of these sandboxes. Idempotent, also where somebody removed them before."""
        names = [container_name(sandbox_id) for sandbox_id in sandbox_ids]
        for last in (False, False, True) if names else ():
            try:
                self.run("rm", "--force", "--ignore", "--time=0", *names)
            except SandboxError:
                if last:
                    raise
                time.sleep(0.2)  # where conmon is gone, podman finds out only now that nothing runs any more
            else:
                return

    def forsaken(self) -> list[str]:
        """IDs of sandboxes whose containers are there although their layer is gone: nobody can use those any more."""
        listed = self.run(
            *("ps", "--all", "--filter", f"label={LABEL_SANDBOX}", "--format"),
            f'{{{{index .Labels "{LABEL_SANDBOX}"}}}} {{{{index .Labels "{LABEL_LAYER}"}}}}',
        )
        found = [line.partition(" ") for line in listed.splitlines()]
        return [sandbox_id for sandbox_id, _, layer in found if os.path.isabs(layer) and not os.path.lexists(layer)]


def entered(argv: list[str]) -> list[str]:
    """An argument list that runs podman, or what runs podman, as it is to be run.

    For an ordinary user in a user namespace with this user alone, who is root in it: so all files of a layer are the
    user's, and no subordinate ids are needed. podman is told by the environment, as by ``podman unshare``.
    """
    if os.geteuid() == 0:
        return argv
    known = {"USERNS_CONFIGURED": "done", "ROOTLESS_UID": os.geteuid(), "ROOTLESS_GID": os.getegid()}
    told = [f"_CONTAINERS_{name}={value}" for name, value in known.items()]
    return ["unshare", "--map-root-user", "--", "env", *told, *argv]


def finished(argv: list[str], timeout: float = _PATIENCE) -> str:
    """Run an argument list in a process group of its own, ended when it takes too long; its output.

    SandboxError, with its own words, when it fails or can't be run.
    """
    words = " ".join(argv[:4])
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise SandboxError(f"{argv[0]} can't be run: {error}.", code="podman-missing", remedy=INSTALL) from error
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise SandboxError(
            f"podman did not finish within {timeout:.0f} s ({words} …).",
            code="podman-timeout",
            state="it was ended",
            remedy="look whether another podman holds its locks; then try again",
        ) from error
    text = out.decode("utf-8", "replace")
    if process.returncode:
        reason = (err.decode("utf-8", "replace") or text).strip()[-1000:] or f"exit code {process.returncode}"
        raise SandboxError(
            f"podman failed: {reason}", code="podman-failed", remedy="planarian doctor; podman info shows what it needs"
        )
    return text


def only_version_2() -> bool:
    """Whether all control groups of this host are of version 2."""
    return os.path.exists("/sys/fs/cgroup/cgroup.controllers")


def container_arguments(
    spec: SandboxSpec, engine: Engine, root: str, binds: Mapping[str, str], stand_ins: Path, pidfile: str
) -> list[str]:
    """What ``podman run`` or ``create`` is told of a sandbox, up to its root file system; the program is to follow.

    Whatever the user's containers.conf may say otherwise and matters for what a hostile program could do is said here.

    Args:
        root: where its root file system is mounted.
        binds: what else is mounted, path inside -> path outside.
        stand_ins: a directory with the system-call filter and with read-only stand-ins for the files that podman
            would make writable on the host.
        pidfile: where the host pid of the container's init goes.
    """
    network = ["--network=none"] if spec.network is Network.NONE else ["--network=host", "--dns=none"]
    masked = ":".join(f"/proc/{name}" for name in MASKED_FILES)
    return [
        *("--replace", f"--name={container_name(spec.id)}", f"--pidfile={pidfile}"),
        *(f"--label={LABEL_SANDBOX}={spec.id}", f"--label={LABEL_LAYER}={spec.layer}"),
        *_limits(spec, engine),
        *(*network, "--no-hosts", "--hostname=sandbox", "--http-proxy=false"),
        *("--pid=private", "--ipc=private", "--uts=private", "--userns=host"),
        *(["--cgroupns=private"] if only_version_2() else []),
        *("--cap-drop=all", *(f"--cap-add={name}" for name in _CAPABILITIES)),
        *("--security-opt=no-new-privileges", "--security-opt=label=disable", f"--security-opt=mask={masked}"),
        f"--security-opt=seccomp={stand_ins / 'seccomp.json'}",
        *("--log-driver=none", "--systemd=false", "--stop-signal=KILL", "--restart=no", "--workdir=/"),
        *(f"--mount=type=bind,source={source},destination={target}" for target, source in binds.items()),
        f"--mount=type=bind,source={stand_ins / 'hostname'},destination=/etc/hostname,ro=true",
        f"--mount=type=bind,source={stand_ins / 'containerenv'},destination=/run/.containerenv,ro=true",
        *("--rootfs", root),
    ]


def _limits(spec: SandboxSpec, engine: Engine) -> list[str]:
    """Control groups with the sandbox's limits; and resource limits, since podman's own need CAP_SYS_RESOURCE.

    An ordinary user has no control groups: a resource limit bounds the number of processes in the user namespace.
    """
    # The remainder makes a large number of "unlimited", which is -1.
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1] % (1 << 63), _FILES)
    processes = min(resource.getrlimit(resource.RLIMIT_NPROC)[1] % (1 << 63), _PROCESSES - 1)
    if os.geteuid() == 0:
        memory = [f"--memory={spec.limits.memory}b"] if spec.limits.memory else []
        groups = [f"--cgroup-parent=/planarian/{spec.id}", *memory, f"--pids-limit={spec.limits.pids or -1}"]
    else:
        groups = ["--cgroups=disabled"] if engine.runtime == "crun" else []  # runc doesn't take it, and does without
        processes = min(processes, spec.limits.pids or processes)
    limits = {"nofile": files, "nproc": processes, "core": 0}
    return [*groups, *(f"--ulimit={name}={most}:{most}" for name, most in limits.items())]


def stand_ins(home: Path) -> Path:
    """Make the stand-ins for /etc/hostname and /run/.containerenv, and the system-call filter; where they lie."""
    folder = home / "cache" / "podman"
    folder.mkdir(parents=True, exist_ok=True)
    made = {"hostname": "sandbox\n", "containerenv": 'engine="podman"\n', "seccomp.json": profile()}
    for name, text in made.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="ascii") != text:
            fresh = folder / f"{name}.{os.getpid()}"
            fresh.write_text(text, encoding="ascii")
            fresh.chmod(0o444)
            fresh.rename(path)
    return folder


def other_groups(sandbox_id: str) -> tuple[str, ...]:
    """The groups that Podman and its runtime made for a sandbox in hierarchies of version 1, and leave behind."""
    return tuple(map(str, Path("/sys/fs/cgroup").glob(f"*/planarian/{sandbox_id}")))


def container_id(pid: int) -> str:
    """Podman's id of the container that a process was started in; SandboxError when it is in none."""
    with suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="ascii", errors="replace") as file:
        if found := _CONTAINER.search(file.read()):
            return found[1]
    raise SandboxError(f"Process {pid} is in no container of podman's.", code="sandbox-foreign")


def unified_group(pid: int) -> str:
    """The directory of the version 2 control group that a process is in; empty when there is none to find."""
    with suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="ascii", errors="replace") as file:
        own = next((line[3:].strip() for line in file if line.startswith("0::")), "")
        base = cgroups.hierarchies().unified
        if base and own.strip("/"):
            return os.path.join(base, own.lstrip("/"))
    return ""
