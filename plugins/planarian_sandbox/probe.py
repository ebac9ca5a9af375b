"""Whether this host lets us make sandboxes, found out by making the namespaces once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from planarian_core.errors import PlanarianError
from planarian_core.interfaces import Availability
from planarian_sandbox import cgroups, seccomp
from planarian_sandbox.layout import inside_python

_TRIAL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(what, result):
    if result < 0:
        print(what + ": " + os.strerror(ctypes.get_errno()))
        sys.exit(1)
user, group = os.getuid(), os.getgid()
if user:
    call("user namespaces", libc.unshare(0x10000000))
    for name, text in (("setgroups", "deny"), ("uid_map", "0 %d 1" % user), ("gid_map", "0 %d 1" % group)):
        try:
            with open("/proc/self/" + name, "w") as file:
                file.write(text)
        except OSError as error:
            print("user namespaces: " + str(error))
            sys.exit(1)
call("mount namespaces", libc.unshare(0x20000))
call("private mounts", libc.mount(None, b"/", None, ctypes.c_ulong(16384 | 1 << 18), None))
call("mounts", libc.mount(b"tmpfs", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None))
for name in ("lower", "upper", "work", "merged"):
    os.mkdir("/tmp/" + name)
if not user:
    try:
        os.setxattr("/tmp/upper", "trusted.overlay.opaque", b"y")
    except OSError as error:
        print("trusted attributes: " + str(error))
        sys.exit(1)
options = b"lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work" + (b",userxattr" if user else b"")
call("overlay file systems", libc.mount(b"overlay", b"/tmp/merged", b"overlay", ctypes.c_ulong(0), options))
call("pid, ipc, uts and net namespaces", libc.unshare(0x20000000 | 0x8000000 | 0x4000000 | 0x40000000))
sys.stdout.flush()
child = os.fork()
if child == 0:
    call("a proc file system of its own", libc.mount(b"proc", b"/tmp/lower", b"proc", ctypes.c_ulong(14), None))
    call("user namespaces", libc.unshare(0x10000000))
    sys.stdout.flush()
    os._exit(0)
if os.waitpid(child, 0)[1] == 0:
    print("fine")
"""


def probe(home: Path) -> Availability:
    """Try it; ``reason`` names what is missing, or, when available, which limits can't be enforced."""
    if sys.platform != "linux":
        return Availability(False, "namespace: needs Linux", "use the directory backend")
    try:
        python = inside_python()
        seccomp.filters(home)
        done = subprocess.run(
            (python, "-I", "-S", "-c", _TRIAL), capture_output=True, text=True, timeout=20, check=False, env={}
        )
    except PlanarianError as error:
        return Availability(False, f"namespace: {error.message}", error.remedy)
    except (OSError, subprocess.SubprocessError) as error:
        return Availability(False, f"namespace: {error}", "")
    answer = done.stdout.strip() or done.stderr.strip()[-200:] or f"exit code {done.returncode}"
    if answer != "fine":
        return Availability(False, f"namespace: {answer}", _remedy())
    # Rootless, the number of processes is bounded by a resource limit of the user namespace.
    missing = [name for name in cgroups.hierarchies().missing() if os.geteuid() == 0 or name != "pids"]
    limits = f"no control group enforces the limit of {' and '.join(missing)}" if missing else ""
    return Availability(True, f"namespace: {limits}" if limits else "")


def _remedy() -> str:
    """The command that most likely lets an ordinary user make namespaces here."""
    if os.geteuid() == 0:
        return "run with CAP_SYS_ADMIN (in a container: --privileged), on a kernel with overlayfs"
    for name, wanted in (
        ("kernel/unprivileged_userns_clone", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "0"),
        ("user/max_user_namespaces", "15000"),
    ):
        try:
            value = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if (value != "0") != (wanted != "0"):
            return f"sudo sysctl -w {name.replace('/', '.')}={wanted}"
    return "run as root" if shutil.which("sudo") is None else "sudo planarian …"
