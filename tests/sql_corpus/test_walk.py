"""The corpus run finds nothing in a small script, and finds what a broken undo leaves: its negative control."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planarian_core.testing.postgresql import PrivateCluster

from .control import CONTROLS
from .corpus import BASE, Server

pytestmark = pytest.mark.needs("postgresql")
SCRIPT = """
CREATE TABLE t (a int PRIMARY KEY, b text);
INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z'), (4, NULL);
UPDATE t SET a = a + 10 WHERE a > 1;
UPDATE t SET b = 'u' WHERE a = 9;
DELETE FROM t WHERE b = 'x';
INSERT INTO t VALUES (3, 'again');
INSERT INTO nowhere VALUES (1);
SELECT count(*) FROM t;
BEGIN;
DELETE FROM t;
ROLLBACK;
COPY t FROM stdin;
10	ten
\\.
CREATE TEMPORARY TABLE ours (a int);
INSERT INTO ours VALUES (1);
DELETE FROM t WHERE a = 10 RETURNING b;
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("regress")
    (folder / "sql").mkdir()
    for name in BASE:
        (folder / "sql" / f"{name}.sql").write_text("")
    (folder / "sql" / "small.sql").write_text(SCRIPT)
    with PrivateCluster(fsync=False, settings={"autovacuum": "off"}) as cluster:
        yield Server(cluster, folder)


@pytest.mark.parametrize(
    "through", ["direct", *(pytest.param(name, marks=pytest.mark.needs("npm")) for name in ("toolbox", "proxy"))]
)
def test_a_small_script(server: Server, through: str) -> None:
    tally = server.walk("small", through)
    assert [str(violation) for violation in tally.violations] == []
    assert tally.statements == 15
    assert tally.exact["INSERT"] + tally.exact["UPDATE"] + tally.exact["DELETE"] == 6
    assert tally.reads == 1
    assert tally.bare["in a transaction block"] == 2
    assert not tally.turned_away
    assert tally.share == 1
    assert "violations 0" in tally.report()


@pytest.mark.parametrize("control", CONTROLS)
def test_a_broken_undo_is_found(server: Server, control: str) -> None:
    tally = server.walk("small", control=control)
    broken = [v for v in tally.violations if v.broken == "not undone exactly"]
    assert {v.statement.split()[0] for v in broken} >= {"UPDATE", "DELETE"}
    assert all(violation.differences for violation in broken)
    if control == "nothing":
        assert len(broken) == tally.changed
    assert not tally.passed
