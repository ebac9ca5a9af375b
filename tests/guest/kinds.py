"""For tests of images that say the same of processes that Planarian keeps account of and of those that Podman does."""

from __future__ import annotations

import pytest

_PODMAN = pytest.param("podman", marks=[pytest.mark.needs("podman"), pytest.mark.needs("crun")])
BOTH = pytest.mark.parametrize("subject", ["criu", _PODMAN], indirect=True)
CONTAINER = pytest.mark.parametrize("subject", [_PODMAN], indirect=True)
