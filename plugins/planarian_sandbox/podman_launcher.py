"""Runs podman where a sandbox's files are mounted. A process of its own, its argument: ``JSON``.

It makes a mount namespace, mounts the files in it (:func:`launcher.mount_files`; for an ordinary user, in whose user
namespace it is, :func:`launcher.assemble_rootless`), has podman start the container, and takes the mounts away again:
from then on the container's own processes alone hold them, so that they end with it. What podman leaves behind (conmon)
would keep them otherwise; and the pools of all homes, of whose mounts a new namespace has copies. Nothing is mounted
where the host could see it.

It ends with podman's exit code and output. An error of its own is one line ``step: error`` and exit code 1.

JSON: runtime (the process that waits for the outcome), files (see :func:`planarian_sandbox.launch.files`), beside
(where the workspace and /dev are mounted for podman), group, podman (argument lists, the next one run where the one
before succeeded), pidfile (where it puts the host pid of a container's init that it has started; empty in a restore).
"""

from __future__ import annotations

import json
import os
import sys

from planarian_sandbox import launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DETACH = 2
REGISTRY = "registry.sqlite"
"""What is in each home."""


def start(config: dict[str, Any]) -> int:
    launcher.end_with(config["runtime"])
    if config["group"]:
        launcher.join_cgroups([config["group"]])
    launcher.step("make a mount namespace")
    launcher.private_mounts()
    files = config["files"]
    if files["rootless"]:
        launcher.assemble_rootless(files)
        launcher.mount(f"{files['root']}/dev", config["beside"]["dev"], None, launcher.BIND | launcher.REC)
        launcher.seal_root(files["root"])
    else:
        launcher.mount_files(files, config["beside"])
        launcher.step("open /dev/shm in the layer")  # podman will follow its path, so it must be no link
        launcher.release(launcher.directory(config["beside"]["dev"], "shm", create=True))
    os.chdir("/")
    launcher.step("run podman")
    code = next(filter(None, (wait(argv) for argv in config["podman"])), 0)
    if config["pidfile"] and not code:
        seal_proc(config["pidfile"])
    launcher.step("take the mounts away")
    for place in (files["root"], *config["beside"].values()):
        launcher.call(launcher.LIBC.umount2, os.fsencode(place), DETACH)
    for point in reversed(mounted_in_homes()):
        launcher.LIBC.umount2(os.fsencode(point), DETACH)  # fails where another mount hides it
    return code


def seal_proc(pidfile: str) -> None:
    """Make the new container's /proc read-only, as a namespace sandbox's is: through it a program could change others'
    memory, and the kernel's marks of what was written. Nothing but the init has run in it yet.
    """
    launcher.step("make the container's /proc read-only")
    with open(pidfile) as file:
        container = int(file.read())
    pid = os.fork()
    if pid == 0:
        launcher.guarded(lambda: _remount_proc(container), 1)
    if os.waitpid(pid, 0)[1]:
        raise OSError(1, "it can't be mounted again")


def _remount_proc(container: int) -> None:
    namespace = os.open(f"/proc/{container}/ns/mnt", os.O_RDONLY)
    launcher.call(launcher.LIBC.setns, namespace, launcher.NEWNS)
    flags = launcher.BIND | launcher.REMOUNT | launcher.RDONLY | launcher.NOSUID | launcher.NODEV | launcher.NOEXEC
    launcher.mount(None, "/proc", None, flags)
    os._exit(0)


def mounted_in_homes() -> list[str]:
    """What is mounted in homes of Planarian's, as far as this namespace knows; what came last is last."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [plain(line.split()[4]) for line in file]
    return [point for point in points if any(os.path.lexists(f"{home}/{REGISTRY}") for home in above(point))]


def plain(text: str) -> str:
    """A path as it stands in ``mountinfo``, which writes white space and backslashes as octal numbers."""
    first, *others = text.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in others)


def above(path: str) -> list[str]:
    """The directories that a path lies in."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def wait(argv: list[str]) -> int:
    """Run it, killed together with this process; its exit code."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            launcher.end_with(parent)
            os.execv(argv[0], argv)  # noqa: S606  # an argument list
        except OSError as error:
            print(f"run {argv[0]}: {error}", flush=True)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    try:
        return start(json.loads(sys.argv[1]))
    except OSError as error:
        print(f"{launcher.PROGRESS.step}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
