"""``new``, ``list``, ``stop``, ``rm`` through the real process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_new_prints_the_id_and_says_what_was_chosen_and_what_is_not_covered(cli: Any, workspace: Path) -> None:
    done = cli.run("new", ".", "--name", "api")
    sandbox_id = done.stdout.decode().strip()
    told = done.stderr.decode()
    assert sandbox_id.startswith("sb-")
    assert f"{workspace}: sandbox fake, files fake, processes fake, network none" in told
    assert "not covered: commands are not confined" in told
    assert "not covered: processes are not captured" in told
    with cli.open() as planarian:
        assert planarian.sandbox("api").id == sandbox_id


def test_new_names_the_better_backends_that_it_passed_over(cli: Any) -> None:
    (cli.home / "planarian.toml").write_text('sandbox = "fake"\nfilesystem = "fake"\n')
    made = cli.json("new", "--process", "fake")
    assert any("the process backend criu was passed over: " in reason for reason in made["passed_over"])
    assert any("the filesystem backend btrfs was passed over: " in reason for reason in made["passed_over"])
    assert not any("zfs" in reason for reason in made["passed_over"]), "few hosts have it"
    assert made["process"] == "fake"


def test_new_takes_limits_network_and_hidden_paths(cli: Any, workspace: Path) -> None:
    cli("new", "--network", "host", "--memory", "512M", "--pids", "99", "--hide", "secrets", "--hide", "~/.netrc")
    with cli.open() as planarian:
        spec = planarian.sandbox().record.spec
    assert spec.network == "host"
    assert (spec.limits.memory, spec.limits.pids) == (512 * 1024**2, 99)
    assert spec.hidden == (str(workspace / "secrets"), str(cli.home.parent / "nobody" / ".netrc"))


@pytest.mark.parametrize("text", ["-1", "4X", "lots", "1.5G", ""])
def test_a_size_that_is_none_is_wrong_usage(cli: Any, text: str) -> None:
    assert "no size" in cli.fails(2, "new", f"--memory={text}")


def test_list_shows_ids_in_full_without_a_terminal(process: Any) -> None:
    made = [process("new", "--name", f"a-name-that-is-quite-long-{n}") for n in range(3)]
    lines = process("list").splitlines()
    assert [line.split()[0] for line in lines[1:]] == made
    assert all("running" in line and str(process.cwd) in line for line in lines[1:])
    assert "\x1b" not in process("list")
    rows = process.json("list")["sandboxes"]
    assert [row["id"] for row in rows] == made
    assert rows[0]["state"] == "running"


def test_list_without_sandboxes_says_what_to_do(cli: Any) -> None:
    done = cli.run("list")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"planarian new" in done.stderr
    assert cli.json("list") == {"sandboxes": []}


def test_list_tells_the_stopped_from_the_dead(cli: Any) -> None:
    stopped, dead = cli("new", "--name", "stopped"), cli("new", "--name", "dead")
    assert cli("stop", "stopped") == stopped
    (cli.home / "sandboxes" / dead / "running").unlink()
    assert {row["name"]: row["state"] for row in cli.json("list")["sandboxes"]} == {
        "stopped": "stopped",
        "dead": "dead",
    }


def test_a_stopped_sandbox_comes_back_as_it_was_told(cli: Any) -> None:
    sandbox_id = cli("new")
    cli("snapshot", "one")
    told = cli.run("stop").stderr.decode()
    assert f"planarian attach {sandbox_id}" in told
    assert "planarian" in cli.fails(125, "run", "-s", sandbox_id, "true")
    cli("attach", sandbox_id)
    cli("run", "true")


def test_the_sandbox_is_named_by_option_variable_name_or_beginning(cli: Any) -> None:
    first, second = cli("new", "--name", "one"), cli("new", "--name", "two")
    assert cli.json("snapshot", "-s", "one")["sandbox_id"] == first
    assert cli.json("snapshot", "--sandbox", second[:9])["sandbox_id"] == second
    done = cli.run("snapshot", "--json", env={"PLANARIAN_SANDBOX": "two"})
    assert json.loads(done.stdout)["sandbox_id"] == second
    assert "one, two" in cli.fails(3, "snapshot")


def test_rm_asks_and_without_a_terminal_needs_yes(cli: Any) -> None:
    sandbox_id = cli("new")
    assert "--yes" in cli.fails(2, "rm")
    assert cli("rm", "--yes") == sandbox_id
    assert cli.json("list") == {"sandboxes": []}
    assert not (cli.home / "sandboxes" / sandbox_id).exists()


def test_rm_says_what_it_had_removed_when_it_fails_in_between(cli: Any) -> None:
    first, second = cli("new", "--name", "one"), cli("new", "--name", "two")
    point = cli("snapshot", "-s", "two")
    fork = cli("fork", point)
    told = cli.fails(3, "rm", "--yes", "one", "two")
    assert f"Now: removed before: {first}" in told
    assert f"planarian rm {fork}" in told
    assert cli.json("rm", "--yes", fork, second)["removed"] == [fork, second]


def test_rm_of_an_unknown_one_removes_nothing(cli: Any) -> None:
    cli("new", "--name", "one")
    cli.fails(3, "rm", "--yes", "one", "nonesuch")
    assert len(cli.json("list")["sandboxes"]) == 1
