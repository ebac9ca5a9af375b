"""Run one operation on a home in a process of its own, for a test to kill: HOME OPERATION SANDBOX [ARGUMENT]."""

from __future__ import annotations

import sys

from planarian_core import Planarian


def main() -> None:
    home, operation, reference, *rest = sys.argv[1:]
    with Planarian.open(home) as planarian:
        if operation == "create":
            workspace, sandbox, process, filesystem = rest
            planarian.create_sandbox(workspace, name=reference, sandbox=sandbox, filesystem=filesystem, process=process)
            return
        target = planarian.sandbox(reference)
        if operation == "snapshot":
            planarian.snapshot(target, name=rest[0])
        elif operation == "remove":
            planarian.remove_sandbox(target)
        elif operation == "rollback":
            planarian.rollback(target, rest[0])
        elif operation.startswith("warm-"):
            planarian.keep_warm(rest[0], of=target, wait=True)
            assert planarian.standbys.copies(), "no copy could be made"
            if operation == "warm-rollback":
                planarian.rollback(target, rest[0])
            else:
                planarian.fork(rest[0], of=target, name="fork")
        elif operation == "fork":
            planarian.fork(rest[0], of=target, name="fork")


if __name__ == "__main__":
    main()
