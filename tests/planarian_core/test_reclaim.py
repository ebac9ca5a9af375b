"""Holds and pruning on fakes and on ``copy``: what is chosen, what stays, what is freed, what is accounted for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planarian_core import Planarian, quota
from planarian_core.errors import LineageError, PlanarianError, RestoreError, SandboxError
from planarian_core.model import Statepoint, Status
from planarian_core.prune_choice import NEWEST, PrunePolicy, choose
from planarian_core.reclaim import HOME
from planarian_core.registry import Operation
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakePlugin, FakeService
from planarian_core.testing.workloads import remove_all

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ALL_BUT_ONE = PrunePolicy(keep_last=1)


def _write(sandbox: Sandbox, name: str, text: str) -> None:
    (Path(sandbox.record.spec.layer) / name).write_text(text)


def _read(sandbox: Sandbox, name: str) -> str:
    return (Path(sandbox.record.spec.layer) / name).read_text()


def _take(planarian: Planarian, sandbox: Sandbox, *texts: str) -> list[Statepoint]:
    """A statepoint for each text in the file ``f``."""
    points = []
    for text in texts:
        _write(sandbox, "f", text)
        points.append(planarian.snapshot(sandbox))
    return points


def _committed(planarian: Planarian, sandbox: Sandbox) -> list[str]:
    return [s.id for s in planarian.registry.statepoints(sandbox.id) if s.status is Status.COMMITTED]


@pytest.fixture
def sandbox(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    return fake_planarian.create_sandbox(workspace, name="box")


# --- the choice ---


def _at(number: int, moment: datetime, **fields: object) -> Statepoint:
    return replace(Statepoint(f"sp-{number}", "sb-1", "br-1", None, moment.isoformat(), Status.COMMITTED), **fields)  # type: ignore[arg-type]  # fields of a Statepoint


def _chosen(points: list[Statepoint], policy: PrunePolicy, now: datetime = NOW) -> list[str]:
    return [s.id for s in choose(points, policy, {}, now).chosen]


def test_order_is_the_registry_s_and_not_the_clock_s() -> None:
    points = [_at(n, NOW - timedelta(days=10 - n)) for n in range(5)]
    points[4] = replace(points[4], created_at="1970-01-01T00:00:00Z")  # the newest, with a clock that was set back
    points[0] = replace(points[0], created_at="2099-01-01T00:00:00Z")
    assert _chosen(points, PrunePolicy(keep_last=2)) == ["sp-0", "sp-1", "sp-2"]


def test_ages_of_clocks_that_jump_count_as_young() -> None:
    """One from the future is of now; one that seems older than its forerunner is no older than that."""
    week = PrunePolicy(keep_last=1, max_age=7 * 86400)
    young = NOW - timedelta(days=1)
    points = [
        _at(0, NOW - timedelta(days=30)),
        _at(1, NOW + timedelta(days=900)),
        _at(2, young),
        _at(3, datetime(1970, 1, 1, tzinfo=UTC)),
        _at(4, young, created_at="no time at all"),
        _at(5, young),
    ]
    assert _chosen(points, week) == ["sp-0"]
    points[2] = _at(2, NOW - timedelta(days=20))
    assert _chosen(points, week) == ["sp-0", "sp-2", "sp-3"], "what the future one says of later ones isn't believed"


def test_a_clock_that_was_set_forward_removes_none_of_the_newest() -> None:
    points = [_at(n, NOW - timedelta(minutes=n)) for n in range(12)]
    later = NOW + timedelta(days=36500)
    assert len(_chosen(points, PrunePolicy(max_age=60), later)) == 12 - NEWEST
    assert len(_chosen(points, PrunePolicy(keep_last=10, max_age=60), later)) == 2


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(-4000, 4000)), max_size=30),
    st.one_of(st.none(), st.integers(1, 8)),
    st.one_of(st.none(), st.integers(0, 3000)),
    st.booleans(),
)
def test_what_must_stay_stays(
    made: list[tuple[bool, bool, int]], keep_last: int | None, max_age: int | None, keep_named: bool
) -> None:
    points = [_at(n, NOW + timedelta(days=d), name="n" if named else "") for n, (named, _, d) in enumerate(made)]
    reasons = {f"sp-{n}": "held" for n, (_, needed, _) in enumerate(made) if needed}
    policy = PrunePolicy(keep_last, keep_named, max_age)
    choice = choose(points, policy, reasons, NOW)
    gone = {s.id for s in choice.chosen}
    assert not gone & reasons.keys()
    assert not gone & {s.id for s in points[max(0, len(points) - policy.newest) :]}
    assert not (keep_named and any(s.name for s in choice.chosen))
    assert len(choice.chosen) + len(choice.spare) + choice.kept.total() == max(0, len(points) - policy.newest)


# --- what stays and what goes ---


def test_only_those_named_are_looked_at(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    first, second, third, head = _take(fake_planarian, sandbox, "one", "two", "three", "four")
    fake_planarian.hold(third)
    only = PrunePolicy(keep_last=0, only=frozenset({second.id, third.id, head.id}))
    assert fake_planarian.prune(only).statepoints == (second.id,)
    assert _committed(fake_planarian, sandbox) == [first.id, third.id, head.id]


def test_a_pruned_statepoint_keeps_its_record_and_evidence(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    first, second = _take(fake_planarian, sandbox, "one", "two")
    fake_planarian.append_outcome(first, "the build broke", status="failed")
    pruned = fake_planarian.prune(ALL_BUT_ONE, [sandbox])
    assert pruned.statepoints == (first.id,)
    left = fake_planarian.registry.statepoint(first.id)
    assert (left.status, left.created_at, left.parent_id) == (Status.PRUNED, first.created_at, first.parent_id)
    assert fake_planarian.registry.outcomes(first.id)[0].text == "the build broke"
    text = fake_planarian.ledger(sandbox).to_markdown()
    assert "pruned: it can't be restored" in text
    assert "the build broke" in text
    assert fake_planarian.resolve(sandbox, "@head") == second
    for refused in (first.id, "@head~1"):
        with pytest.raises(LineageError, match="was pruned") as caught:
            fake_planarian.rollback(sandbox, refused)
        assert caught.value.code == "statepoint-pruned"
    with pytest.raises(LineageError, match="was pruned"):
        fake_planarian.fork(first.id, of=sandbox)
    with pytest.raises(RestoreError):
        fake_planarian.statepoints.rollback(sandbox.record, left)
    assert not (fake_planarian.home / "fake-files" / first.id).exists()
    assert not (fake_planarian.home / "statepoints" / first.id).exists()
    assert fake_planarian.registry.operations() == []


def test_heads_held_named_and_needed_ones_stay(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    named = fake_planarian.snapshot(sandbox, name="deps")
    held, base, going, plain, head, _, newest = _take(fake_planarian, sandbox, *"abcdefg")
    fake_planarian.hold(held, "look at it again")
    fork = fake_planarian.fork(base)
    _take(fake_planarian, fork, "in the fork")
    operation = fake_planarian.registry.begin(Operation("op-1", "apply", sandbox.id, going.id))
    fake_planarian.rollback(sandbox, head, safety=False)
    preview = fake_planarian.prune(ALL_BUT_ONE, [sandbox], dry_run=True)
    assert plain.id in preview.statepoints
    assert len(_committed(fake_planarian, sandbox)) == 8, "a dry run changes nothing"
    pruned = fake_planarian.prune(ALL_BUT_ONE, [sandbox])
    assert pruned.statepoints == preview.statepoints
    assert _committed(fake_planarian, sandbox) == [named.id, held.id, base.id, going.id, head.id, newest.id]
    assert pruned.kept == {
        "named": 1, "held": 1, "a fork grew from it": 1, "an operation under way": 1, "a head": 1,
    }  # fmt: skip
    fake_planarian.rollback(fork, base)  # where a fork came from it can go back to
    fake_planarian.registry.end(operation)
    assert fake_planarian.release(held) is True
    assert fake_planarian.release(held) is False
    fake_planarian.prune(replace(ALL_BUT_ONE, keep_named=False), [sandbox])
    assert _committed(fake_planarian, sandbox) == [base.id, head.id, newest.id]
    fake_planarian.remove_sandbox(fork)
    fake_planarian.prune(ALL_BUT_ONE, [sandbox])
    assert _committed(fake_planarian, sandbox) == [head.id, newest.id]


def test_a_name_of_a_pruned_one_is_free_and_says_so_until_then(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    fake_planarian.snapshot(sandbox, name="deps")
    _take(fake_planarian, sandbox, "later")
    fake_planarian.prune(replace(ALL_BUT_ONE, keep_named=False), [sandbox])
    with pytest.raises(LineageError, match="was pruned"):
        fake_planarian.rollback(sandbox, "deps")
    again = fake_planarian.snapshot(sandbox, name="deps")
    assert fake_planarian.resolve(sandbox, "deps") == again


def test_a_pruned_one_can_not_be_held(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    first, _ = _take(fake_planarian, sandbox, "one", "two")
    fake_planarian.prune(ALL_BUT_ONE, [sandbox])
    with pytest.raises(LineageError):
        fake_planarian.hold(first)


def test_holds_end_with_their_sandbox(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    (point,) = _take(fake_planarian, sandbox, "one")
    fake_planarian.hold(point, "why")
    fake_planarian.remove_sandbox(sandbox)
    assert fake_planarian.registry.holds.all() == {}


def test_busy_sandboxes_are_passed_over_and_named(fake_planarian: Planarian, sandbox: Sandbox, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    busy = fake_planarian.create_sandbox(other)
    for one in (sandbox, busy):
        _take(fake_planarian, one, "one", "two")
    with fake_planarian.sandboxes.lock(busy.id).acquire(exclusive=False):
        pruned = fake_planarian.prune(ALL_BUT_ONE)
    assert pruned.busy == (busy.id,)
    assert len(pruned.statepoints) == 1
    assert len(_committed(fake_planarian, busy)) == 2
    assert len(fake_planarian.prune(ALL_BUT_ONE).statepoints) == 1


def test_what_was_removed_meanwhile_is_no_failure(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    first, _ = _take(fake_planarian, sandbox, "one", "two")
    fake_planarian.remove_sandbox(sandbox)
    operation = Operation("op-1", "prune", HOME)
    assert fake_planarian.registry.prune([first], operation, lambda: ()) is None
    assert fake_planarian.registry.operations() == []


def test_a_backend_that_is_gone_leaves_the_rest_to_recover(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    first, _ = _take(fake_planarian, sandbox, "one", "two")
    record = sandbox.record
    fake_planarian.registry.update_sandbox(replace(record, process="uninstalled"))
    with pytest.raises(PlanarianError, match="no process backend called 'uninstalled'") as caught:
        fake_planarian.prune(ALL_BUT_ONE)
    assert caught.value.code == "prune-unfinished"
    (left,) = fake_planarian.recover()
    assert "left as it is" in left.result
    fake_planarian.registry.update_sandbox(record)
    (done,) = fake_planarian.recover()
    assert done.error == ""
    assert not (fake_planarian.home / "fake-files" / first.id).exists()


def test_prunings_go_one_after_the_other(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    _take(fake_planarian, sandbox, "one", "two")
    fake_planarian.with_config(lock_timeout=0.0)
    with fake_planarian.sandboxes.lock(HOME).acquire(exclusive=True), pytest.raises(SandboxError) as caught:
        fake_planarian.prune(ALL_BUT_ONE)
    assert caught.value.code == "prune-busy"
    assert len(_committed(fake_planarian, sandbox)) == 2


def test_by_configuration_some_at_a_time(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    fake_planarian.with_config(prune="keep-last:3")
    counts = []
    for number in range(30):
        _take(fake_planarian, sandbox, str(number))
        counts.append(len(_committed(fake_planarian, sandbox)))
    assert max(counts) == 13
    assert counts.count(3) == 3
    assert fake_planarian.rollback(sandbox, "@head~2").statepoint.status is Status.COMMITTED


def test_by_configuration_a_snapshot_never_fails_for_it(
    fake_planarian: Planarian, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_planarian.with_config(prune="keep-last:1")
    _take(fake_planarian, sandbox, *map(str, range(11)))
    monkeypatch.setenv("PLANARIAN_FAULT", "prune.marked=fail")
    (point,) = _take(fake_planarian, sandbox, "the last")
    assert fake_planarian.resolve(sandbox, "@head") == point
    assert "could not be pruned" in caplog.text
    monkeypatch.delenv("PLANARIAN_FAULT")
    (done,) = fake_planarian.recover()
    assert (done.operation, done.error) == ("prune", "")


@pytest.mark.parametrize("point", ["marked", "dropped", "collected"])
def test_a_full_disk_in_the_middle_leaves_the_rest_to_recover(
    fake_planarian: Planarian, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    first, second = _take(fake_planarian, sandbox, "one", "two")
    monkeypatch.setenv("PLANARIAN_FAULT", f"prune.{point}=fail")
    with pytest.raises(PlanarianError) as caught:
        fake_planarian.prune(ALL_BUT_ONE)
    assert caught.value.code == "prune-unfinished"
    assert "planarian recover" in caught.value.remedy
    monkeypatch.delenv("PLANARIAN_FAULT")
    assert sandbox.run(["true"]).exit_code == 0, "the sandbox itself has nothing unfinished"
    fake_planarian.recover()
    assert fake_planarian.registry.operations() == []
    assert not (fake_planarian.home / "fake-files" / first.id).exists()
    assert fake_planarian.rollback(sandbox, second).statepoint == second


def test_a_warm_copy_goes_first(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    first, _ = _take(fake_planarian, sandbox, "one", "two")
    fake_planarian.keep_warm(first, wait=True)
    (copy,) = fake_planarian.standbys.copies(first.id)
    assert fake_planarian.prune(ALL_BUT_ONE).statepoints == (first.id,)
    fake_planarian.warmer.settle()
    assert fake_planarian.standbys.copies() == []
    assert fake_planarian.registry.standbys.all() == {}
    assert not Path(copy.record.spec.layer).exists()


def test_a_warm_copy_of_another_runtime_keeps_its_statepoint(
    fake_planarian: Planarian, sandbox: Sandbox, service: FakeService
) -> None:
    first, _ = _take(fake_planarian, sandbox, "one", "two")
    with Planarian.open(fake_planarian.home, plugins=[FakePlugin([service])]) as other:
        other.keep_warm(other.resolve(other.sandbox(sandbox.id), first.id), wait=True)
        pruned = fake_planarian.prune(ALL_BUT_ONE)
        assert (pruned.statepoints, pruned.kept) == ((), {"a warm copy": 1})
    assert fake_planarian.prune(ALL_BUT_ONE).statepoints == (first.id,)


def test_beside_snapshots_forks_and_rollbacks(copying: Planarian, workspace: Path) -> None:
    """Whatever happens at the same time, what is committed at the end can be had, with its content."""
    sandbox = copying.create_sandbox(workspace)
    contents: dict[str, str] = {}
    done = threading.Event()
    failures: list[BaseException] = []

    def prune() -> None:
        try:
            while not done.is_set():
                copying.prune(PrunePolicy(keep_last=2))
        except BaseException as error:
            failures.append(error)

    pruning = threading.Thread(target=prune)
    pruning.start()
    try:
        for number in range(25):
            text = f"content {number}"
            (point,) = _take(copying, sandbox, text)
            contents[point.id] = text
            if number % 4 == 1:
                copying.fork(point)
            if number % 3 == 2:
                with suppress(LineageError):  # pruned just now
                    copying.rollback(sandbox, "@head~1", safety=False)
    finally:
        done.set()
        pruning.join()
    assert not failures
    committed = _committed(copying, sandbox)
    assert 2 <= len(committed) < 25
    for statepoint_id in committed:
        copying.rollback(sandbox, statepoint_id, safety=False)
        assert _read(sandbox, "f") == contents[statepoint_id]


# --- bytes ---


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[Planarian]:
    """A runtime whose files are kept by the real ``copy`` backend, which shares what is equal."""
    with Planarian.open(tmp_path / "home", plugins=[FakePlugin()]) as planarian:
        planarian.with_config(sandbox="fake", filesystem="copy", process="fake")
        yield planarian
        remove_all(planarian)


def _on_disk(planarian: Planarian) -> int:
    return sum(path.stat().st_size for path in (planarian.home / "store" / "objects").rglob("*") if path.is_file())


def test_max_bytes_removes_the_oldest_until_it_fits(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    points = _take(fake_planarian, sandbox, *("x" * 1000 for _ in range(8)))
    pruned = fake_planarian.prune(PrunePolicy(keep_last=2, max_bytes=4500), [sandbox])
    assert pruned.statepoints == tuple(s.id for s in points[:4])
    assert (pruned.freed, pruned.left) == (4000, 4000)
    assert quota.stored(fake_planarian.registry) == 4000
    over = fake_planarian.prune(PrunePolicy(keep_last=3, max_bytes=0), [sandbox])
    assert (len(over.statepoints), over.left) == (1, 3000)


def test_what_others_share_survives_and_stays_accounted_for(copying: Planarian, workspace: Path) -> None:
    sandbox = copying.create_sandbox(workspace)
    _write(sandbox, "base", "b" * 100_000)
    (first,) = _take(copying, sandbox, "one " * 5000)
    second, third = _take(copying, sandbox, "two " * 5000, "three " * 5000)
    before = _on_disk(copying)
    assert quota.stored(copying.registry) >= 160_000
    pruned = copying.prune(PrunePolicy(keep_last=2), [sandbox])
    assert pruned.statepoints == (first.id,)
    assert pruned.freed == before - _on_disk(copying)
    assert 20_000 <= pruned.freed < 40_000, "the base is needed still"
    assert quota.stored(copying.registry) >= 100_000, "and accounted for"
    copying.rollback(sandbox, second, safety=False)
    assert _read(sandbox, "base") == "b" * 100_000
    copying.rollback(sandbox, third, safety=False)
    (last,) = _take(copying, sandbox, "four")
    (Path(sandbox.record.spec.layer) / "base").unlink()
    _take(copying, sandbox, "five")
    pruned = copying.prune(ALL_BUT_ONE, [sandbox])
    assert last.id in pruned.statepoints
    assert pruned.freed >= 140_000
    assert quota.stored(copying.registry) < 20_000, "freed at last, and no longer accounted for"


def test_max_bytes_goes_on_until_shared_content_is_really_freed(copying: Planarian, workspace: Path) -> None:
    """The oldest had added what all share: giving it up frees nothing, so more have to go, but no more than needed."""
    sandbox = copying.create_sandbox(workspace)
    _write(sandbox, "base", "b" * 200_000)
    points = _take(copying, sandbox, *(f"{number}" * 50_000 for number in range(8)))
    pruned = copying.prune(PrunePolicy(keep_last=1, max_bytes=420_000), [sandbox])
    left = _committed(copying, sandbox)
    assert left == [s.id for s in points[-len(left) :]], "the oldest went"
    assert 3 <= len(left) <= 4
    assert pruned.left <= 420_000
    copying.rollback(sandbox, left[0])
    assert _read(sandbox, "base") == "b" * 200_000


def test_an_artefact_goes_with_the_last_that_shares_it(copying: Planarian, workspace: Path) -> None:
    sandbox = copying.create_sandbox(workspace)
    (kept,) = _take(copying, sandbox, "shared")
    promoted = copying.fork(kept)
    _write(promoted, "f", "in the fork")
    context = copying.promote(promoted)
    copying.remove_sandbox(promoted)
    assert context.statepoint.files is not None
    owner = context.statepoint.files.owner
    root = copying.home / "store" / "roots" / owner
    assert root.exists()
    _take(copying, sandbox, "later", "and later")
    copying.prune(ALL_BUT_ONE, [sandbox])
    assert not root.exists()
    assert not (copying.home / "statepoints" / owner).exists()


def test_a_damaged_store_frees_nothing_and_says_so(copying: Planarian, workspace: Path) -> None:
    sandbox = copying.create_sandbox(workspace)
    first, second, third = _take(copying, sandbox, "one", "two", "three")
    (copying.home / "store" / "roots" / second.id).write_text("0" * 64)
    with pytest.raises(PlanarianError) as caught:
        copying.prune(PrunePolicy(keep_last=2), [sandbox])
    assert caught.value.code == "prune-not-freed"
    assert copying.registry.statepoint(first.id).status is Status.PRUNED
    assert copying.registry.operations() == []
    copying.rollback(sandbox, third)
