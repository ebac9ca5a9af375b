"""Run as a program, first process of new namespaces: settles in the directory given and listens on a TCP port.

Everything that it holds must be captured by CRIU, so it starts itself again from its new root: the interpreter that
was started outside has files open there.
"""

import ctypes
import os
import socket
import sys
import time

_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_REC_PRIVATE = 16384 | 1 << 18
_DETACH = 2
_INSIDE = "--inside"


def settle(root: str) -> None:
    """Make ``root`` the root of this mount namespace, with a /proc of this pid namespace."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.unshare(0x20000))
    check(libc.mount(None, b"/", None, ctypes.c_ulong(_REC_PRIVATE), None))
    check(libc.mount(b"proc", os.fsencode(root) + b"/proc", b"proc", ctypes.c_ulong(_NOSUID_NODEV_NOEXEC), None))
    os.chdir(root)
    # The old root lands on top of the new one and is taken off from there (pivot_root(2), "pivot_root(".", ".")").
    check(libc.syscall({"x86_64": 155, "aarch64": 41}[os.uname().machine], b".", b"."))
    check(libc.umount2(b".", _DETACH))
    os.chdir("/")


def serve() -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("0.0.0.0", 0))  # noqa: S104  # in a network namespace without any interface
    listener.listen()
    os.closerange(0, 3)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    if sys.argv[1] == _INSIDE:
        serve()
    else:
        settle(sys.argv[1])
        os.execv(sys.executable, [*sys.orig_argv[:-1], _INSIDE])  # noqa: S606  # itself, from its new root
