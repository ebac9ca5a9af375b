"""Locks, a read-only file, a full disk, a file that goes away: a clear error, and nothing was changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from planarian_core.errors import CompensationError, RemoteError
from planarian_core.model import CallClass, EffectState, RemoteCall, Verdict
from planarian_core.testing.sqlite_service import SANDBOX, ServedDatabase

_SCHEMA = "CREATE TABLE t (a INTEGER PRIMARY KEY, b); INSERT INTO t VALUES (1, 'one')"
_INSERT = "INSERT INTO t VALUES (2, 'two')"


@pytest.fixture(params=["DELETE", "WAL"])
def served(make_database: Callable[..., ServedDatabase], request: pytest.FixtureRequest) -> ServedDatabase:
    database = make_database(busy_timeout=0.2)
    database.script(f"PRAGMA journal_mode = {request.param}")
    database.script(_SCHEMA)
    return database


def _refused(served: ServedDatabase, what: str) -> None:
    with pytest.raises(RemoteError, match=what) as caught:
        served.call(_INSERT)
    assert (caught.value.code, caught.value.state) == ("call-refused", "nothing was changed")
    assert caught.value.remedy
    assert served.effects()[-1].state is EffectState.VOID


def test_another_connection_holds_the_write_lock(served: ServedDatabase) -> None:
    position = served.position()
    served.there_and_back("UPDATE t SET b = 'changed'")
    before = served.contents()
    served.script("BEGIN IMMEDIATE")
    _refused(served, "another connection holds a lock")
    with pytest.raises(CompensationError, match="another connection holds a lock") as caught:
        served.go(position)
    assert (caught.value.code, caught.value.state) == ("service-unreachable", "nothing was changed")
    served.script("ROLLBACK")
    assert served.contents() == before
    served.go(position)


def test_a_reader_that_stays(served: ServedDatabase) -> None:
    """Without WAL nothing can be committed while somebody reads; with it, everything can."""
    wal = served.script("PRAGMA journal_mode") == [("wal",)]
    served.script("BEGIN")
    served.script("SELECT * FROM t")
    if wal:
        served.change(_INSERT)
    else:
        _refused(served, "another connection holds a lock")
    served.script("COMMIT")
    assert served.script("SELECT count(*) FROM t") == [(2 if wal else 1,)]


def test_the_file_is_gone(served: ServedDatabase) -> None:
    served.change("UPDATE t SET b = 'changed'")
    away = served.path.with_name("away.db")
    served.other.close(True)
    served.path.rename(away)
    for statement in ("SELECT * FROM t", "INSERT INTO t VALUES (3, 'x')"):
        with pytest.raises(RemoteError, match="No such file"):
            served.call(statement)
    assert not served.path.exists(), "it is not made anew"
    away.rename(served.path)
    served.other = apsw.Connection(str(served.path))
    served.there_and_back(_INSERT)


def test_the_file_is_no_database(served: ServedDatabase) -> None:
    served.other.close(True)
    served.path.unlink()
    served.path.write_bytes(b"no database at all" * 100)
    _refused(served, "it is no SQLite database")
    served.other = apsw.Connection(":memory:")


@pytest.mark.needs("root")
def test_a_file_that_cant_be_written(make_database: Callable[..., ServedDatabase]) -> None:
    served = make_database()
    served.script(_SCHEMA)
    before = served.contents()
    command = ["chattr", "+i", str(served.path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this file system knows no immutable files")
    try:
        _refused(served, "can't be (written|opened)")
    finally:
        subprocess.run(["chattr", "-i", str(served.path)], check=True)
    assert served.contents() == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.needs("root", "namespaces")
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_full_disk(make_database: Callable[..., ServedDatabase], small_disk: Path, journal: str) -> None:
    served = make_database(path=str(small_disk / "data.db"))
    served.other.close(True)
    served.path = small_disk / "data.db"
    served.other = apsw.Connection(str(served.path))
    served.script(f"PRAGMA journal_mode = {journal}")
    served.script(_SCHEMA)
    position, first = served.position(), served.contents()
    served.change(_INSERT)
    before = served.contents()
    with pytest.raises(RemoteError, match="disk is full"):
        served.call("INSERT INTO t VALUES (3, randomblob(900000))")
    assert served.contents() == before
    served.go(position)
    assert served.contents() == first
    served.other.close(True)
    served.service.forget(SANDBOX)


_KILLED = """
import apsw, os, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("PRAGMA cache_size = 5; BEGIN; UPDATE t SET b = 'half'")
for number in range(10, 2000):
    connection.execute("INSERT INTO t VALUES (?, randomblob(200))", (number,))
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_read_after_another_writer_was_killed(make_database: Callable[..., ServedDatabase], journal: str) -> None:
    """What it left half done is taken back first, also where the next one only reads."""
    served = make_database()
    served.script(f"PRAGMA journal_mode = {journal}")
    served.script(_SCHEMA)
    served.other.close(True)
    assert subprocess.run([sys.executable, "-c", _KILLED, str(served.path)], check=False).returncode == -9
    assert os.path.exists(f"{served.path}{'-wal' if journal == 'WAL' else '-journal'}")
    assert served.call("SELECT * FROM t")["structuredContent"]["rows"] == [[1, "one"]]


# --- calls whose end nobody saw ---


def test_a_call_that_was_given_up_never_happens(served: ServedDatabase) -> None:
    """Settled as void, it is refused should it come late after all."""
    call = RemoteCall("execute_sql", {"sql": _INSERT})
    effect = served.log.begin(SANDBOX, "notes", call, Verdict(CallClass.COMPENSABLE), "late")
    served.service.settle(SANDBOX)
    assert served.effects()[-1].state is EffectState.VOID
    before = served.contents()
    with pytest.raises(RemoteError, match="given up"):
        served.kind.run(call, effect, served.target)
    assert served.contents() == before


def test_other_sandboxes_keep_their_undo_data(served: ServedDatabase) -> None:
    position, before = served.position(), served.contents()
    served.change(_INSERT)
    call = RemoteCall("execute_sql", {"sql": "INSERT INTO t VALUES (7, 'theirs')"})
    theirs = served.log.begin("sb-other", "notes", call, Verdict(CallClass.COMPENSABLE), "theirs")
    served.kind.run(call, theirs, served.target)
    served.service.forget("sb-other")
    assert served.script("SELECT sandbox FROM planarian_effects") == [(SANDBOX,)]
    served.script("DELETE FROM t WHERE a = 7")
    served.go(position)
    assert served.contents() == before


def test_no_descriptor_is_left_open(served: ServedDatabase) -> None:
    position = served.position()
    served.change(_INSERT)
    served.go(position)
    served.other.close(True)  # in one process SQLite shares what is open
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    assert str(served.path) not in links
