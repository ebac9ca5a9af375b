"""Make one call, or one operation, on a home with a key-value service, for a test to kill: HOME STORE WHAT…"""

from __future__ import annotations

import sys
from pathlib import Path

from planarian_core import Planarian
from planarian_core.testing.key_value import KeyValuePlugin, KeyValueTarget


def main() -> None:
    home, store, what, *rest = sys.argv[1:]
    with Planarian.open(home, plugins=[KeyValuePlugin(Path(store))]) as planarian:
        sandbox = planarian.sandbox()
        if what == "put":
            session = planarian.remote_session(sandbox, "store")
            session.call("put", {"key": rest[0], "value": rest[1]}, KeyValueTarget(Path(store)))
        elif what == "rollback":
            planarian.rollback(sandbox, rest[0])
        elif what == "snapshot":
            planarian.snapshot(sandbox, name=rest[0])


if __name__ == "__main__":
    main()
