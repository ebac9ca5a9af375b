"""For tests of images that say the same of processes that Planarian keeps account of and of those that Podman does."""

from __future__ import annotations

import pytest

BOTH = pytest.mark.parametrize(
    "subject",
    ["criu", pytest.param("podman", marks=[pytest.mark.needs("podman"), pytest.mark.needs("crun")])],
    indirect=True,
)
