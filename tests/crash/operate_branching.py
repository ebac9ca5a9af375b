"""Run one operation on a home with a branching service, for a test to kill: HOME OPERATION SANDBOX [ARGUMENT]."""

from __future__ import annotations

import sys

from planarian_core import Planarian


def main() -> None:
    home, operation, reference, *rest = sys.argv[1:]
    with Planarian.open(home) as planarian:
        sandbox = planarian.sandbox(reference)
        if operation == "send":
            session = planarian.remote_session(sandbox, "notes")
            session.call("execute_sql", {"sql": rest[0]}, session.kind.connect())
        elif operation == "snapshot":
            planarian.snapshot(sandbox)
        elif operation == "rollback":
            planarian.rollback(sandbox, rest[0], safety=rest[1] == "safety")
        elif operation == "fork":
            planarian.fork(rest[0], of=sandbox, name="fork")
        elif operation == "promote":
            planarian.promote(sandbox, force=True)
        elif operation == "remove":
            planarian.remove_sandbox(sandbox)


if __name__ == "__main__":
    main()
