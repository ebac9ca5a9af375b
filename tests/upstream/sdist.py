"""Where upstream tests come from: the sdist of the version that is installed. And how pytest's report of them reads."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree


def fetch(package: str, place: Path) -> Path:
    """Download and unpack the sdist of the installed version below ``place``; its top folder."""
    folder = place / f"sdist-{package}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps"]
    wanted = f"{package}=={importlib.metadata.version(package)}"
    subprocess.run([*pip, "--dest", str(folder), wanted], check=True, timeout=600)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked", filter="data")
    (top,) = (folder / "unpacked").iterdir()
    return top


def read_counts(report: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped, by pytest's ``--junitxml``."""
    suite = ElementTree.parse(report).getroot().find("testsuite")  # noqa: S314  # our own pytest wrote it
    if suite is None:
        raise SystemExit("pytest wrote no report")
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    skipped = int(suite.get("skipped", 0))
    return {"passed": int(suite.get("tests", 0)) - failed - skipped, "failed": failed, "skipped": skipped}
