"""The shipped fixtures and marks, for all tests."""

import shutil
import subprocess

import pytest

pytest_plugins = ["planarian_core.testing.pytest_plugin"]


@pytest.fixture(scope="session", autouse=True)
def _apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where each test's files go to another part of an ext4 file system: for seconds it gives no inode away that was
    somebody's, and looks through all of these for each new file. Tests make and remove a million of them.
    """
    if shutil.which("chattr"):
        subprocess.run(["chattr", "+T", str(tmp_path_factory.getbasetemp())], capture_output=True, check=False)
