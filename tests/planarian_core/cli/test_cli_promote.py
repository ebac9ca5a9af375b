"""``promote`` as a user types it, on fakes and with the processes of real backends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core.testing.workloads import ASK_COUNTER, COUNTER_SERVER

DIRECTORY = ("--sandbox", "directory", "--filesystem", "copy", "--process", "respawn")
NAMESPACE = ("--sandbox", "namespace", "--filesystem", "copy", "--process", "criu")
BACKENDS = [
    pytest.param(NAMESPACE, marks=pytest.mark.needs("root", "criu", "namespaces"), id="namespace-criu"),
    pytest.param(DIRECTORY, marks=[pytest.mark.needs("linux"), pytest.mark.thorough], id="directory-respawn"),
]


def _write(cli: Any, sandbox: str, text: str) -> None:
    cli("run", "-s", sandbox, "--", "sh", "-c", f"printf %s {text} >f")


def _read(cli: Any, sandbox: str) -> str:
    return str(cli("run", "-s", sandbox, "cat", "f"))


@pytest.fixture
def forked(cli: Any) -> str:
    """A home with the sandbox ``source`` and its fork ``attempt``, which went on; the fork's id."""
    cli("new", "--name", "source")
    _write(cli, "source", "base")
    cli("snapshot", "-s", "source", "base")
    fork = str(cli("fork", "-s", "source", "base", "--name", "attempt"))
    _write(cli, "attempt", "attempted")
    return fork


def test_promote_prints_the_restore_context(cli: Any, forked: str) -> None:
    context = cli("promote")
    assert context.startswith("# The environment took over a fork's state, kept as statepoint sp-")
    assert "promoted from the fork attempt" in context
    assert _read(cli, "source") == "attempted"
    head = next(s for s in cli.json("log", "-s", "source")["statepoints"] if s["head"])
    base = cli.json("show", "-s", "source", "base")
    assert head["parent_id"] == base["id"]
    assert cli.json("list")["sandboxes"][1]["id"] == forked, "the fork stays"


def test_a_conflict_is_listed_and_forced_past(cli: Any, forked: str) -> None:
    _write(cli, "source", "went-on")
    later = cli("snapshot", "-s", "source", "later")
    preview = cli("promote", "attempt", "--preview")
    assert f"statepoint: statepoint {later} later" in preview
    data = cli.json("promote", "attempt", "--preview")
    assert (data["preview"], data["fork"], [c["kind"] for c in data["conflicts"]]) == (True, forked, ["statepoint"])
    told = cli.fails(1, "promote", "attempt")
    assert f"statepoint {later} later" in told
    assert "Now: nothing was changed" in told
    assert f"Next: planarian promote {forked} --force" in told
    assert json.loads(cli.run("promote", "attempt", "--json").stdout)["error"] == "promote-conflict"
    assert _read(cli, "source") == "went-on"
    restored = cli.json("promote", "attempt", "--force")
    assert (restored["action"], _read(cli, "source")) == ("promote", "attempted")
    cli("rollback", "-s", "source", "later")
    assert _read(cli, "source") == "went-on"


def test_without_a_conflict_the_preview_says_so(cli: Any, forked: str) -> None:
    assert "nothing: the source has not gone on since" in cli("promote", "--preview")


def test_what_can_not_be_promoted(cli: Any, forked: str) -> None:
    assert "is no fork" in cli.fails(3, "promote", "source")
    cli.fails(3, "promote", "nonesuch")
    cli("fork", "-s", "source", "base", "--name", "second")
    assert "there are 3 sandboxes" in cli.fails(3, "promote")
    cli("rm", "--yes", "attempt", "second")
    assert "is no fork" in cli.fails(3, "promote")


