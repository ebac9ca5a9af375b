"""A missing moatless, or one of another version, is named with the command that mends it."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

import pytest

pytest.importorskip("moatless", reason="needs planarian[moatless]")

from planarian_core.errors import ConfigurationError


def _imported_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "planarian_swesearch.moatless", raising=False)
    importlib.import_module("planarian_swesearch.moatless")


def test_a_missing_moatless_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_there)
    with pytest.raises(ConfigurationError, match="moatless-tree-search isn't installed") as missing:
        _imported_anew(monkeypatch)
    assert missing.value.remedy == "pip install 'planarian[moatless]'"


def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.0.5")
    with pytest.raises(ConfigurationError, match=r"0\.0\.5 is installed; at least 0\.0\.4 and below 0\.0\.5 is needed"):
        _imported_anew(monkeypatch)
