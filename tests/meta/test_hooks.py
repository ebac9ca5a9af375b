"""A hook, or an argument of one, that nobody documented, tested or calls is an error."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import FunctionType

import pytest

from planarian_core import hookspecs

ROOT = Path(__file__).parents[2]
HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("planarian_")}
OBVIOUS = {"sandbox", "service"}
"""Arguments whose meaning is their type's, the same in every hook."""


def _sources(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.rglob("*.py") if "meta" not in path.parts)


TESTS = _sources(ROOT / "tests") + _sources(ROOT / "planarian_core" / "testing")
CORE = "\n".join(path.read_text() for path in (ROOT / "planarian_core").rglob("*.py") if path.name != "hookspecs.py")


def test_there_are_hooks() -> None:
    assert "planarian_backends" in HOOKS


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_documented_with_each_argument(name: str) -> None:
    spec = HOOKS[name]
    assert isinstance(spec, FunctionType)
    text = inspect.getdoc(spec) or ""
    assert len(text) > 20
    arguments = inspect.signature(spec).parameters.keys() - OBVIOUS
    unnamed = [argument for argument in arguments if not re.search(rf"\b{argument}\b", text)]
    assert not unnamed, f"{name} doesn't say what these are: {unnamed}"


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_typed(name: str) -> None:
    signature = inspect.signature(HOOKS[name])
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_implemented_by_a_test_or_a_fake(name: str) -> None:
    implemented = re.search(rf"def {name}\(", TESTS)
    assert implemented, f"no test has an implementation of {name}"


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_called_by_the_core(name: str) -> None:
    called = re.search(rf"""[."]{name}\b""", CORE)
    assert called, f"nothing calls {name}"
