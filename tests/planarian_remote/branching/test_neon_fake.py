"""The Neon dialect against a small fake of its HTTP API (never against Neon itself): versions, forks, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core.effects import EffectLog
from planarian_core.errors import CaptureError, CompensationError, ConfigurationError, PlanarianError, RemoteError
from planarian_core.logged_service import LoggedService
from planarian_core.model import CallClass, EffectState, RemoteCall
from planarian_core.registry import Registry
from planarian_core.testing.fake_neon import KEY, PROJECT, FakeNeon
from planarian_core.testing.postgresql import PrivateCluster
from planarian_remote.branching import neon_api
from planarian_remote.branching.neon import NeonKind, make
from planarian_remote.branching.neon_api import NeonApi, NeonError, address_of
from planarian_remote.branching.neon_versions import NeonVersions, flushed_lsn
from planarian_remote.configuration import Table

SANDBOX, FORK = "sb-one", "sb-two"
OWN, THEIRS = f"planarian-{SANDBOX}", f"planarian-{FORK}"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neon_api, "_POLL", 0.01)


@pytest.fixture
def fake() -> Iterator[FakeNeon]:
    with FakeNeon() as running:
        yield running


@pytest.fixture
def versions(fake: FakeNeon) -> NeonVersions:
    api = NeonApi(fake.address, KEY, PROJECT, patience=2.0, request_timeout=2.0)
    return NeonVersions("orders", api, "neondb", "owner", lsn_of=fake.lsn_of)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EffectLog]:
    registry = Registry(tmp_path / "registry")
    yield registry.effects
    registry.close()


def _kind(fake: FakeNeon, sandbox_id: str = SANDBOX, **more: object) -> NeonKind:
    raw = {
        "kind": "branching",
        "dialect": "neon",
        "api": fake.address,
        "api_key": KEY,
        "project": PROJECT,
        "command": ["server", "{branch}"],
        "env": {"DATABASE_URL": "{database_url}"},
        "tool": "run_sql",
        **more,
    }
    kind = make(Table("orders", raw), sandbox_id)
    kind.versions = replace(kind.versions, lsn_of=fake.lsn_of)
    return kind


# --- versions on the fake ---


def test_fake_a_version_is_a_branch_at_the_lsn_and_is_made_only_where_the_log_moved(
    fake: FakeNeon, versions: NeonVersions
) -> None:
    fake.write("main", "a", "base")
    first = versions.commit(SANDBOX)
    assert fake.named(OWN).rows == {"a": "base"}
    assert versions.commit(SANDBOX) == first
    fake.write("main", "a", "later")
    assert versions.commit(SANDBOX) == first, "the base's log is another"
    fake.write(OWN, "a", "1")
    second = versions.commit(SANDBOX)
    fake.write(OWN, "a", "2")
    assert first != second
    assert (fake.branches[first].rows, fake.branches[second].rows) == ({"a": "base"}, {"a": "1"})
    assert not fake.branches[second].endpoint, "a version costs no compute"


def test_fake_any_version_is_reached_from_any_other(fake: FakeNeon, versions: NeonVersions) -> None:
    saved = {versions.commit(SANDBOX): dict(fake.named(OWN).rows)}
    own = fake.named(OWN).id
    for value in "1234":
        fake.write(OWN, "a", value)
        saved[versions.commit(SANDBOX)] = dict(fake.named(OWN).rows)
    ids = list(saved)
    for index in (0, 4, 2, 3, 1, 4, 0):
        versions.check(SANDBOX, ids[index])
        versions.reset(SANDBOX, ids[index])
        versions.reset(SANDBOX, ids[index])
        assert fake.named(OWN).rows == saved[ids[index]]
        assert fake.named(OWN).id == own, "its address stays"
        fake.write(OWN, "b", str(index))
        rows = dict(fake.named(OWN).rows)
        made = versions.commit(SANDBOX)
        assert made not in saved, "the same LSN on another line of history is another version"
        saved[made] = rows


def test_fake_a_rollback_can_be_rolled_back_through_the_undo_log(fake: FakeNeon, log: EffectLog) -> None:
    service = LoggedService(_kind(fake), log)
    start = service.capture(SANDBOX)
    effect = log.begin(
        SANDBOX, "orders", RemoteCall("run_sql", {"sql": "x"}), service.kind.classify(RemoteCall("run_sql")), "x"
    )
    fake.write(OWN, "a", "1")
    log.update(effect, EffectState.APPLIED)
    late = service.capture(SANDBOX)
    service.rehearse(start, SANDBOX)
    assert [(e.summary, e.redo) for e in service.compensate(start, SANDBOX)] == [("x", False)]
    assert fake.named(OWN).rows == {}
    assert [(e.summary, e.redo) for e in service.compensate(late, SANDBOX)] == [("x", True)]
    assert fake.named(OWN).rows == {"a": "1"}


def test_fake_forks_are_isolated_both_ways(fake: FakeNeon, versions: NeonVersions) -> None:
    versions.commit(SANDBOX)
    fake.write(OWN, "a", "1")
    point = versions.commit(SANDBOX)
    fake.write(OWN, "a", "2")
    versions.branch(FORK, SANDBOX, point)
    versions.branch(FORK, SANDBOX, point)
    fake.write(THEIRS, "b", "fork")
    assert fake.named(THEIRS).rows == {"a": "1", "b": "fork"}
    assert fake.named(OWN).rows == {"a": "2"}
    assert fake.named(THEIRS).endpoint
    with pytest.raises(CompensationError, match="was not made from it"):
        versions.branch(FORK, SANDBOX, versions.commit(SANDBOX))
    versions.reset(FORK, point)
    assert (fake.named(THEIRS).rows, fake.named(OWN).rows) == ({"a": "1"}, {"a": "2"})


def test_fake_a_promoted_fork_s_version_outlives_the_fork(fake: FakeNeon, versions: NeonVersions) -> None:
    point = versions.commit(SANDBOX)
    versions.branch(FORK, SANDBOX, point)
    fake.write(THEIRS, "a", "attempted")
    captured = versions.commit(FORK)
    versions.reset(SANDBOX, captured)
    assert fake.named(OWN).rows == {"a": "attempted"}
    versions.drop(FORK)
    versions.reset(SANDBOX, point)
    versions.keep(SANDBOX, [point, captured])
    versions.reset(SANDBOX, captured)
    assert fake.named(OWN).rows == {"a": "attempted"}


def test_fake_an_adopted_fork_s_version_outlives_the_fork(fake: FakeNeon, versions: NeonVersions) -> None:
    point = versions.commit(SANDBOX)
    versions.branch(FORK, SANDBOX, point)
    fake.write(THEIRS, "a", "attempted")
    captured = versions.commit(FORK)
    versions.take_over(SANDBOX, captured)
    versions.take_over(SANDBOX, captured)
    versions.drop(FORK)
    assert fake.named(OWN).rows == {}
    versions.reset(SANDBOX, captured)
    assert fake.named(OWN).rows == {"a": "attempted"}


def test_fake_pruning_and_removal_delete_branches_children_first(fake: FakeNeon, versions: NeonVersions) -> None:
    kept = versions.commit(SANDBOX)
    for value in "123":
        fake.write(OWN, "a", value)
        versions.commit(SANDBOX)
        versions.reset(SANDBOX, kept)
    assert len(fake.names()) > 6
    versions.keep(SANDBOX, [kept])
    versions.reset(SANDBOX, kept)
    assert fake.named(OWN).rows == {}
    versions.drop(SANDBOX)
    versions.drop(SANDBOX)
    assert fake.names() == ["main"]


def test_fake_what_a_fork_stands_on_is_left(fake: FakeNeon, versions: NeonVersions) -> None:
    point = versions.commit(SANDBOX)
    versions.branch(FORK, SANDBOX, point)
    versions.keep(SANDBOX, [])
    assert point in fake.branches
    versions.drop(FORK)
    versions.keep(SANDBOX, [])
    assert point not in fake.branches


def test_fake_a_branch_that_somebody_removed_is_never_begun_anew(fake: FakeNeon, versions: NeonVersions) -> None:
    fake.write("main", "a", "base")
    point = versions.commit(SANDBOX)
    own = fake.named(OWN)
    fake.branches[point].parent = own.parent
    del fake.branches[own.id]
    with pytest.raises(CaptureError) as caught:
        versions.commit(SANDBOX)
    assert caught.value.code == "branch-missing"
    versions.reset(SANDBOX, point)
    assert (fake.named(OWN).rows, fake.named(OWN).endpoint) == ({"a": "base"}, True)


def test_fake_another_base_and_many_pages(
    fake: FakeNeon, versions: NeonVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neon_api, "_PAGE", 2)
    api = versions.api
    for name in ("release", "release-2", "release-3", "my-release"):
        api.create(name)
    fake.write("release", "a", "released")
    replace(versions, base="release").commit(SANDBOX)
    assert fake.named(OWN).rows == {"a": "released"}
    assert [branch["name"] for branch in api.branches("release")] == ["release", "release-2", "release-3"]
    with pytest.raises(CaptureError, match="does not exist"):
        replace(versions, base="nowhere").commit(FORK)


# --- errors of the fake ---


@pytest.mark.parametrize(
    ("status", "code"), [(401, "service-denied"), (404, "undo-data-missing"), (500, "service-unreachable")]
)
def test_fake_refusals_are_clear_errors_without_the_key(
    fake: FakeNeon, versions: NeonVersions, status: int, code: str
) -> None:
    version = versions.commit(SANDBOX)
    hasty = replace(versions, api=replace(versions.api, patience=0.2))
    fake.fail = lambda method, path: (status, {})
    operations: list[Callable[[], object]] = [
        lambda: hasty.check(SANDBOX, version),
        lambda: hasty.reset(SANDBOX, version),
        lambda: hasty.branch(FORK, SANDBOX, version),
        lambda: hasty.uri(SANDBOX),
    ]
    for operation in operations:
        with pytest.raises(PlanarianError) as caught:
            operation()
        assert caught.value.code == code
        assert f"refused with {status}" in caught.value.message
        assert caught.value.remedy
        assert KEY not in f"{caught.value} {caught.value.__cause__!r} {hasty!r}"


@pytest.mark.parametrize("status", [423, 429, 503])
def test_fake_what_is_refused_for_the_moment_is_sent_again(fake: FakeNeon, versions: NeonVersions, status: int) -> None:
    left = [3]

    def busy(method: str, path: str) -> tuple[int, dict[str, str]] | None:
        left[0] -= 1
        return (status, {"Retry-After": "0"}) if left[0] >= 0 else None

    version = versions.commit(SANDBOX)
    fake.fail = busy
    versions.reset(SANDBOX, version)
    assert left[0] < 0
    left[0] = 10**6
    hasty = replace(versions, api=replace(versions.api, patience=0.2))
    with pytest.raises(CompensationError) as caught:
        hasty.reset(SANDBOX, version)
    assert caught.value.code == ("service-unreachable" if status == 503 else "service-busy")


def test_fake_an_instant_is_not_held_up_for_long(fake: FakeNeon, versions: NeonVersions) -> None:
    patient = replace(versions, api=replace(versions.api, patience=10**6))
    fake.fail = lambda method, path: (429, {"Retry-After": "3600"})
    with pytest.raises(CaptureError) as caught:
        patient.commit(SANDBOX)
    assert caught.value.code == "service-busy"


def test_fake_a_lost_answer_is_found_out_by_name(fake: FakeNeon, versions: NeonVersions) -> None:
    """Creation, restore and deletion happened, and nobody was told: none is done twice."""
    lost: set[str] = set()

    def once(method: str, path: str) -> bool:
        kind = f"{method} {path.rsplit('/', 1)[-1][:3]}"
        return method != "GET" and kind not in lost and not lost.add(kind)  # type: ignore[func-returns-value]  # None

    fake.lose = once
    first = versions.commit(SANDBOX)
    fake.write(OWN, "a", "1")
    assert fake.names() == sorted(["main", OWN, fake.branches[first].name])
    second = versions.commit(SANDBOX)
    versions.reset(SANDBOX, first)
    assert fake.named(OWN).rows == {}
    assert len([name for name in fake.names() if "-left-" in name]) == 1
    versions.reset(SANDBOX, second)
    assert fake.named(OWN).rows == {"a": "1"}
    versions.drop(SANDBOX)
    assert fake.names() == ["main"]
    assert {"POST bra", "POST res"} <= lost


def test_fake_a_branch_made_by_half_gets_its_endpoint(fake: FakeNeon, versions: NeonVersions) -> None:
    versions.commit(SANDBOX)
    fake.named(OWN).endpoint = False
    assert versions.uri(SANDBOX) == f"postgresql://owner:hush@ep-{fake.named(OWN).id}/neondb"
    assert fake.named(OWN).endpoint


def test_fake_an_operation_that_fails_is_an_error(
    fake: FakeNeon, versions: NeonVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.commit(SANDBOX)
    fake.write(OWN, "a", "1")
    failed = {"id": "op-x", "action": "create_branch", "status": "failed", "error": "no room"}
    monkeypatch.setattr(fake, "operation", lambda branch_id: failed)
    with pytest.raises(CaptureError, match="create_branch failed: no room"):
        versions.commit(SANDBOX)


def test_a_server_that_answers_nothing_or_nonsense(fake: FakeNeon) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        api = NeonApi(address, KEY, PROJECT, patience=0.2, request_timeout=0.1)
        with pytest.raises(NeonError) as caught:
            api.branch("br-1")
        assert caught.value.unknown
    wrong = NeonApi(f"{fake.address}/elsewhere", KEY, PROJECT, patience=0.2)
    with pytest.raises(NeonError) as caught:
        wrong.branch("br-1")
    assert caught.value.status == 404


def test_the_key_goes_nowhere_but_to_the_configured_address(fake: FakeNeon, versions: NeonVersions) -> None:
    with FakeNeon() as elsewhere:
        fake.fail = lambda method, path: (302, {"Location": f"{elsewhere.address}/projects/{PROJECT}/branches"})
        with pytest.raises(NeonError) as caught:
            replace(versions.api, patience=0.2).branches("x")
        assert caught.value.status == 302
        assert elsewhere.requests == []
    for address in ("http://console.neon.tech/api/v2", "file:///etc/passwd", "ftp://127.0.0.1/"):
        with pytest.raises(ValueError, match=r".+"):
            address_of(address)
    with pytest.raises(ConfigurationError, match="https"):
        make(Table("orders", {"kind": "branching", "api": "http://neon.example"}), SANDBOX)


# --- the kind ---


def test_fake_the_server_is_told_where_the_branch_is(fake: FakeNeon) -> None:
    kind = _kind(fake)
    assert kind.server is not None
    assert kind.server.env == {"DATABASE_URL": "{database_url}"}, "nothing is asked before it is started"
    assert fake.requests == []
    told = kind.server_for_branch()
    assert told.command == ("server", OWN)
    assert told.env == {"DATABASE_URL": f"postgresql://neondb_owner:hush@ep-{fake.named(OWN).id}/neondb"}
    assert "hush" not in kind.endpoint


def test_fake_classes_of_tools(fake: FakeNeon) -> None:
    kind = _kind(fake, tools={"list_tables": {"class": "read-only"}, "notify": {"class": "pivot"}})
    classes = {
        tool: kind.describe(tool, {}).call_class for tool in ("run_sql", "list_tables", "notify", "drop_project")
    }
    assert classes == {
        "run_sql": CallClass.BRANCHABLE,
        "list_tables": CallClass.READ_ONLY,
        "notify": CallClass.PIVOT,
        "drop_project": CallClass.REFUSED,
    }


@pytest.mark.needs("postgresql")
def test_the_lsn_is_behind_every_acknowledged_commit(postgresql: PrivateCluster, database: str) -> None:
    """On a real PostgreSQL: the one statement that goes to the database itself."""
    uri = postgresql.dsn(database)
    import psycopg

    first = flushed_lsn(uri)
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("CREATE TABLE t(a int)")
        connection.execute("INSERT INTO t VALUES (1)")
        row = connection.execute("SELECT %s::pg_lsn > %s::pg_lsn", (flushed_lsn(uri), first)).fetchone()
    assert row == (True,)
    with pytest.raises(NeonError, match="did not say"):
        flushed_lsn("postgresql://127.0.0.1:1/none")


def test_fake_a_cut_off_call_is_said_to_be_possible(fake: FakeNeon, log: EffectLog) -> None:
    kind = _kind(fake)
    service = LoggedService(kind, log)
    effect = log.begin(SANDBOX, "orders", RemoteCall("run_sql", {}), kind.describe("run_sql", {}), "DELETE FROM t")
    outcome = kind.settle(effect, _NoTarget())
    assert (outcome.state, outcome.summary) == (EffectState.APPLIED, "DELETE FROM t (may not have happened)")
    assert service.forkable
    with pytest.raises(RemoteError):
        _NoTarget().call("run_sql", {})


class _NoTarget:
    def call(self, tool: str, arguments: object) -> dict[str, object]:
        raise RemoteError("nobody is there", code="service-unreachable")

    def tools(self) -> list[dict[str, object]]:
        return []

    def close(self) -> None:
        return
