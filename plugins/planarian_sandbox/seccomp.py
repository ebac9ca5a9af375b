"""System-call filters, compiled once by libseccomp and cached in the home as BPF.

The first allows what ordinary programs use, in the spirit of the container engines' default; everything else answers
ENOSYS, so that programs fall back as on an older kernel. The second refuses what can't be captured in an image of
the processes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from planarian_core.errors import BackendUnavailable

_VERSION = 2


def allowed() -> tuple[str, ...]:
    """Names of the system calls that the first filter allows whatever their arguments."""
    text = Path(__file__).with_name("system_calls.txt").read_text(encoding="ascii")
    return tuple(name for line in text.splitlines() if not line.startswith("#") for name in line.split())


NAMESPACE_FLAGS = 0x7E020000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0x0040000, 0xFFFFFFFF)  # the last but one: no randomised addresses
UNCAPTURABLE = (
    "io_uring_setup",
    "landlock_create_ruleset",
    "userfaultfd",
    "perf_event_open",
    "bpf",
    "clone3",
)


def filters(home: Path) -> tuple[Path, ...]:
    """Paths of the compiled filters, in the order in which to install them; compiled at the first use.

    Raises:
        BackendUnavailable: libseccomp or its Python binding is missing.
    """
    key = hashlib.sha256(repr((_VERSION, allowed(), UNCAPTURABLE)).encode()).hexdigest()[:12]
    names = [f"filter-{kind}-{platform.machine()}-{key}.bpf" for kind in ("allow", "refuse")]
    cache = home / "cache"
    paths = tuple(cache / name for name in names)
    if not all(path.is_file() for path in paths):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, compiled in zip(paths, _compile(), strict=True):
            _store(path, compiled)
    return paths


def _store(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # 0600
    with open(descriptor, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def _compile() -> tuple[bytes, bytes]:
    try:
        import pyseccomp  # type: ignore[import-untyped]  # it has no types
    except (ImportError, RuntimeError, OSError) as error:
        raise BackendUnavailable(
            f"System-call filters can't be compiled: {error}.",
            code="seccomp-missing",
            remedy="apt-get install libseccomp2 && pip install pyseccomp",
        ) from error
    return _allow_list(pyseccomp), _refusals(pyseccomp)


def _export(built: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        built.export_bpf(file)
        file.seek(0)
        return file.read()


def _allow_list(lib: Any) -> bytes:
    built = lib.SyscallFilter(defaction=lib.ERRNO(errno.ENOSYS))
    # The machine's own calls only: a 32-bit program's socketcall hides the address family from any filter.
    built.set_attr(lib.Attr.ACT_BADARCH, lib.ERRNO(errno.ENOSYS))
    for name in allowed():
        _add(built, lib.ALLOW, name)
    for persona in PERSONALITIES:
        _add(built, lib.ALLOW, "personality", lib.Arg(0, lib.EQ, persona))
    _add(built, lib.ALLOW, "clone", lib.Arg(0, lib.MASKED_EQ, NAMESPACE_FLAGS, 0))
    # Every family but AF_VSOCK, which reaches the hypervisor.
    _add(built, lib.ALLOW, "socket", lib.Arg(0, lib.LT, 40))
    _add(built, lib.ALLOW, "socket", lib.Arg(0, lib.GT, 40))
    return _export(built)


def _refusals(lib: Any) -> bytes:
    built = lib.SyscallFilter(defaction=lib.ALLOW)
    built.set_attr(lib.Attr.ACT_BADARCH, lib.ALLOW)
    _add(built, lib.ERRNO(errno.EPROTONOSUPPORT), "socket", lib.Arg(2, lib.EQ, 262))  # MPTCP; programs fall back
    for family in (38, 40):  # AF_ALG, AF_VSOCK
        _add(built, lib.ERRNO(errno.EAFNOSUPPORT), "socket", lib.Arg(0, lib.EQ, family))
    for flag in (0x10000000, 0x20000000):  # nested user and pid namespaces
        for name in ("clone", "unshare"):
            _add(built, lib.ERRNO(errno.EPERM), name, lib.Arg(0, lib.MASKED_EQ, flag, flag))
    for name in UNCAPTURABLE:
        _add(built, lib.ERRNO(errno.ENOSYS), name)
    return _export(built)


def _add(built: Any, action: Any, name: str, *arguments: Any) -> None:
    try:
        built.add_rule(action, name, *arguments)
    except (ValueError, OSError):
        # This libseccomp or architecture doesn't know the call. For an allowance it is refused then; a refusal of a
        # call that libseccomp can't name is covered by the first filter, which doesn't allow it either.
        return
