"""The drill: every shipped inverse is tried on a scratch server; wrong ones, and such as do too little, are found."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core.errors import ConfigurationError, RemoteError
from planarian_core.testing import mcp_servers
from planarian_remote.declared.declaration import Scratch
from planarian_remote.declared.drill import Trial
from planarian_remote.declared.kind import DeclaredKind

from .conftest import Declare

SCRATCH = Path("${scratch}")


def _on(kind: DeclaredKind, command: Sequence[str]) -> DeclaredKind:
    """With the pinned server that is installed already, in the place of npx."""
    assert kind.scratch is not None
    return replace(kind, scratch=replace(kind.scratch, command=tuple(command)))


@pytest.mark.needs("npm")
@pytest.mark.parametrize("name", ["filesystem", "memory"])
def test_every_shipped_inverse_is_exact(declare: Declare, name: str) -> None:
    kind = declare(f'include = "{name}"', settings={"undone": "/nowhere"})
    command = (
        mcp_servers.filesystem(SCRATCH / "files", SCRATCH / "undone") if name == "filesystem" else mcp_servers.memory()
    )
    assert kind.scratch is not None
    pinned = {"filesystem": mcp_servers.FILESYSTEM, "memory": mcp_servers.MEMORY}[name]
    assert pinned in kind.scratch.command, "what is shipped is what is tested"
    report = _on(kind, command).drill()
    assert report.ok, report.to_text()
    assert {trial.outcome for trial in report.trials} == {"exact"}
    assert {trial.tool for trial in report.trials} == {n for n, tool in kind.tools.items() if tool.undo}
    assert (report.undeclared, report.absent) == ((), ())
    assert report.to_dict()["ok"] is True


STORE = """
[tools.get]
class = "read-only"
[tools.list]
class = "read-only"
[tools.put]
class = "compensable"
[tools.put.before.old]
tool = "get"
arguments = { key = "${call.key}" }
[[tools.put.undo]]
calls = [{ tool = "put", arguments = { key = "${call.key}", value = "UNDO" } }]
[[tools.put.examples]]
name = "over a value"
arguments = { key = "a", value = "2" }
setup = [{ tool = "put", arguments = { key = "a", value = "1" } }]
[tools.delete]
class = "compensable"
[[tools.delete.undo]]
calls = [{ tool = "put", arguments = { key = "${call.key}", value = "" } }]
[tools.vanished]
class = "read-only"
[scratch]
files = false
[scratch.reads.all]
tool = "list"
label = "the pairs"
"""


def _store(declare: Declare, toml: str) -> DeclaredKind:
    return _on(declare(toml), mcp_servers.store(SCRATCH / "store.sqlite"))


def test_a_right_inverse_is_exact_and_what_is_not_tried_is_said(declare: Declare) -> None:
    report = _store(declare, STORE.replace("UNDO", "${before.old.value}")).drill()
    assert report.trials[0] == Trial("put", "over a value", "exact"), report.to_text()
    assert report.trials[1] == Trial("delete", "-", "not tried", "it has no [[examples]]")
    assert "vanished" in report.absent
    assert "big" in report.undeclared
    assert report.ok
    assert "not tried  delete" in report.to_text()


@pytest.mark.parametrize(
    ("change", "outcome", "said"),
    [
        (("UNDO", "wrong"), "failed", "not as they should be"),
        (('"UNDO"', '"${before.old.nothing}"'), "failed", "there is no before.old.nothing"),
        (('arguments = { key = "${call.key}" }', 'arguments = { key = "other" }'), "differs", "don't see"),
        (('key = "a", value = "2"', 'key = "a", value = "1"'), "failed", "changes nothing"),
        (('tool = "put", arguments = { key = "a", value = "1" }', 'tool = "fail", arguments = { message = "no" }'),
         "failed", "its setup: fail reports: no"),
        (('[tools.put.before.old]\ntool = "get"\narguments = { key = "${call.key}" }\n', ""), "differs",
         "after the undo: the pairs"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_found(declare: Declare, change: tuple[str, str], outcome: str, said: str) -> None:
    toml = STORE.replace(*change).replace("UNDO", "wrong" if "before.old]" in change[0] else "${before.old.value}")
    report = _store(declare, toml).drill()
    assert not report.ok
    assert report.trials[0].outcome == outcome, report.to_text()
    assert said in report.trials[0].detail
    assert "NOT every call" in report.to_text()


def test_nothing_tried_is_not_well(declare: Declare) -> None:
    report = _store(declare, STORE.split("[[tools.put.examples]]")[0] + "[scratch]\nfiles = false\n").drill()
    assert not report.ok


def test_a_drill_needs_a_scratch_server_that_starts(declare: Declare) -> None:
    with pytest.raises(ConfigurationError, match="scratch server"):
        declare(STORE.split("[scratch]")[0]).drill()
    kind = declare(STORE.split("[[tools.put.examples]]")[0])
    with pytest.raises(RemoteError):
        replace(kind, scratch=Scratch((sys.executable, "-c", "raise SystemExit(3)"))).drill()
