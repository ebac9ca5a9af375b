"""Another writer's newer change is never overwritten: a conflict with the rows, or left alone by a named policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planarian_core.errors import CompensationConflict, CompensationError
from planarian_core.model import EffectState
from planarian_core.testing.sqlite_service import SANDBOX, ServedDatabase

_SCHEMA = "CREATE TABLE t (a INTEGER PRIMARY KEY, b UNIQUE, n); INSERT INTO t VALUES (1, 'one', 10), (2, 'two', 20)"

_MEDDLING = [
    ("UPDATE t SET n = n + 1", "UPDATE t SET n = 99 WHERE a = 2", r"t \(2\) is now \(2, 'two', 99\)"),
    ("UPDATE t SET n = n + 1", "DELETE FROM t WHERE a = 2", r"t \(2\) is gone"),
    ("UPDATE t SET n = 1.0", "UPDATE t SET n = 1 WHERE a = 1", r"t \(1\) is now \(1, 'one', 1\)"),
    ("DELETE FROM t WHERE a = 2", "INSERT INTO t VALUES (2, 'new', 0)", r"t \(2\) is there again as \(2, 'new', 0\)"),
    ("DELETE FROM t WHERE a = 2", "INSERT INTO t VALUES (9, 'two', 0)", r"is taken: UNIQUE constraint failed: t.b"),
    ("UPDATE t SET b = 'x' WHERE a = 1", "INSERT INTO t VALUES (9, 'one', 0)", r"is taken: UNIQUE constraint failed"),
]


@pytest.mark.parametrize(("statement", "meddling", "what"), _MEDDLING)
def test_a_conflict_names_the_rows_and_changes_nothing(
    make_database: Callable[..., ServedDatabase], statement: str, meddling: str, what: str
) -> None:
    served = make_database()
    served.script(_SCHEMA)
    position = served.position()
    served.change(statement)
    served.script(meddling)
    state = served.contents()
    with pytest.raises(CompensationConflict, match=what) as caught:
        served.service.rehearse(position, SANDBOX)
    assert (caught.value.code, caught.value.state) == ("compensation-conflict", "nothing was changed")
    with pytest.raises(CompensationConflict):
        served.service.compensate(position, SANDBOX)
    assert served.contents() == state
    assert [effect.state for effect in served.effects()] == [EffectState.APPLIED]


@pytest.mark.parametrize(("statement", "meddling", "what"), _MEDDLING)
def test_skip_leaves_those_rows_alone_and_says_so(
    make_database: Callable[..., ServedDatabase], statement: str, meddling: str, what: str
) -> None:
    served = make_database(on_conflict="skip")
    served.script(_SCHEMA)
    position = served.position()
    served.change("INSERT INTO t VALUES (5, 'five', 50)")
    served.change(statement)
    served.script(meddling)
    number = 9 if "(9" in meddling else 2 if "2" in meddling else 1
    theirs = [row for row in served.script("SELECT * FROM t") if row[0] == number]
    said = served.go(position)
    assert "left to others: t " in said[0]
    assert all(row in served.script("SELECT * FROM t") for row in theirs)
    assert served.script("SELECT * FROM t WHERE a = 5") == [], "the rest is undone"
    assert [effect.state for effect in served.effects()] == [EffectState.UNDONE] * 2


def test_a_child_that_somebody_hung_on_our_row(make_database: Callable[..., ServedDatabase]) -> None:
    served = make_database(foreign_keys=True)
    served.script("CREATE TABLE p (a PRIMARY KEY); CREATE TABLE c (x REFERENCES p ON DELETE CASCADE)")
    position = served.position()
    served.change("INSERT INTO p VALUES (1)")
    served.script("PRAGMA foreign_keys = ON; INSERT INTO c VALUES (1)")
    state = served.contents()
    with pytest.raises(CompensationConflict, match="c has a row that refers to p"):
        served.go(position)
    assert served.contents() == state, "the child was not cascaded away"


def test_a_counter_that_somebody_moved_stays(served: ServedDatabase) -> None:
    served.script("CREATE TABLE s (a INTEGER PRIMARY KEY AUTOINCREMENT, b)")
    position = served.position()
    served.change("INSERT INTO s (b) VALUES (1)")
    served.script("INSERT INTO s (b) VALUES (2)")
    served.go(position)
    assert served.script("SELECT * FROM s") == [(2, 2)]
    assert served.script("SELECT seq FROM sqlite_sequence") == [(2,)]


def test_changes_of_others_in_between_are_kept(served: ServedDatabase) -> None:
    served.script(_SCHEMA)
    position = served.position()
    served.change("UPDATE t SET n = 0 WHERE a = 1")
    served.script("UPDATE t SET n = 77 WHERE a = 2; INSERT INTO t VALUES (3, 'three', 3)")
    served.go(position)
    assert served.script("SELECT n FROM t ORDER BY a") == [(10,), (77,), (3,)]


def test_all_or_nothing(served: ServedDatabase) -> None:
    """Of several effects none is undone when an older one can't be."""
    served.script(_SCHEMA)
    position = served.position()
    served.change("UPDATE t SET n = 0 WHERE a = 1")
    served.change("INSERT INTO t VALUES (3, 'three', 3)")
    served.script("UPDATE t SET n = 5 WHERE a = 1")
    state = served.contents()
    with pytest.raises(CompensationConflict):
        served.service.compensate(position, SANDBOX)
    assert served.contents() == state


def test_a_database_that_was_replaced_holds_no_undo_data(served: ServedDatabase) -> None:
    served.script(_SCHEMA)
    position = served.position()
    copy = served.path.read_bytes()
    served.change("DELETE FROM t")
    served.path.unlink()
    served.path.write_bytes(copy)
    with pytest.raises(CompensationError, match=r"made its effect 1 .*another server, or an older copy") as caught:
        served.go(position)
    assert (caught.value.code, caught.value.state) == ("service-changed", "nothing was called or changed")
    assert served.path.read_bytes() == copy
    # what is done from now on is done in the file that is there
    later = served.position()
    served.change("INSERT INTO t VALUES (3, 'three', 3)")
    served.go(later)


def test_a_thousand_effects(served: ServedDatabase) -> None:
    served.script("PRAGMA synchronous = OFF; CREATE TABLE t (a INTEGER PRIMARY KEY, n); INSERT INTO t VALUES (0, 0)")
    before, position = served.contents(), served.position()
    for number in range(1000):
        served.call("UPDATE t SET n = n + 1 WHERE a = 0" if number % 2 else "INSERT INTO t (n) VALUES (5)")
    after, end = served.contents(), served.position()
    served.go(position)
    assert served.contents() == before
    served.go(end)
    assert served.contents() == after


@pytest.fixture
def served(make_database: Callable[..., ServedDatabase]) -> ServedDatabase:
    return make_database()
