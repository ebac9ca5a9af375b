"""Makes a sandbox's namespaces and becomes its init. Stand-alone, its argument: ``JSON``.

It prints the host pid of the new init, or one line ``step: error`` and exit code 1. Nothing is mounted where the host
could see it, and nothing outlives a failure. As a module it mounts the files for an image of the processes that is to
be restored (:func:`mount_files`).

JSON (see :mod:`planarian_sandbox.launch` for the meaning): runtime (who waits for the outcome), rootless, root, base,
layer, workspace, origin, access_times, tops, cgroups, own_network, capabilities, processes, filters, init, env, empty,
hostname.
"""

# ruff: noqa: SIM105  # contextlib and typing take longer to import than all that is done here
from __future__ import annotations

import _socket
import _thread
import ctypes
import fcntl
import json
import os
import resource
import stat
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NEWTIME, NEWNS, NEWUTS, NEWIPC = 0x80, 0x20000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, NOATIME, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 1024, 4096, 16384, 1 << 18
MASKED_FILES = (
    *("kcore", "keys", "timer_list", "latency_stats", "sched_debug", "sysrq-trigger", "kallsyms", "kmsg"),
    *("kpageflags", "kpagecount", "kpagecgroup", "vmallocinfo", "slabinfo"),
)
"""Of /proc, where they are readable inside. ``iomem`` and ``ioports`` show a sandbox's root nothing but zeros."""
MASKED_DIRECTORIES = ("acpi", "scsi")
NODES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = (
    ("pts/ptmx", "ptmx"),
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
)
LIBC = ctypes.CDLL(None, use_errno=True)


class Progress(_thread._local):
    """What the calling thread is doing, for the error message."""

    step = "begin"


PROGRESS = Progress()


def step(name: str) -> None:
    PROGRESS.step = name


