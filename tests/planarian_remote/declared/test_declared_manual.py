"""The manual's examples are declarations that load, and do what it says of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from planarian_core.testing.scripted_server import ScriptedServer, Trail, tool_error
from planarian_remote.configuration import Table
from planarian_remote.declared.kind import DeclaredKind, make
from planarian_remote.declared.templates import _OPERATORS

MANUAL = (Path(__file__).parents[3] / "docs" / "declared.md").read_text()
BLOCKS = re.findall(r"```toml\n(.*?)```", MANUAL, re.DOTALL)


def _services() -> dict[str, dict[str, Any]]:
    first, tools, scratch = BLOCKS
    found: dict[str, dict[str, Any]] = (
        tomllib.loads(first)["services"] | tomllib.loads(f"{tools}\n{scratch}")["services"]
    )
    return found


@pytest.mark.parametrize("name", ["docs", "issues"])
def test_examples_load(name: str) -> None:
    kind = make(Table(name, _services()[name]), "sb")
    assert kind.tools
    assert kind.scratch is not None


def test_every_operator_is_in_the_manual() -> None:
    assert {name for name in _OPERATORS if f'"{name}"' not in MANUAL} == set()


class Issues:
    def __init__(self) -> None:
        self.titles = {1: "old"}
        self.labels = {"bug": "red"}
        self.server = ScriptedServer(
            {
                "get_issue": lambda id: (
                    {"title": self.titles[id]} if id in self.titles else tool_error("no such issue")
                ),
                "set_title": lambda id, title: {"was": self._swap(self.titles, id, title)},
                "create_issue": lambda title: self._create(title),
                "delete_issue": lambda id: {"was": self.titles.pop(id)},
                "get_label": lambda name: (
                    {"colour": self.labels[name]} if name in self.labels else tool_error("no such label: x")
                ),
                "put_label": lambda name, colour: {"was": self._swap(self.labels, name, colour)},
                "delete_label": lambda name: {"was": self.labels.pop(name)},
            }
        )

    def _swap(self, table: dict[Any, str], key: Any, value: str) -> str | None:
        old, table[key] = table.get(key), value
        return old

    def _create(self, title: str) -> dict[str, int]:
        number = max(self.titles) + 1
        self.titles[number] = title
        return {"id": number}


def test_the_examples_are_undone() -> None:
    issues = Issues()
    kind: DeclaredKind = make(Table("issues", _services()["issues"]), "sb")
    trail = Trail(kind, issues.server)
    trail.call("set_title", id=1, title="new")
    trail.call("create_issue", title="second")
    trail.call("put_label", name="bug", colour="blue")
    trail.call("put_label", name="idea", colour="green")
    assert (issues.titles, issues.labels) == ({1: "new", 2: "second"}, {"bug": "blue", "idea": "green"})
    trail.go(0)
    assert (issues.titles, issues.labels) == ({1: "old"}, {"bug": "red"})
