"""``log --html``: where the page goes, what it never replaces, and what it holds. How it looks: tests/browser."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core.cli.log_html import Budget


def _data(page: str) -> Any:
    return json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[0])


@pytest.fixture
def worked(cli: Any) -> Any:
    """A sandbox with two statepoints and a fork."""
    sandbox = cli("new", "--name", "api")
    cli("snapshot", "clean", "-s", sandbox, "-d", "nothing <b>touched</b>")
    cli("outcome", "clean", "went well", "-s", sandbox, "--status", "succeeded")
    cli("snapshot", "next", "-s", sandbox)
    cli("fork", "clean", "-s", sandbox, "--name", "idea")
    return cli


def test_writes_a_page_and_prints_its_path(worked: Any) -> None:
    file = worked.cwd / "log.html"
    assert worked("log", "-s", "api", "--html", "log.html") == str(file)
    text = file.read_text()
    assert text.startswith("<!doctype html>")
    data = _data(text)
    assert [point["name"] for point in data["statepoints"]] == ["clean", "next"]
    assert [one["name"] for one in data["sandboxes"]] == ["api", "idea"]
    clean = data["statepoints"][0]
    assert clean["description"] == "nothing <b>touched</b>"
    assert clean["outcomes"][0][:2] == ["succeeded", "went well"]
    assert not list(worked.cwd.glob("*.partial"))


def test_a_fork_shows_the_statepoint_that_it_came_from(worked: Any) -> None:
    worked("snapshot", "own", "-s", "idea")
    data = _data(worked("log", "-s", "idea", "--html", "-"))
    assert [point["name"] for point in data["statepoints"]] == ["clean", "own"]
    assert data["statepoints"][1]["parent"] == data["statepoints"][0]["id"]


def test_a_rollback_is_a_return(worked: Any) -> None:
    worked("rollback", "clean", "-s", "api")
    data = _data(worked("log", "-s", "api", "--html", "-"))
    clean = data["statepoints"][0]["id"]
    assert data["returns"] == [[clean, 1]]
    assert data["sandboxes"][0]["head"] == clean


def test_failed_snapshots_only_on_request(cli: Any) -> None:
    cli("new")
    cli("snapshot", "good")
    cli.fails(1, "snapshot", env={"PLANARIAN_FAULT": "snapshot.files=fail"})
    assert len(_data(cli("log", "--html", "-"))["statepoints"]) == 1
    assert [s["status"] for s in _data(cli("log", "--all", "--html", "-"))["statepoints"]] == ["committed", "discarded"]


def test_the_standard_output(worked: Any) -> None:
    assert worked("log", "-s", "api", "--html", "-").startswith("<!doctype html>")
    assert list(worked.cwd.iterdir()) == [worked.cwd / "hello.txt"]


def test_as_json_it_says_where_the_page_is(worked: Any) -> None:
    said = worked.json("log", "-s", "api", "--html", "log.html")
    assert said["html"] == str(worked.cwd / "log.html")
    assert said["statepoints"] == 2
    done = worked.run("log", "-s", "api", "--html", "-", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]) == (2, "usage")


def test_an_older_page_is_replaced_and_nothing_else(worked: Any) -> None:
    page, other, link, folder = (worked.cwd / name for name in ("a.html", "notes.txt", "link.html", "folder"))
    page.write_text("<!DOCTYPE html>\nold")
    other.write_text("dear diary")
    link.symlink_to(page)
    folder.mkdir()
    worked("log", "-s", "api", "--html", "a.html")
    assert "old" not in page.read_text()[:40]
    for name in ("notes.txt", "link.html", "folder", "nowhere/a.html"):
        assert "log --html FILE" in worked.fails(1, "log", "-s", "api", "--html", name)
    assert other.read_text() == "dear diary"
    assert link.is_symlink()
    assert not list(worked.cwd.glob("*.partial"))


def test_a_pipe_in_its_place_does_not_hang_it(worked: Any) -> None:
    os.mkfifo(worked.cwd / "pipe")
    assert "no ordinary file" in worked.fails(1, "log", "-s", "api", "--html", "pipe")


def test_what_an_agent_put_in_the_way_is_not_followed(worked: Any, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    partial = worked.cwd / "log.html.partial"
    partial.symlink_to(precious)
    worked("log", "-s", "api", "--html", "log.html")
    assert precious.read_text() == "kept"
    partial.mkdir()
    assert "can't be written" in worked.fails(1, "log", "-s", "api", "--html", "log.html")


def test_texts_keep_to_their_limit_and_to_the_budget() -> None:
    budget = Budget(1000)
    cut = budget.text("a" * 500 + "\x1b", 300)
    assert "[201 characters left out]" in cut
    assert cut.startswith("aaa")
    assert cut.endswith("a?")
    assert not budget.scarce
    assert len(budget.text("b" * 900, 900)) < 150
    assert budget.scarce
    assert budget.text("short") == "short"


@pytest.fixture
def edited(bare: Any) -> Iterator[Any]:
    """A real sandbox with three statepoints, of which the third changed two files."""
    bare("new", "--sandbox", "directory", "--filesystem", "copy", "--process", "none")
    bare("snapshot", "first")
    bare("snapshot", "second")
    (bare.cwd / "hello.txt").write_text("goodbye </script>\n")
    (bare.cwd / "new.txt").write_text("new\n")
    bare("snapshot", "third")
    yield bare
    bare("rm", "--yes")


def test_statepoints_are_compared_with_their_parents(edited: Any) -> None:
    first, second, third = _data(edited("log", "--html", "-"))["statepoints"]
    assert "error" not in second["changes"], second["changes"]
    assert first["changes"] is None
    assert (second["changes"]["summary"], second["changes"]["paths"]) == ("none changed", [])
    assert third["changes"]["summary"] == "1 added, 1 changed"
    assert [path[:2] for path in third["changes"]["paths"]] == [["changed", "hello.txt"], ["added", "new.txt"]]
    texts = dict(third["changes"]["texts"])
    assert "-hello\n+goodbye </script>\n" in texts["hello.txt"]


def test_as_many_are_compared_as_are_wanted_the_newest_first(edited: Any) -> None:
    compared = [s["changes"] is not None for s in _data(edited("log", "--html", "-", "--diffs", "1"))["statepoints"]]
    assert compared == [False, False, True]
    none = [s["changes"] for s in _data(edited("log", "--html", "-", "--diffs", "0"))["statepoints"]]
    assert none == [None, None, None]


def test_what_cant_be_compared_says_so(edited: Any) -> None:
    shutil.rmtree(edited.home / "copy", ignore_errors=True)
    for store in edited.home.glob("**/objects"):
        shutil.rmtree(store)
    changes = _data(edited("log", "--html", "-", "--diffs", "1"))["statepoints"][2]["changes"]
    assert changes["error"]