@pytest.mark.parametrize("backends", BACKENDS)
def test_files_and_processes_of_the_fork_go_on_in_the_source(
    bare: Any, backends: tuple[str, ...], workspace: Path, real_forks: Any
) -> None:
    memory = backends is NAMESPACE
    bare("new", *backends, "--name", "source")
    server = f"python3 -c '{COUNTER_SERVER}' counter.sock"
    bare(
        "run",
        "-n",
        "-s",
        "source",
        "--",
        "bash",
        "-c",
        f"({server}) >/dev/null 2>&1 & until test -S counter.sock; do sleep .02; done",
    )
    assert _ask(bare, "source", "add") == 1
    bare("snapshot", "-s", "source", "base")
    fork = bare("fork", "-s", "source", "base", "--name", "attempt")
    assert _ask(bare, "attempt", "add") == (2 if memory else 1)
    assert _ask(bare, "attempt", "add") == (3 if memory else 2)
    _write(bare, "attempt", "attempted")
    bare("run", "-s", "attempt", "--", "sh", "-c", "rm hello.txt; mkdir new; ln -s f new/link")
    bare("promote", "attempt")
    assert _read(bare, "source") == "attempted"
    assert bare("run", "-s", "source", "ls", "new").split() == ["link"]
    assert bare.run("run", "-s", "source", "test", "-e", "hello.txt").returncode == 1
    assert _ask(bare, "source", "add") == (4 if memory else 1)
    assert _ask(bare, "attempt", "add") == (4 if memory else 3), "each has its own server, in its own directory"
    if not memory:
        assert (workspace / "f").read_text() == "attempted"
    bare("rm", "--yes", fork)
    _write(bare, "source", "later")
    head = next(s["id"] for s in bare.json("log", "-s", "source")["statepoints"] if s["head"])
    bare("rollback", "-s", "source", head)
    assert _read(bare, "source") == "attempted"
    assert _ask(bare, "source", "add") == (4 if memory else 1)
    assert not bare.json("doctor")["problems"], "what is shared is known still"
    second = bare("fork", "-s", "source", head)
    assert _read(bare, second) == "attempted"
    assert _ask(bare, second, "add") == (4 if memory else 1)


@pytest.fixture
def real_forks(bare: Any) -> Iterator[None]:
    yield
    for row in reversed(bare.json("list")["sandboxes"]):
        bare("rm", "--yes", row["id"])


def _ask(cli: Any, sandbox: str, what: str) -> int:
    """Ask the sandbox's server; one that is started anew takes its time."""
    script = 'for i in $(seq 200); do python3 -c "$1" counter.sock "$2" 2>/dev/null && exit; sleep .02; done; exit 1'
    return int(cli("run", "-s", sandbox, "--", "bash", "-c", script, "bash", ASK_COUNTER, what))


@pytest.mark.needs("root", "criu", "namespaces", "btrfs")
def test_on_a_pool_where_nothing_is_copied(bare: Any) -> None:
    """The same verbs on ``btrfs``, whose statepoints are subvolumes: promoted, pruned, attached, skipped."""
    bare("pool", "create", "--size", "512M")
    try:
        backends = [{"copy": "btrfs"}.get(word, word) for word in NAMESPACE]
        bare("new", *backends, "--name", "source", "--policy", "on-change")
        bare("run", "-n", "-s", "source", "--", "bash", "-c", "sleep 1000 >/dev/null 2>&1 & echo base >f")
        base = bare("snapshot", "-s", "source", "base")
        bare("run", "-n", "-s", "source", "true")
        assert bare("snapshot", "-s", "source", "--if-due") == "", "nothing changed, and that is proven"
        fork = bare("fork", "-s", "source", "base", "--name", "attempt")
        _write(bare, "attempt", "attempted")
        assert bare.json("promote", "attempt", "--preview")["conflicts"] == []
        bare("promote", "attempt")
        promoted = next(s["id"] for s in bare.json("log", "-s", "source")["statepoints"] if s["head"])
        bare("rm", "--yes", fork)
        _write(bare, "source", "later")
        assert bare("snapshot", "-s", "source", "--if-due").startswith("sp-")
        bare("hold", promoted)
        pruned = bare.json("prune", "-s", "source", "--keep-last", "2", "--drop-named")["statepoints"]
        assert base in pruned
        bare("stop", "source")
        assert bare.json("attach")["context"]["safety_id"] is None, "nothing was left otherwise"
        bare("rollback", "-s", "source", promoted)
        assert _read(bare, "source") == "attempted"
        assert bare("run", "-s", "source", "pgrep", "-x", "sleep")
    finally:
        for row in reversed(bare.json("list")["sandboxes"]):
            bare("rm", "--yes", row["id"])
        bare("pool", "destroy")
