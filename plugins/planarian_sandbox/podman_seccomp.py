"""The namespace sandbox's system-call filters (:mod:`planarian_sandbox.seccomp`) as one profile for an OCI runtime.

Podman's own allows user namespaces, in which a program has capabilities over more of the kernel than it should reach.
"""

from __future__ import annotations

import errno
import json
import platform
from typing import Any

from planarian_sandbox.seccomp import NAMESPACE_FLAGS, PERSONALITIES, UNCAPTURABLE, allowed

_NEW_USER, _NEW_PID = 0x10000000, 0x20000000
_AF_ALG, _AF_VSOCK = 38, 40
_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


def profile() -> str:
    """The profile as JSON: what isn't named answers ENOSYS, and so does whatever isn't the machine's own call."""
    machine = platform.machine()
    special = {"clone", "unshare", "socket", "personality", *UNCAPTURABLE}
    rules = [
        _rule([name for name in allowed() if name not in special]),
        *(_rule(["personality"], _argument(0, "EQ", persona)) for persona in PERSONALITIES),
        _rule(["clone"], _argument(0, "MASKED_EQ", NAMESPACE_FLAGS, 0)),
        _rule(["unshare"], _argument(0, "MASKED_EQ", _NEW_USER | _NEW_PID, 0)),
        *(
            _rule(["clone", "unshare"], _argument(0, "MASKED_EQ", flag, flag), error=errno.EPERM)
            for flag in (_NEW_USER, _NEW_PID)
        ),
        *(_rule(["socket"], _argument(0, "EQ", family), error=errno.EAFNOSUPPORT) for family in (_AF_ALG, _AF_VSOCK)),
        _rule(["socket"], _argument(0, "LT", _AF_ALG)),
        _rule(["socket"], _argument(0, "EQ", _AF_ALG + 1)),
        _rule(["socket"], _argument(0, "GT", _AF_VSOCK)),
    ]
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": errno.ENOSYS,
            "architectures": [_ARCHITECTURES.get(machine, f"SCMP_ARCH_{machine.upper()}")],
            "syscalls": rules,
        }
    )


def _rule(names: list[str], *arguments: dict[str, Any], error: int = 0) -> dict[str, Any]:
    """Allow these calls, or answer ``error``, where all ``arguments`` fit."""
    action = {"action": "SCMP_ACT_ERRNO", "errnoRet": error} if error else {"action": "SCMP_ACT_ALLOW"}
    return {"names": names, **action, "args": list(arguments)}


def _argument(index: int, operator: str, value: int, second: int = 0) -> dict[str, Any]:
    return {"index": index, "op": f"SCMP_CMP_{operator}", "value": value, "valueTwo": second}
