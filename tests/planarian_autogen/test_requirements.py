"""A missing framework, or one of another version, is named with the command that mends it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import planarian_autogen
from planarian_autogen import Environment
from planarian_core import Planarian
from planarian_core.errors import ConfigurationError
from planarian_core.requirements import require

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("autogen_core", "autogen_agentchat", "agent_framework"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import planarian_autogen
planarian_autogen.Environment
print("there")
"""


def test_what_needs_no_framework_is_there_without_one() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "there\n", done.stderr


def test_a_missing_framework_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no-such-framework isn't installed") as missing:
        require("no-such-framework", "autogen", at_least=(1,), below=(2,))
    assert (missing.value.code, missing.value.remedy) == ("autogen-missing", "pip install 'planarian[autogen]'")


def test_a_missing_framework_is_named_where_something_of_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_there)
    with pytest.raises(ConfigurationError, match="autogen-core isn't installed"):
        planarian_autogen.SandboxWorkbench  # noqa: B018  # being asked for is what fails
    assert planarian_autogen.Environment is Environment


def test_another_version_is_named() -> None:
    version = importlib.metadata.version("pytest")
    with pytest.raises(ConfigurationError, match=r"at least 1\.2 and below 1\.3 is needed") as wrong:
        require("pytest", "autogen", at_least=(1, 2), below=(1, 3))
    assert f"pytest {version} is installed" in wrong.value.message
    assert wrong.value.code == "autogen-version"


def test_settings_that_can_t_be_meant_are_refused(planarian: Planarian) -> None:
    with pytest.raises(ConfigurationError, match="needs a workspace"):
        Environment(planarian)
    with pytest.raises(ConfigurationError, match="on_load='merge' is unknown"):
        Environment(planarian, "project", on_load="merge")
    with pytest.raises(ConfigurationError, match="colour"):
        Environment(planarian, "project", colour="red")
