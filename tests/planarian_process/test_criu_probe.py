"""Whether criu works here is tried, remembered and explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planarian_core.interfaces import SandboxCapabilities
from planarian_core.model import SandboxSpec
from planarian_process.criu import CriuBackend

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


def test_probe_tries_and_remembers(criu_home: Path) -> None:
    first = CriuBackend(criu_home).probe()
    assert first.available, first.reason
    assert "CRIU" in first.reason
    cached = list((criu_home / "cache").glob("criu-probe-*.json"))
    assert len(cached) == 1
    assert {"works", "version", "mem_track"} <= set(json.loads(cached[0].read_text()))
    assert CriuBackend(criu_home).probe() == first


def test_probe_leaves_nothing_behind(criu_home: Path) -> None:
    CriuBackend(criu_home).probe()
    assert str(criu_home) not in Path("/proc/self/mountinfo").read_text()
    assert sorted(path.suffix for path in (criu_home / "cache").iterdir()) == [".json", ".kdat"]


def test_a_spoilt_finding_is_made_anew(criu_home: Path) -> None:
    first = CriuBackend(criu_home).probe()
    (file,) = (criu_home / "cache").glob("criu-probe-*.json")
    file.write_text('{"works"')
    assert CriuBackend(criu_home).probe() == first


def test_a_missing_binary_names_the_packages(criu_home: Path) -> None:
    found = CriuBackend(criu_home, "criu-that-is-not-there").probe()
    assert not found.available
    assert "criu-that-is-not-there" in found.reason
    assert "apt-get install" in found.remedy


def test_a_binary_that_is_no_criu(criu_home: Path, tmp_path: Path) -> None:
    impostor = tmp_path / "criu"
    impostor.write_text("#!/bin/sh\necho 'nonsense' >&2\nexit 3\n")
    impostor.chmod(0o755)
    found = CriuBackend(criu_home, str(impostor)).probe()
    assert not found.available
    assert "exit code 3" in found.reason


def test_serves_only_a_tree(criu_backend: CriuBackend, criu_spec: SandboxSpec) -> None:
    flat = SandboxCapabilities(isolated=False, process_tree=False, in_place=True)
    refused = criu_backend.serves(criu_spec, flat)
    assert not refused.available
    assert refused.remedy
