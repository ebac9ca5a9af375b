"""The guest has what it was built from, and a kernel that does what the mechanisms need."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planarian_core.testing.soft_dirty import marks

VERSIONS = Path("/host/versions.json")


@pytest.fixture(scope="module")
def built() -> dict[str, str]:
    """Version by package, as they were chosen when the guest was built."""
    found = json.loads(VERSIONS.read_text())
    return {name: version for name, version in found.items() if isinstance(version, str)}


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def upstream(version: str) -> str:
    return re.split(r"[-+~]", version.partition(":")[2] or version, maxsplit=1)[0]


def test_kernel_is_the_one_that_was_chosen(built: dict[str, str]) -> None:
    assert os.uname().release == built["linux"]
    assert os.uname().release.startswith("6.12.")


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("zfsutils-linux", ("zfs", "version")),
        ("criu", ("criu", "--version")),
        ("podman", ("podman", "--version")),
        ("crun", ("crun", "--version")),
        ("runc", ("runc", "--version")),
    ],
)
def test_program_has_its_package_s_version(package: str, command: tuple[str, ...], built: dict[str, str]) -> None:
    version = upstream(built[package])
    assert re.search(rf"(?<![\d.]){re.escape(version)}(?![\d])", said(*command)), said(*command)
    print(f"{package} {version}")


def test_kernel_module_and_tools_of_zfs_are_of_one_version(built: dict[str, str]) -> None:
    loaded = Path("/sys/module/zfs/version").read_text()
    assert upstream(loaded.strip()) == built["zfs"] == upstream(built["zfsutils-linux"])


def test_python_finds_criu_s_and_zfs_s_own_packages() -> None:
    assert sys.version_info[:2] == (3, 13)
    for name in ("pycriu", "libzfs_core"):
        assert said("/usr/bin/python3", "-c", f"import {name}; print({name}.__name__)").strip() == name


def test_criu_can_work_here() -> None:
    """Plain ``check``: ``--all`` asks for what no restore here needs, and fails."""
    done = subprocess.run(["criu", "check"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernel_knows_which_pages_were_written_since() -> None:
    assert marks() == (False, True)


def test_cgroup_v2_with_the_controllers_that_sandboxes_use() -> None:
    enabled = Path("/sys/fs/cgroup/cgroup.subtree_control").read_text().split()
    assert {"memory", "pids", "cpu"} <= set(enabled)
