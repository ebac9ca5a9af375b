"""Increments through the whole runtime: pruned, exported, forked from, kept warm; what is accounted for.

Whichever way they come about here: by what the kernel says was written (in the guest), or by comparing pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core import Planarian, quota
from planarian_core.model import Statepoint
from planarian_core.prune_choice import PrunePolicy
from planarian_core.sandbox import Sandbox
from planarian_core.testing.memory import HOLDER, PAGE
from planarian_core.testing.process import python
from planarian_core.testing.workloads import remove_all

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]

SIZE = 32 << 20
INCREMENTS = {
    "memory as it differs from the image before",
    "memory in full, of which the disk has once what equals the image before",
}
SERVER = f"""
import os
{HOLDER.partition("while True")[0]}
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGUSR1}})  # one that comes while it writes waits
with open("ready.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("ready.new", "ready")
while True:
    signal.sigwait({{signal.SIGUSR1}})
    touch()
    with open("turn", "w") as file:
        file.write(str(turn))
    os.rename("turn", "shown")
"""


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as planarian:
        yield planarian
        remove_all(planarian)


@pytest.fixture
def sandbox(planarian: Planarian, workspace: Path) -> Sandbox:
    sandbox = planarian.create_sandbox(workspace, sandbox="namespace", filesystem="copy", process="criu")
    sandbox.spawn([python(), "-c", SERVER, str(SIZE // PAGE)])
    sandbox.run("until test -e ready; do sleep 0.05; done")
    return sandbox


def turn(sandbox: Sandbox) -> int:
    """Let it write to its memory; how often it has by now, which it knows from there."""
    done = sandbox.run("rm -f shown; kill -USR1 $(cat ready); until test -e shown; do sleep 0.05; done; cat shown")
    return int(done.stdout)


def incremental(point: Statepoint) -> bool:
    return not INCREMENTS.isdisjoint(point.coverage.captured)


def on_disk(planarian: Planarian) -> int:
    """Bytes of process images, each counted once however many names it has."""
    files = {
        (found.st_dev, found.st_ino): found.st_size
        for file in (planarian.home / "statepoints").rglob("*.img")
        for found in [file.stat()]
    }
    return sum(files.values())


def test_pruning_orphans_nothing_and_frees_what_it_says(planarian: Planarian, sandbox: Sandbox) -> None:
    assert turn(sandbox) == 2
    first = sandbox.snapshot("first")
    assert turn(sandbox) == 3
    second = sandbox.snapshot("second")
    assert turn(sandbox) == 4
    third = sandbox.snapshot("third")
    assert [incremental(point) for point in (first, second, third)] == [False, True, True]
    before = on_disk(planarian)
    pruned = planarian.prune(PrunePolicy(keep_last=1, keep_named=False), [sandbox])
    assert set(pruned.statepoints) == {first.id, second.id}
    assert abs(pruned.freed - (before - on_disk(planarian))) < 1 << 20
    assert pruned.freed < SIZE, "its pages are needed still"
    assert quota.stored(planarian.registry, sandbox.id) > SIZE, "and accounted for"
    sandbox.rollback(third)
    assert turn(sandbox) == 5
    fourth = sandbox.snapshot("fourth")
    assert incremental(fourth)
    sandbox.stop()
    sandbox.rollback(fourth)
    assert turn(sandbox) == 6


def test_a_bundle_is_whole(planarian: Planarian, sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.snapshot("first")
    assert turn(sandbox) == 2
    second = sandbox.snapshot("second")
    assert incremental(second)
    bundle = planarian.export(second, tmp_path / "bundle")
    with Planarian.open(tmp_path / "other") as other:
        imported = other.import_(bundle, trust_images=True)
        other.rollback(imported, "second")
        assert turn(imported) == 3
        third = imported.snapshot("third")
        assert incremental(third)
        imported.rollback(third)
        assert turn(imported) == 4
        remove_all(other)


def test_forks_and_warm_copies_go_on_with_increments(planarian: Planarian, sandbox: Sandbox) -> None:
    first = sandbox.snapshot("first")
    fork = planarian.fork(first)
    assert turn(fork) == 2
    assert incremental(fork.snapshot("in the fork"))
    planarian.keep_warm(first, wait=True)
    assert turn(sandbox) == 2
    sandbox.rollback(first)
    assert turn(sandbox) == 2
    second = sandbox.snapshot("after the copy")
    assert incremental(second)
    assert turn(sandbox) == 3
    sandbox.rollback(second)
    assert turn(sandbox) == 3
