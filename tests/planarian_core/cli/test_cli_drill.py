"""``drill``, and what log, show and doctor say of warm copies and of statepoints that can't be restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planarian_core import Planarian
from planarian_core.testing.fakes import FakePlugin


def _hide(home: Path, point: str) -> Path:
    """Put the files of a statepoint where they aren't found."""
    return (home / "fake-files" / point).rename(home / "hidden")


def test_a_drill_says_whether_a_statepoint_can_be_restored(cli: Any) -> None:
    cli("new")
    point = cli("snapshot", "deps")
    assert cli("drill", "deps").startswith(f"{point} can be restored")
    assert cli.json("drill")["error"] == ""
    assert "was restored in" in cli("show", "deps")
    assert len(list((cli.home / "sandboxes").iterdir())) == 1, "the copy is gone again"


def test_a_drill_that_fails_is_said_everywhere(cli: Any) -> None:
    cli("new")
    point = cli("snapshot", "deps")
    hidden = _hide(cli.home, point)
    done = cli.run("drill", "deps", "--json")
    assert done.returncode == 1
    assert "are gone" in json.loads(done.stdout)["error"]
    assert "can't be restored" in cli("log")
    assert cli.json("log")["statepoints"][0]["drill"]["error"]
    assert "can't be restored" in cli("show", "deps")
    assert f"planarian drill {point}" in cli("doctor")
    hidden.rename(cli.home / "fake-files" / point)
    cli("drill", "deps")
    assert "can't be restored" not in cli("log")
    assert "planarian drill" not in cli("doctor")


def test_warm_copies_are_shown_wherever_they_are(cli: Any) -> None:
    cli("new")
    point = cli("snapshot", "deps")
    with Planarian.open(cli.home, plugins=[FakePlugin()]) as planarian:
        planarian.keep_warm("deps", 2, wait=True)
        assert " warm x2" in cli("log")
        assert cli.json("show", "deps")["warm"] == 2
        assert cli.json("doctor")["warm"] == {point: 2}
        assert cli.json("doctor")["problems"] == [], "the copies' folders are known"
    assert " warm" not in cli("log")
