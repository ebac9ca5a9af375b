"""Workspaces that are refused, with the reason and the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import ConfigurationError, LineageError


def test_dangerous_workspaces_are_refused(
    fake_planarian: Planarian, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "file").write_text("")
    (fake_planarian.home / "sandboxes" / "inside").mkdir()
    for workspace in (
        Path("/"),
        tmp_path / "user",
        Path("~"),
        tmp_path,  # a parent of the home
        fake_planarian.home,
        fake_planarian.home / "sandboxes" / "inside",
        tmp_path / "link",
        tmp_path / "file",
        tmp_path / "missing",
        Path("/etc"),
        Path("/proc/self"),
        Path("/sys"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            fake_planarian.create_sandbox(workspace)
        assert caught.value.remedy
    assert fake_planarian.registry.sandboxes() == []


def test_sandboxes_are_found_by_name_and_prefix(fake_planarian: Planarian, workspace: Path) -> None:
    with pytest.raises(LineageError, match="no sandbox yet"):
        fake_planarian.sandbox()
    first = fake_planarian.create_sandbox(workspace, name="first")
    assert fake_planarian.sandbox().id == first.id
    second = fake_planarian.create_sandbox(workspace, name="second")
    assert fake_planarian.sandbox("first").id == first.id
    assert fake_planarian.sandbox(second.id[:9]).id == second.id
    for wrong, code in (("sb-", "sandbox-ambiguous"), ("third", "sandbox-unknown"), ("", "sandbox-ambiguous")):
        with pytest.raises(LineageError) as caught:
            fake_planarian.sandbox(wrong)
        assert caught.value.code == code
    with pytest.raises(LineageError, match="exists"):
        fake_planarian.create_sandbox(workspace, name="first")


def test_names_that_can_not_be_shown_are_refused(fake_planarian: Planarian, workspace: Path) -> None:
    for name in ("a\nb", "\x1b[2J", "\x9b2J", "\u202egnp", "x" * 101, "../up", "-n", "sb-1", "\udcff", " "):
        with pytest.raises(LineageError) as caught:
            fake_planarian.create_sandbox(workspace, name=name)
        assert caught.value.code == "name-invalid"
        assert str(caught.value).isascii()
