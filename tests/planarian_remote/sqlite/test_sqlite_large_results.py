"""Results that memory has no room for are refused while they come, and nothing was changed."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from planarian_core.errors import RemoteError
from planarian_core.model import EffectState
from planarian_core.testing.sqlite_service import ServedDatabase

_ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n, 'text' FROM c"
_MOST = 400_000
"""KiB that the process may grow by; the results would take several times that."""


@pytest.fixture
def served(make_database: Callable[..., ServedDatabase]) -> ServedDatabase:
    return make_database(max_result=1_000_000)


def _refused(served: ServedDatabase, sql: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RemoteError, match=r"(gives|works on a value of) more than 976\.6 KiB") as caught:
        served.call(sql)
    assert (caught.value.code, caught.value.state) == ("call-refused", "nothing was changed")
    assert "LIMIT" in caught.value.remedy
    assert "max_result" in caught.value.remedy
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MOST


@pytest.mark.parametrize(
    "sql",
    [
        _ENDLESS,
        "SELECT hex(zeroblob(400000000))",
        "SELECT a.n FROM (SELECT value AS n FROM wide) a, wide b, wide c",
        f"SELECT 1 AS \"{'long' * 1000}\" FROM wide, wide",  # noqa: S608
    ],
)  # fmt: skip
def test_a_read_that_gives_too_much(served: ServedDatabase, sql: str) -> None:
    served.script("CREATE TABLE wide (value)")
    served.script("INSERT INTO wide SELECT 'some text' FROM (VALUES (1),(2),(3),(4),(5),(6)), (VALUES (1),(2),(3),(4))")
    served.script("INSERT INTO wide SELECT w.value FROM wide w, (VALUES (1),(2),(3),(4)) v")
    _refused(served, sql)
    served.call("SELECT count(*) FROM wide")
    assert served.effects() == []


def test_what_is_just_short_enough_comes_whole(served: ServedDatabase) -> None:
    rows = served.call("SELECT hex(zeroblob(499000))")["structuredContent"]["rows"]
    assert rows == [["00" * 499_000]]


def test_a_change_that_gives_too_much_back_is_not_made(served: ServedDatabase) -> None:
    served.script("CREATE TABLE t (a)")
    before = served.contents()
    _refused(served, "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 150000) "
             "INSERT INTO t SELECT n FROM c RETURNING a, 'some text'")  # fmt: skip
    assert served.contents() == before
    assert served.effects()[-1].state is EffectState.VOID


def test_large_values_can_still_be_changed(served: ServedDatabase) -> None:
    """The limit is one of results, not of what is kept to undo a change."""
    served.script("CREATE TABLE t (a)")
    served.script("INSERT INTO t VALUES (hex(zeroblob(2000000)))")
    with pytest.raises(RemoteError, match="works on a value"):
        served.call("SELECT length(a) FROM t")
    position, before = served.position(), served.contents()
    served.change("UPDATE t SET a = a || 'more'")
    served.go(position)
    assert served.contents() == before
