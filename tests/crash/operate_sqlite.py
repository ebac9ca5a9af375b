"""One call of the SQLite service ``notes``, or one operation, on a home, for a test to kill: HOME WHAT ARGUMENT."""

from __future__ import annotations

import sys

from planarian_core import Planarian


def main() -> None:
    home, what, argument = sys.argv[1:]
    with Planarian.open(home) as planarian:
        sandbox = planarian.sandbox()
        if what == "call":
            session = planarian.remote_session(sandbox, "notes")
            session.call("execute_sql", {"sql": argument}, session.kind.connect())
        elif what == "rollback":
            planarian.rollback(sandbox, argument)
        elif what == "snapshot":
            planarian.snapshot(sandbox, name=argument)


if __name__ == "__main__":
    main()
