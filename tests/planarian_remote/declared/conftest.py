"""Declared services on the real reference servers (npm) and on scripted ones."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core.testing import mcp_servers
from planarian_core.testing.scripted_server import Trail
from planarian_remote.configuration import Table
from planarian_remote.declared.kind import DeclaredKind, make

Declare = Callable[..., DeclaredKind]


def _declare(toml: str, **more: Any) -> DeclaredKind:
    raw = {"kind": "declared", "command": ["true"], **tomllib.loads(toml), **more}
    return make(Table("notes", raw), "sb-test")


@pytest.fixture
def declare() -> Declare:
    """Makes the kind of a table ``[services.notes]``, from TOML and more keys."""
    return _declare


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder that the filesystem server serves; ``undone`` lies beside it."""
    folder = tmp_path / "files"
    folder.mkdir()
    (tmp_path / "undone").mkdir()
    return folder


@pytest.fixture
def filesystem(files: Path) -> DeclaredKind:
    undone = files.parent / "undone"
    return _declare(
        'include = "filesystem"',
        command=mcp_servers.filesystem(files, undone),
        settings={"undone": str(undone)},
    )


@pytest.fixture
def memory_file(tmp_path: Path) -> Path:
    return tmp_path / "memory.jsonl"


@pytest.fixture
def memory(memory_file: Path) -> DeclaredKind:
    return _declare('include = "memory"', command=mcp_servers.memory(), env={"MEMORY_FILE_PATH": str(memory_file)})


@pytest.fixture
def file_trail(filesystem: DeclaredKind) -> Iterator[Trail]:
    target = filesystem.connect()
    yield Trail(filesystem, target)
    target.close()


@pytest.fixture
def memory_trail(memory: DeclaredKind) -> Iterator[Trail]:
    target = memory.connect()
    yield Trail(memory, target)
    target.close()
