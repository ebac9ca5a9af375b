"""Rows and a file go back together: what an agent changed in PostgreSQL is part of its statepoints.

``python remote_postgresql.py DSN`` works in that database, on a table of its own; without a DSN it starts a private
PostgreSQL. A harness would put ``planarian proxy shop`` before its agent, which is the same over MCP.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from planarian_core import Planarian
from planarian_core.testing.postgresql import PrivateCluster

TABLE = """
CREATE TABLE example_customers (id int PRIMARY KEY, email text);
INSERT INTO example_customers VALUES (1, 'ann@example.org'), (2, 'Ann@example.org'), (3, 'bo@example.org')
"""
CLEANING = """
DELETE FROM example_customers a USING example_customers b WHERE lower(a.email) = lower(b.email) AND a.id > b.id
"""


def main(dsn: str, folder: Path) -> bool:
    home, project = folder / "home", folder / "project"
    home.mkdir()
    project.mkdir()
    (home / "planarian.toml").write_text(
        f"[services.shop]\nkind = 'sql'\ndialect = 'postgresql'\ndsn = {json.dumps(dsn)}\n"
    )
    with Planarian.open(home) as planarian, psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(TABLE)
        sandbox = planarian.create_sandbox(project)
        shop = planarian.remote_session(sandbox, "shop")
        with closing(shop.kind.connect()) as server:

            def execute(statement: str) -> list[dict[str, Any]]:
                """The agent's tool: effects are entered in the undo log."""
                result = shop.call("execute_sql", {"sql": statement}, server)
                if result.get("isError"):
                    raise SystemExit(f"{statement}: {result['content']}")
                return [json.loads(item["text"]) for item in result["content"]]

            def report() -> None:
                (found,) = execute("SELECT count(*) AS customers FROM example_customers")
                sandbox.run("cat > report.txt", stdin=str(found["customers"]))

            def seen() -> tuple[str, str]:
                """What is in the table, asked past Planarian, and what the report says."""
                ((count,),) = owner.execute("SELECT count(*)::text FROM example_customers").fetchall()
                return count, sandbox.run("cat report.txt").stdout

            report()
            before = planarian.snapshot(sandbox, name="before")
            execute(CLEANING)  # wrong: Ann isn't ann
            report()
            states = [seen()]
            context = planarian.rollback(sandbox, before)  # the row and the report come back
            states.append(seen())
            planarian.rollback(sandbox, str(context.safety_id))  # the rollback is rolled back
            states.append(seen())
        print(context.to_markdown())
        print("customers in the table and in the report:", *states)
        planarian.remove_sandbox(sandbox)
        owner.execute("DROP TABLE example_customers")
    return states == [("2", "2"), ("3", "3"), ("2", "2")]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        if len(sys.argv) > 1:
            sys.exit(not main(sys.argv[1], Path(place)))
        with PrivateCluster() as cluster:
            database = cluster.create_database(owner=cluster.create_role("agent"))
            sys.exit(not main(cluster.dsn(database, "agent"), Path(place)))
