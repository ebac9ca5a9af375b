"""What the guest gets along: the installed wheel, the tests, and what to run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).parent
_COMMAND = """\
#!/usr/bin/python3
import sys
from planarian_core.cli.main import main
sys.exit(main())
"""
REQUIRED = "linux,root,namespaces,criu,soft-dirty,zfs,podman,crun,runc"
"""Features whose absence fails a test in the guest."""


def fill(payload: Path, site: Path, checkout: Path, versions: Path, tests: Sequence[str]) -> None:
    """Fill a folder that the guest has at ``/host``. ``tests``: paths below the checkout, and options of pytest's."""
    left_out = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(site, payload / "site", symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "bin"))
    (payload / "bin").mkdir()
    (payload / "bin" / "planarian").write_text(_COMMAND)
    (payload / "bin" / "planarian").chmod(0o755)
    shutil.copytree(checkout / "tests", payload / "checkout" / "tests", ignore=left_out, symlinks=True)
    shutil.copy(checkout / "pyproject.toml", payload / "checkout")
    shutil.copy(versions, payload / "versions.json")
    shutil.copy(_HERE / "guest-run", payload / "run")
    inside = [_as_seen_inside(argument, checkout) for argument in tests]
    (payload / "arguments").write_text("".join(f"{argument}\0" for argument in inside))
    settings = {"PLANARIAN_REQUIRE": REQUIRED, "PLANARIAN_TEST_INSTALLED": "1", "PYTHONPATH": ""}
    settings |= {name: os.environ[name] for name in ("PLANARIAN_CYCLES",) if name in os.environ}
    (payload / "environment").write_text("".join(f"{name}={value!r}\n" for name, value in settings.items()))


def _as_seen_inside(argument: str, checkout: Path) -> str:
    path, colons, name = argument.partition("::")
    return f"/host/checkout/{path}{colons}{name}" if (checkout / path).exists() else argument
