"""A sandbox to search, on fakes; ``letters`` is what is searched."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from planarian_core import Planarian, Sandbox

LETTERS = Path(__file__).with_name("letters.py")


@pytest.fixture(scope="session")
def letters() -> ModuleType:
    spec = importlib.util.spec_from_file_location("letters", LETTERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["letters"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sandbox(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    return fake_planarian.create_sandbox(workspace, name="box")
