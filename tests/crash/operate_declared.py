"""Make one call of a declared service, or one rollback, for a test to kill: HOME WHAT ARGUMENTS."""

from __future__ import annotations

import json
import sys

from planarian_core import Planarian
from planarian_remote.mcp_target import open_target


def main() -> None:
    home, what, given = sys.argv[1:]
    with Planarian.open(home) as planarian:
        sandbox = planarian.sandbox()
        if what == "rollback":
            planarian.rollback(sandbox, given)
            return
        session = planarian.remote_session(sandbox, what)
        assert session.kind.server is not None
        target = open_target(session.kind.server)
        tool, arguments = json.loads(given)
        session.call(tool, arguments, target)
        target.close()


if __name__ == "__main__":
    main()
