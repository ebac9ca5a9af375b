"""``hold``, ``prune``, quotas and policies as a user types them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = ("--sandbox", "directory", "--filesystem", "copy", "--process", "respawn")
NAMESPACE = ("--sandbox", "namespace", "--filesystem", "copy", "--process", "criu")


def _take(cli: Any, count: int) -> list[str]:
    """Statepoints, each with another content."""
    points = []
    for number in range(count):
        cli("run", "--", "sh", "-c", f"printf %05d {number} >f")
        points.append(cli("snapshot"))
    return points


def _statuses(cli: Any) -> dict[str, str]:
    return {s["id"]: s["status"] for s in cli.json("log", "--all")["statepoints"]}


# --- hold ---


def test_hold_and_release(cli: Any) -> None:
    cli("new")
    point = cli("snapshot", "deps")
    assert cli("hold", "deps", "--note", "the last one that built") == point
    assert " held" in cli("log")
    assert "held: the last one that built" in cli("log")
    assert "the last one that built" in cli("show", "deps")
    assert cli.json("log")["statepoints"][0]["hold"]["note"] == "the last one that built"
    assert cli.json("show", "deps")["hold"]["statepoint_id"] == point
    assert cli.json("hold", "deps")["note"] == ""
    assert cli.json("hold", "deps", "--release") == {"released": point, "was_held": True}
    assert "not held" in cli.run("hold", "deps", "--release").stderr.decode()
    assert " held" not in cli("log")
    assert "no --note" in cli.fails(2, "hold", "deps", "--release", "--note", "x")
    cli.fails(3, "hold", "nonesuch")


def test_notes_of_holds_can_not_drive_the_terminal(cli: Any) -> None:
    cli("new")
    cli("snapshot", "deps")
    cli("hold", "deps", "--note", "evil\x1b[2J\nforged line")
    for command in (["log"], ["show", "deps"]):
        assert "\x1b" not in cli(*command)
    assert "\nforged" not in cli("log")


# --- prune ---


def test_prune_says_what_it_did_and_what_stays(cli: Any) -> None:
    cli("new")
    named = cli("snapshot", "deps")
    points = _take(cli, 4)
    cli("hold", points[0])
    dry = cli.run("prune", "--keep-last", "2", "--dry-run")
    assert dry.stdout.decode().split() == [points[1]]
    assert "1 statepoints would be pruned, about 5 B freed" in dry.stderr.decode()
    assert _statuses(cli)[points[1]] == "committed"
    done = cli.run("prune", "--keep-last", "2")
    assert done.stdout.decode().split() == [points[1]]
    told = done.stderr.decode()
    assert "1 statepoints were pruned, 5 B freed, 15 B left" in told
    assert "kept beyond the newest: 1 (named)" in told
    assert "kept beyond the newest: 1 (held)" in told
    assert _statuses(cli) == {
        named: "committed", points[0]: "committed", points[1]: "pruned", points[2]: "committed", points[3]: "committed",
    }  # fmt: skip
    again = cli.json("prune", "--keep-last", "1", "--drop-named")
    assert again["statepoints"] == [named, points[2]]
    assert (again["freed"], again["left"], again["dry_run"]) == (5, 10, False)


def test_a_rollback_to_a_pruned_one_says_that_it_was_pruned(cli: Any) -> None:
    cli("new")
    cli("snapshot", "deps", "-d", "dependencies installed")
    cli("outcome", "deps", "the build broke", "--status", "failed")
    unnamed, _ = _take(cli, 2)
    cli("prune", "--keep-last", "1", "--drop-named")
    for reference in ("deps", unnamed, "@head~1"):
        told = cli.fails(3, "rollback", reference)
        assert "was pruned: its evidence is left" in told
        assert "planarian log" in told
    shown = cli("show", cli.json("log")["statepoints"][0]["id"])
    assert "dependencies installed" in shown
    assert "the build broke" in shown
    assert "gone: it was pruned" in shown
    text = cli("log")
    assert "deps" in text
    assert "pruned" in text
    assert unnamed not in text, "without a name or outcomes it is only in log --all"
    assert unnamed in cli("log", "--all")
    assert "pruned: it can't be restored" in cli("ledger")


def test_what_grew_from_a_pruned_one_stays_in_line(cli: Any) -> None:
    cli("new")
    first = cli("snapshot", "first")
    *_, last = _take(cli, 3)
    cli("prune", "--keep-last", "1")
    assert [s["id"] for s in cli.json("log")["statepoints"]] == [first, last]
    assert [line.split()[0] for line in cli("log").splitlines() if line.startswith("sp-")] == [first, last]


def test_prune_by_age_and_by_size(cli: Any) -> None:
    cli("new")
    points = _take(cli, 8)
    assert cli.json("prune", "--max-age", "7d")["statepoints"] == []
    by_size = cli.json("prune", "--max-bytes", "30", "--keep-last", "3")
    assert (by_size["statepoints"], by_size["left"]) == (points[:2], 30)
    over = cli.run("prune", "--max-bytes", "1")
    assert "more than 1 B are left" in over.stderr.decode()
    assert len([s for s in _statuses(cli).values() if s == "committed"]) == 5, "the newest five stay by themselves"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "say what to remove"),
        (["--max-age", "soon"], "no duration"),
        (["--max-bytes", "lots"], "no size"),
        (["--keep-last", "0"], "0"),
    ],
)
def test_wrong_usage_removes_nothing(cli: Any, arguments: list[str], told: str) -> None:
    cli("new")
    _take(cli, 2)
    assert told in cli.fails(2, "prune", *arguments)
    assert set(_statuses(cli).values()) == {"committed"}


def test_all_sandboxes_at_once_and_busy_ones_are_passed_over(cli: Any, tmp_path: Path) -> None:
    sandboxes = [cli("new", "--name", name) for name in ("one", "two")]
    for name in ("one", "two"):
        for _ in range(2):
            cli("snapshot", "-s", name)
    assert "there are 2 sandboxes" in cli.fails(3, "prune", "--keep-last", "1")
    with cli.open() as planarian, planarian.sandboxes.lock(sandboxes[1]).acquire(exclusive=True):
        done = cli.run("prune", "--all", "--keep-last", "1")
    assert len(done.stdout.split()) == 1
    assert f"passed over: {sandboxes[1]} is busy" in done.stderr.decode()
    assert len(cli("prune", "-s", "two", "--keep-last", "1").split()) == 1


def test_what_was_cut_off_is_left_to_recover(cli: Any) -> None:
    cli("new")
    points = _take(cli, 2)
    told = cli.fails(5, "prune", "--keep-last", "1", env={**cli.env, "PLANARIAN_FAULT": "prune.dropped=fail"})
    assert "not all of their space is free yet" in told
    assert "Next: planarian recover" in told
    assert "a prune of home had been cut off" in cli("recover")
    assert _statuses(cli) == {points[0]: "pruned", points[1]: "committed"}


# --- quotas ---


def test_a_quota_refuses_and_pruning_helps(cli: Any) -> None:
    config = (cli.home / "planarian.toml").read_text()
    cli("new")
    _take(cli, 4)
    (cli.home / "planarian.toml").write_text(config + 'max_bytes = "20"\n')
    told = cli.fails(1, "snapshot")
    assert "statepoints take 20 B and may take 20 B" in told
    assert "Now: no statepoint was begun; the sandbox goes on running" in told
    assert "Next: planarian prune" in told
    assert json.loads(cli.run("snapshot", "--json").stdout)["error"] == "quota"
    cli("prune", "--keep-last", "2")
    cli("snapshot")


def test_a_low_disk_refuses(cli: Any) -> None:
    config = (cli.home / "planarian.toml").read_text()
    cli("new")
    (cli.home / "planarian.toml").write_text(config + 'min_free = "1000T"\n')
    assert "must stay free (min_free)" in cli.fails(1, "snapshot")


def test_pruning_by_configuration(cli: Any) -> None:
    config = (cli.home / "planarian.toml").read_text()
    (cli.home / "planarian.toml").write_text(config + 'prune = "keep-last:2"\n')
    cli("new")
    points = _take(cli, 13)
    committed = [i for i, status in _statuses(cli).items() if status == "committed"]
    assert committed == points[-2:]


# --- policies ---


def test_a_policy_is_set_seen_and_obeyed_across_processes(process: Any) -> None:
    process("new", "--policy", "every:2")
    assert process("policy") == "every:2"
    taken = []
    for _ in range(4):
        process("run", "true")
        taken.append(bool(process("snapshot", "--if-due")))
    assert taken == [False, True, False, True]
    assert process.json("snapshot", "--if-due") == {"taken": False}
    assert process("policy", "manual") == "manual"
    assert process.json("policy") == {
        "sandbox": process.json("list")["sandboxes"][0]["id"],
        "policy": "manual",
        "own": True,
    }
    assert process("snapshot", "gold", "--if-due") == ""
    assert process("policy", "milestones") == "milestones"
    assert process("snapshot", "gold", "--if-due").startswith("sp-")
    assert process("policy", "home") == "every-call"
    assert process("snapshot", "--if-due").startswith("sp-")
    assert process.json("list")["sandboxes"][0]["policy"] == "every-call"


def test_what_is_no_policy_is_refused(cli: Any) -> None:
    assert "policy 'often' is unknown" in cli.fails(1, "new", "--policy", "often")
    cli("new")
    assert "Next: one of: every-call, every:N, on-change" in cli.fails(1, "policy", "often")
    assert "goes without --files-only" in cli.fails(2, "snapshot", "--if-due", "--files-only")


@pytest.fixture(
    params=[
        pytest.param(NAMESPACE, marks=pytest.mark.needs("root", "criu", "namespaces"), id="namespace-criu"),
        pytest.param(DIRECTORY, marks=[pytest.mark.needs("linux"), pytest.mark.thorough], id="directory-respawn"),
    ]
)
def real(request: pytest.FixtureRequest, bare: Any) -> Iterator[Any]:
    """The command on a home with one sandbox of real backends."""
    bare("new", *request.param)
    yield bare
    for row in reversed(bare.json("list")["sandboxes"]):
        bare("rm", "--yes", row["id"])


def test_pruning_on_real_backends(real: Any) -> None:
    real("run", "-n", "--", "bash", "-c", "sleep 1000 >/dev/null 2>&1 &")
    size = 300_000
    points = []
    for number in range(4):
        real("run", "--", "bash", "-c", f"head -c {size} /dev/urandom >big; echo {number} >f")
        points.append(real("snapshot"))
    pruned = real.json("prune", "--keep-last", "2")
    assert pruned["statepoints"] == points[:2]
    assert pruned["freed"] >= 2 * size
    with real.open() as planarian:
        owners = {s.owner(s.processes) for s in planarian.registry.statepoints() if s.processes and s.id in points[2:]}
    left = {folder.name for folder in (real.home / "statepoints").iterdir()}
    assert left == owners, "the processes of those that stay, which may be shared with those that went, and no others"
    assert "was pruned" in real.fails(3, "rollback", points[0])
    real("rollback", points[2], "--no-safety")
    assert real("run", "cat", "f") == "2"
    assert real("run", "--", "bash", "-c", "pgrep -x sleep | wc -l") != "0"
    assert real("snapshot").startswith("sp-")
