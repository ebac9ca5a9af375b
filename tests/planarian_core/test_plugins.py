"""Plugins: one broken doesn't take the others down, duplicates are an error, unknown names say what there is."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

import pytest

from planarian_core import Planarian, hookimpl
from planarian_core.errors import BackendUnavailable, ConfigurationError
from planarian_core.hookspecs import BackendFactory
from planarian_core.interfaces import Availability
from planarian_core.plugin_manager import PluginManager
from planarian_core.testing.fakes import FakePlugin


def test_a_broken_plugin_is_reported_and_the_others_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.entry_points

    def with_broken(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [importlib.metadata.EntryPoint("broken", "no_such_module.hooks", group), *real(group=group)]

    monkeypatch.setattr(importlib.metadata, "entry_points", with_broken)
    manager = PluginManager(tmp_path)
    assert [b.name for b in manager.broken] == ["broken"]
    assert "no_such_module" in manager.broken[0].error
    assert "copy" in manager.names("filesystem")


def test_two_backends_of_one_name_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PluginManager(tmp_path, (FakePlugin(), FakePlugin()))
    assert caught.value.code == "backend-duplicate"


def test_an_unknown_backend_names_the_known_ones(fake_planarian: Planarian, workspace: Path) -> None:
    with pytest.raises(ConfigurationError, match="nonsense") as caught:
        fake_planarian.create_sandbox(workspace, sandbox="nonsense")
    assert "namespace" in caught.value.remedy


def test_an_unavailable_backend_says_why_and_what_mends_it(tmp_path: Path, workspace: Path) -> None:
    class Missing:
        name = "missing"

        def probe(self) -> Availability:
            return Availability(False, "/dev/zfs is missing", "apt-get install zfs")

    class Plugin:
        @hookimpl
        def planarian_backends(self) -> Sequence[BackendFactory]:
            return [BackendFactory("filesystem", "missing", lambda home: Missing(), rank=99)]

    with Planarian.open(tmp_path / "home", plugins=[FakePlugin(), Plugin()]) as planarian:
        with pytest.raises(BackendUnavailable, match="/dev/zfs") as caught:
            planarian.create_sandbox(workspace, sandbox="fake", filesystem="missing", process="fake")
        assert caught.value.remedy == "apt-get install zfs"
        chosen = planarian.create_sandbox(workspace, sandbox="fake", process="fake").record.filesystem
        assert chosen != "missing", "the default is the best that works here"
