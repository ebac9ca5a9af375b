"""``effects``, ``approve``, and what the other commands say of remote services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planarian_core.errors import RemoteError
from planarian_core.testing.key_value import KeyValueTarget


@pytest.fixture
def store(cli: Any, tmp_path: Path) -> Path:
    path = tmp_path / "store.sqlite"
    with open(cli.home / "planarian.toml", "a") as file:
        file.write(f'[services.store]\nkind = "key-value"\npath = "{path}"\n')
    cli("new")
    return path


def _call(cli: Any, store: Path, tool: str, **arguments: str) -> None:
    with cli.open() as planarian:
        session = planarian.remote_session(planarian.sandbox(), "store")
        session.call(tool, arguments, KeyValueTarget(store))


def test_the_undo_log_is_printed(cli: Any, store: Path) -> None:
    assert "no remote effects" in cli.run("effects").stderr.decode()
    cli("snapshot", "before")
    _call(cli, store, "put", key="a", value="1")
    assert "a: None -> 1" in cli("effects")
    cli("rollback", "before")
    (effect,) = cli.json("effects")["effects"]
    assert (effect["state"], effect["call_class"], effect["reason"]) == (
        "undone",
        "compensable",
        "the value before is kept",
    )
    assert cli.json("effects", "--service", "other")["effects"] == []


def test_a_pivot_is_allowed_once(cli: Any, store: Path) -> None:
    with pytest.raises(RemoteError) as caught:
        _call(cli, store, "send", text="hello")
    (waiting,) = cli.json("approve", "--list")
    assert f"planarian approve {waiting['id']}" in caught.value.remedy
    assert "hello" in cli("approve")
    assert f"planarian approve {waiting['id']}" in cli("doctor")
    assert "once" in cli("approve", waiting["id"])
    _call(cli, store, "send", text="hello")
    assert cli.json("approve") == []
    assert "no call waits as ap-0" in cli.fails(3, "approve", "ap-0")


def test_a_preview_says_what_would_be_undone_and_done_again(cli: Any, store: Path) -> None:
    cli("snapshot", "before")
    _call(cli, store, "put", key="a", value="1")
    assert "undo store: a: None -> 1" in cli("rollback", "before", "--dry-run")
    safety = cli.json("rollback", "before")["safety_id"]
    assert "do again store: a: None -> 1" in cli("rollback", safety, "--dry-run")


def test_an_effect_of_unknown_end_is_settled_by_hand(cli: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANARIAN_FAULT", "call.begun=fail")
    with pytest.raises(OSError, match="fault"):
        _call(cli, store, "put", key="a", value="1")
    monkeypatch.delenv("PLANARIAN_FAULT")
    assert "sent" in cli("effects")
    assert "how call 1 of store ended isn't known yet" in cli("doctor")
    assert "--as" in cli.fails(2, "effects", "--settle", "1")
    assert "isn't one whose end is unknown" in cli.fails(
        3, "effects", "--service", "store", "--settle", "2", "--as", "void"
    )
    (effect,) = cli.json("effects", "--service", "store", "--settle", "1", "--as", "void")["effects"]
    assert effect["state"] == "void"


def test_a_kind_that_nobody_offers_is_named(cli: Any) -> None:
    with open(cli.home / "planarian.toml", "a") as file:
        file.write('[services.x]\nkind = "unheard-of"\n')
    cli("new")
    assert "no plugin offers the kind 'unheard-of'" in cli.fails(1, "snapshot")
    assert "no plugin offers the kind 'unheard-of'" in cli("doctor")
