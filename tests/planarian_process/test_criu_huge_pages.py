"""What is started without transparent huge pages, and what started it; in the guest images are asked about it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from planarian_process.criu_huge_pages import without_huge_pages

_ENABLED = re.compile(r"^THP_enabled:\t(\d)$", re.MULTILINE)
pytestmark = pytest.mark.needs("linux")


def enabled(status: str) -> str:
    found = _ENABLED.search(status)
    if found is None:
        pytest.skip("this kernel has no transparent huge pages")
    return found[1]


def of_a_program() -> str:
    """Started by a shell that is started now."""
    done = subprocess.run(["sh", "-c", "cat /proc/self/status; true"], capture_output=True, text=True, check=True)
    return enabled(done.stdout)


def test_what_is_started_inside_has_none_and_we_have_ours_afterwards() -> None:
    own = enabled(Path("/proc/self/status").read_text())
    assert of_a_program() == own
    with without_huge_pages():
        assert of_a_program() == "0"
        with without_huge_pages():
            pass
        assert of_a_program() == "0"
    assert enabled(Path("/proc/self/status").read_text()) == own
    assert of_a_program() == own
