"""Under nox it is the installed wheel that is tested, in this process and in those that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PACKAGES = ("planarian_core", "planarian_filesystem", "planarian_miniswe", "planarian_process", "planarian_sandbox")
LOCATE = """
import importlib.util, sys
for name in sys.argv[1:]:
    print(importlib.util.find_spec(name).origin)
"""

pytestmark = pytest.mark.skipif(
    os.environ.get("PLANARIAN_TEST_INSTALLED") != "1",
    reason="not under nox: the sources are tested, installed editable",
)


def _installed(path: str | None) -> bool:
    return path is not None and Path(path).is_relative_to(sysconfig.get_paths()["purelib"])


@pytest.mark.parametrize("name", PACKAGES)
def test_this_process_imports_the_wheel(name: str) -> None:
    assert _installed(__import__(name).__file__)


def test_processes_that_tests_start_import_the_wheel() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOCATE, *PACKAGES], capture_output=True, text=True, check=True, timeout=60
    )
    assert [_installed(line) for line in done.stdout.splitlines()] == [True] * len(PACKAGES)