def call(function: Any, *arguments: Any) -> int:
    """Call libc; OSError when it returns a negative number."""
    result = int(function(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    call(LIBC.mount, encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])


def unshare(flags: int) -> None:
    call(LIBC.unshare, flags)


def private_mounts() -> None:
    unshare(NEWNS)
    mount(None, "/", None, REC | PRIVATE)


def escaped(text: str) -> str:
    """A path as a value in overlay's options."""
    return text.replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")


def directory(root: str, path: str, create: bool = False) -> str:
    """A path to the directory ``path`` below ``root`` that no symlink inside can turn elsewhere (/proc/self/fd/N).

    It holds a descriptor until :func:`release`.
    """
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    for part in path.strip("/").split("/"):
        try:
            if create:
                try:
                    os.mkdir(part, 0o755, dir_fd=descriptor)
                except FileExistsError:
                    pass
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return f"/proc/self/fd/{descriptor}"


def release(place: str) -> None:
    """Close what :func:`directory` holds."""
    os.close(int(place.rpartition("/")[2]))


def join_cgroups(paths: list[str]) -> None:
    for path in paths:
        step(f"join control group {path}")
        with open(os.path.join(path, "cgroup.procs"), "w") as file:
            file.write("0")


def mount_files(config: dict[str, Any], beside: dict[str, str]) -> None:
    """Root: the overlay over the host's root, or another (``base``); the workspace's, over the copy of it; and /dev,
    the one place where device nodes work. The last two at their places below the root, or at those in ``beside``. No
    access times, so that reading is no change, unless the layer is from when there were.

    The caller has a mount namespace to itself, and with it a working directory, which is changed.
    """
    root = config["root"]
    options = "index=on,nfs_export=on,redirect_dir=on"
    flags = NODEV if config["access_times"] else NODEV | NOATIME
    step("mount the overlay")
    os.chdir(config["layer"])
    mount(
        "overlay", root, "overlay", flags, f"lowerdir={escaped(config['base'])},upperdir=upper,workdir=work,{options}"
    )
    step("mount the workspace's overlay")
    target = beside.get("workspace") or directory(root, config["workspace"], create=True)
    data = f"lowerdir={escaped(config['origin'])},upperdir=workspace/upper,workdir=workspace/work,{options}"
    mount("overlay", target, "overlay", flags, data)
    step("mount /dev")
    source = directory(root, "dev")
    try:
        mount(source, beside.get("dev") or source, None, BIND)
    finally:
        release(source)
    mount(None, beside.get("dev") or directory(root, "dev"), None, BIND | REMOUNT)


def identity_user_namespace() -> None:
    """Enter a user namespace where everybody keeps their ids; its map has to be written from outside."""
    step("make the user namespace")
    parent = os.getpid()
    ready, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        status = 1
        try:
            os.close(go)
            if os.read(ready, 1):
                for name in ("uid_map", "gid_map"):
                    with open(f"/proc/{parent}/{name}", "w") as file:
                        file.write("0 0 4294967295")
                status = 0
        finally:
            os._exit(status)
    try:
        unshare(NEWUSER)
        os.write(go, b"x")
    finally:
        os.close(ready)
        os.close(go)
        status = os.waitpid(helper, 0)[1]
    if status:
        raise OSError(1, "the id map was refused")
    os.setgid(0)
    os.setuid(0)


def single_user_namespace() -> None:
    """Rootless: the caller is root inside, nobody else exists."""
    step("make the user namespace")
    user, group = os.getuid(), os.getgid()
    unshare(NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    os.setgid(0)
    os.setuid(0)


def assemble_rootless(config: dict[str, Any]) -> None:
    """A tmpfs with an overlay per top-level directory, the layer's fresh ones and bound device nodes."""
    root, layer = config["root"], config["layer"]
    step("mount the root tmpfs")
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "mode=755")
    os.chdir(layer)
    for name in os.listdir("/"):
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{root}/{name}")
    for name in config["tops"]:
        step(f"mount the overlay of /{name}")
        os.mkdir(f"{root}/{name}")
        for part in ("upper", "work"):
            os.makedirs(f"{part}/{name}", exist_ok=True)
        part = escaped(name)
        data = f"lowerdir=/{part},upperdir=upper/{part},workdir=work/{part},userxattr"
        mount("overlay", f"{root}/{name}", "overlay", NOATIME, data)
    for name in ("tmp", "root", "run", "mnt"):
        step(f"bind /{name}")
        os.mkdir(f"{root}/{name}")
        mount(directory("upper", name), f"{root}/{name}", None, BIND)
    step("mount the workspace's overlay")
    target = directory(root, config["workspace"], create=True)
    data = f"lowerdir={escaped(config['origin'])},upperdir=workspace/upper,workdir=workspace/work,userxattr"
    mount("overlay", target, "overlay", NOATIME, data)
    step("bind device nodes")
    for name in ("dev", "proc", "sys"):
        os.mkdir(f"{root}/{name}")
    mount("tmpfs", f"{root}/dev", "tmpfs", NOSUID | NOEXEC, "mode=755,size=64m")
    for name in NODES:
        os.close(os.open(f"{root}/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        mount(f"/dev/{name}", f"{root}/dev/{name}", None, BIND)
    for target, name in LINKS:
        os.symlink(target, f"{root}/dev/{name}")
    for name in ("shm", "pts"):
        os.mkdir(f"{root}/dev/{name}")
    mount(directory("upper/dev", "shm", create=True), f"{root}/dev/shm", None, BIND)  # noqa: S108  # as everywhere


def seal_root(root: str) -> None:
    """Rootless, at the end: the root itself is no part of the layer; what were written there would be lost."""
    step("make the root read-only")
    mount(None, root, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)


def kernel_file_systems(config: dict[str, Any]) -> None:
    """Terminals and /proc of the sandbox's own, with what reaches beyond it masked."""
    root = config["root"]
    step("mount /dev/pts")
    mount("devpts", directory(root, "dev/pts"), "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    step("mount /proc")
    mount("proc", directory(root, "proc"), "proc", NOSUID | NODEV | NOEXEC)
    proc = directory(root, "proc")
    null = os.open("null", os.O_PATH | os.O_NOFOLLOW, dir_fd=int(directory(root, "dev").rpartition("/")[2]))
    if not stat.S_ISCHR(os.fstat(null).st_mode):
        raise OSError(22, "/dev/null is not a device")
    for name in MASKED_FILES:
        step(f"mask /proc/{name}")
        if os.path.exists(f"{proc}/{name}"):
            mount(f"/proc/self/fd/{null}", f"{proc}/{name}", None, BIND)
            # Without devices, as the root is: CRIU makes such a mount from the root's, where it can't allow them again.
            mount(None, f"{proc}/{name}", None, BIND | REMOUNT | NOSUID | NODEV)
    for name in MASKED_DIRECTORIES:
        step(f"mask /proc/{name}")
        if os.path.isdir(f"{proc}/{name}"):
            mount(directory(root, config["empty"]), f"{proc}/{name}", None, BIND)
            mount(None, f"{proc}/{name}", None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)
    step("make /proc read-only")  # no process's memory can be written through it, no setting of the kernel changed
    mount(None, proc, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV | NOEXEC)


def change_root(root: str) -> None:
    """Make ``root`` the root; the host's is gone from here on."""
    step("change the root")
    os.chdir(root)
    call(LIBC.pivot_root, b".", b".")
    call(LIBC.umount2, b".", 2)
    os.chdir("/")


def loopback_up() -> None:
    step("bring the loopback interface up")
    endpoint = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(endpoint.fileno(), 0x8914, struct.pack("16sh14x", b"lo", 0x49))
    endpoint.close()


def load_filters(paths: list[str]) -> list[tuple[bytes, Any]]:
    """Read system-call filters while the host's files are still there."""
    programs = []
    for path in paths:
        step("read the system-call filter")
        with open(path, "rb") as file:
            code = file.read()
        kept = ctypes.create_string_buffer(code, len(code))
        programs.append((struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(kept)), kept))
    return programs


def limit_processes(most: int) -> None:
    """Without a control group for it: a resource limit, which counts the processes of this user namespace alone."""
    step("limit the number of processes")
    if most:
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def harden(capabilities: list[int], filters: list[tuple[bytes, Any]]) -> None:
    step("drop capabilities")
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    mask = 0
    for capability in range(last + 1):
        if capability in capabilities:
            mask |= 1 << capability
        else:
            call(LIBC.prctl, 24, capability, 0, 0, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("Ii", 0x20080522, 0)
    call(LIBC.capset, header, struct.pack("6I", low, low, 0, high, high, 0))
    call(LIBC.prctl, 38, 1, 0, 0, 0)
    step("install the system-call filter")
    for program, _ in filters:
        call(LIBC.prctl, 22, 2, program, 0, 0)


def quiet_descriptors(report: int) -> None:
    """0 to 2 on the sandbox's own /dev/null, ``report`` closed by exec, everything else closed."""
    step("close descriptors")
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.set_inheritable(report, False)
    os.closerange(3, report)
    os.closerange(report + 1, max(4096, os.sysconf("SC_OPEN_MAX")))


def become_init(config: dict[str, Any], report: int) -> None:
    """The child: from here to exec of the init."""
    os.setsid()
    os.umask(0o022)
    filters = load_filters(config["filters"])
    step("make mounts private")
    mount(None, "/", None, REC | PRIVATE)
    if config["rootless"]:
        assemble_rootless(config)
    else:
        step("bind the root")
        mount(config["root"], config["root"], None, BIND | REC)
    kernel_file_systems(config)
    if config["rootless"]:
        seal_root(config["root"])
    change_root(config["root"])
    if config["own_network"]:
        loopback_up()
    step("set the host name")
    name = os.fsencode(config["hostname"])
    call(LIBC.sethostname, name, len(name))
    quiet_descriptors(report)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    limit_processes(config["processes"])
    harden(config["capabilities"], filters)
    step(f"run {config['init'][0]}")
    os.execve(config["init"][0], config["init"], config["env"])  # noqa: S606  # an argument list


def end_with(parent: int) -> None:
    """Be killed together with the process ``parent``, which began this one and waits for the outcome."""
    call(LIBC.prctl, 1, 9, 0, 0, 0)
    if os.getppid() != parent:
        raise OSError(3, "what began it has ended")


def start(config: dict[str, Any]) -> int:
    end_with(config["runtime"])
    join_cgroups(config["cgroups"])
    LIBC.syscall(250, 1, None) if os.uname().machine == "x86_64" else LIBC.syscall(219, 1, None)  # a keyring of its own
    if config["rootless"]:
        single_user_namespace()
    else:
        step("make a mount namespace")
        private_mounts()
        mount_files(config, {})
        identity_user_namespace()
    step("make the namespaces")
    unshare(NEWNS | NEWPID | NEWIPC | NEWUTS | (NEWNET if config["own_network"] else 0))
    try:
        unshare(NEWTIME)
    except OSError:
        pass  # a kernel without time namespaces
    outcome, report = os.pipe()
    child = os.fork()
    if child == 0:
        guarded(lambda: become_init(config, report), report)
    os.close(report)
    with open(outcome, "rb") as file:
        error = file.read(4000)
    if error:
        os.waitpid(child, 0)
        print(error.decode(errors="replace"))
        return 1
    print(child)
    return 0


def guarded(action: Callable[[], None], report: int) -> None:
    try:
        action()
    except BaseException as error:
        os.write(report, f"{PROGRESS.step}: {error}".encode(errors="replace"))
    os._exit(1)


def main() -> int:
    try:
        return start(json.loads(sys.argv[1]))
    except OSError as error:
        print(f"{PROGRESS.step}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
