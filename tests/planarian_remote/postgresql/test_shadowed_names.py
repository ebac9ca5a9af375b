"""Operators and functions that shadow the server's own, in a role's search path: the undo data's owner runs none."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from planarian_core.testing.postgresql import PrivateCluster
from tests.planarian_remote.postgresql.conftest import Agent, Observer

pytestmark = pytest.mark.needs("postgresql")

_OPERATORS = {
    "=": ("int8, int8", "int8, int4", "text, text", "oid, oid", "name, text", '"char", "char"'),
    "<>": ("int4, int4", "int8, int4", "int8, int8", "text, text"),
    ">": ("int8, int8", "int8, int4", "int4, int4", "int2, int2"),
    ">=": ("oid, oid",),
    "-": ("int8, int8",),
    "+": ("int8, int8",),
    "||": ("text, text",),
}
_FUNCTIONS = {
    "nextval(regclass)": "int8",
    "left(text, int4)": "text",
    "cardinality(anyarray)": "int4",
    "current_setting(text)": "text",
    "current_setting(text, bool)": "text",
    "set_config(text, text, bool)": "text",
    "starts_with(text, text)": "bool",
    "row_to_json(record)": "json",
}


def _shadow(signature: str, result: str, owner: str, really: str) -> str:
    """A function that does what the server's own does, but must not be got to by whoever owns the undo data."""
    return (
        f"CREATE FUNCTION shadow.{signature} RETURNS {result} LANGUAGE plpgsql SET search_path = pg_catalog AS $$ "
        f"BEGIN IF current_user = '{owner}' THEN RAISE EXCEPTION 'shadow'; END IF; RETURN {really}; END $$"
    )


def _shadows(owner: str) -> list[str]:
    made = ["CREATE SCHEMA shadow", "GRANT USAGE ON SCHEMA shadow TO PUBLIC"]
    for place, (operator, kinds) in enumerate((o, kinds) for o, many in _OPERATORS.items() for kinds in many):
        left, right = kinds.split(", ")
        result = "bool" if operator in ("=", "<>", ">", ">=") else left
        made += [
            _shadow(f"op{place}({kinds})", result, owner, f"$1 {operator} $2"),
            f"CREATE OPERATOR shadow.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = shadow.op{place})",
        ]
    for signature, result in _FUNCTIONS.items():
        name, _, arguments = signature.partition("(")
        given = ", ".join(f"${n + 1}" for n in range(arguments.count(",") + 1))
        made.append(_shadow(signature, result, owner, f"{name}({given})"))
    return made


def _work(agent: Agent) -> None:
    for _ in range(2):  # the second time on the quick way
        agent("INSERT INTO t VALUES (9, 9)")
        agent("UPDATE t SET n = 7")
        agent("UPDATE t SET n = abs(8) RETURNING *")
        agent("DELETE FROM t WHERE t.id = 9")


@pytest.mark.parametrize("known", [True, False], ids=["after its tables were looked at", "before"])
def test_no_function_of_the_owner_s_runs_what_shadows_the_server_s_own(
    make_agent: Callable[..., Agent], postgresql: PrivateCluster, database: str, other: Observer, known: bool
) -> None:
    role, owner = f"user_{database}", postgresql.dsn(database, "agent")
    postgresql.create_role(role)
    other.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 5) i",
        f"GRANT ALL ON t TO {role}",
    )
    if known:
        _work(make_agent("sb-0", role, setup_dsn=owner))
    before = other.text("t")
    other.run(*_shadows("agent"))
    path = "shadow, public, pg_catalog"
    with postgresql.connect(database) as superuser:
        superuser.execute(f"ALTER ROLE {role} IN DATABASE {database} SET search_path = {path}".encode())
    with pytest.raises(psycopg.errors.RaiseException, match="shadow"):  # what it would be if one did
        other.run("BEGIN", f"SET LOCAL search_path = {path}", "SELECT 1::int8 = 1::int8")
    other.run("ROLLBACK")
    agent = make_agent("sb-1", role, setup_dsn=owner)
    _work(agent)
    agent.undo()
    assert other.text("t") == before
