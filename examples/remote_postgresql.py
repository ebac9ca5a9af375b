"""Rows and a file go back together: what an agent changed in PostgreSQL is part of its statepoints.

``python remote_postgresql.py DSN`` works in that database, with a table of its own; without a DSN it starts a private
PostgreSQL. A harness would put ``planarian proxy shop`` before its agent instead of calling the tool itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from planarian_core import Planarian
from planarian_core.testing.postgresql import PrivateCluster

CONFIGURATION = """
[services.shop]
kind = "sql"
dialect = "postgresql"
dsn = {dsn}
"""
COUNT = "SELECT count(*) AS n FROM customers"


def main(dsn: str, folder: Path) -> bool:
    (folder / "home").mkdir()
    (folder / "home" / "planarian.toml").write_text(CONFIGURATION.format(dsn=json.dumps(dsn)))
    (folder / "project").mkdir()
    with Planarian.open(folder / "home") as planarian:
        sandbox = planarian.create_sandbox(folder / "project")
        session = planarian.remote_session(sandbox, "shop")
        with closing(session.kind.connect()) as target:

            def sql(statement: str) -> list[dict[str, object]]:
                result = session.call("execute_sql", {"sql": statement}, target)
                if result.get("isError"):
                    raise SystemExit(f"{statement}: {result['content']}")
                return [json.loads(content["text"]) for content in result["content"]]

            right = work(planarian, sandbox.id, sql)
        planarian.remove_sandbox(sandbox)
    return right


def work(planarian: Planarian, sandbox_id: str, sql: Callable[[str], list[dict[str, object]]]) -> bool:
    sandbox = planarian.sandbox(sandbox_id)

    def report() -> None:
        sandbox.run("cat > report.txt", stdin=str(sql(COUNT)[0]["n"]))

    def state() -> tuple[str, str]:
        return str(sql(COUNT)[0]["n"]), sandbox.run("cat report.txt").stdout

    sql("CREATE TABLE customers (id int PRIMARY KEY, email text)")
    sql("INSERT INTO customers VALUES (1, 'ann@example.org'), (2, 'Ann@example.org'), (3, 'bo@example.org')")
    report()
    before = planarian.snapshot(sandbox, name="before")
    sql("DELETE FROM customers a USING customers b WHERE lower(a.email) = lower(b.email) AND a.id > b.id")
    report()
    states = [state()]
    context = planarian.rollback(sandbox, before)  # the row and the report come back
    states.append(state())
    planarian.rollback(sandbox, context.safety_id or "")  # and the rollback is rolled back
    states.append(state())
    print("customers in the table, and in the report:", *states)
    print(context.to_markdown())
    sql("DROP TABLE customers")
    return states == [("2", "2"), ("3", "3"), ("2", "2")]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        if len(sys.argv) > 1:
            sys.exit(not main(sys.argv[1], Path(place)))
        with PrivateCluster() as cluster:
            shop = cluster.create_database(owner=cluster.create_role("agent"))
            sys.exit(not main(cluster.dsn(shop, "agent"), Path(place)))
