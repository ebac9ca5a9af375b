"""The registry: durability, several openers, and files that are no registry of ours."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.codec import decode, encode
from planarian_core.errors import ConfigurationError, RegistryCorrupt
from planarian_core.model import (
    Artefact,
    Branch,
    Coverage,
    Domain,
    Gap,
    RemotePosition,
    SandboxRecord,
    SandboxSpec,
    Statepoint,
    Status,
    new_id,
)
from planarian_core.registry import Registry
from planarian_core.registry_schema import SCHEMA_VERSION


def _statepoint(name: str = "") -> Statepoint:
    return Statepoint(new_id("sp"), "sb-1", "br-1", None, "2026-01-01T00:00:00.000Z", name=name)


def test_values_survive_serialisation() -> None:
    value = Statepoint(
        "sp-1", "sb-1", "br-1", None, "t", Status.COMMITTED, "name", "text", {"git": "main"},
        files=Artefact(Domain.FILES, "copy", "abc", 1, 2, {"n": [1, {"x": None}]}),
        remote=(RemotePosition("s", "e", "3"),),
        coverage=Coverage(("files",), (Gap(Domain.REMOTE, "s", "why"),)),
        in_flight=(4, 5),
    )  # fmt: skip
    assert decode(Statepoint, encode(value)) == value
    data = encode(value)
    data["from the future"] = 1
    del data["timings"]
    assert decode(Statepoint, data) == value, "unknown keys are ignored, missing ones take the default"


def test_a_newer_registry_is_refused(tmp_path: Path) -> None:
    Registry(tmp_path / "r").close()
    with sqlite3.connect(tmp_path / "r") as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(RegistryCorrupt) as caught:
        Registry(tmp_path / "r")
    assert caught.value.code == "registry-newer"


def test_what_is_no_registry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"this is no database" * 100)
    with pytest.raises(RegistryCorrupt) as caught:
        Registry(tmp_path / "r")
    assert caught.value.code == "registry-corrupt"


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "r")
    statepoint = _statepoint()
    registry.add(statepoint)
    with sqlite3.connect(tmp_path / "r") as connection:
        connection.execute("UPDATE statepoints SET record = '{\"id\": 3}'")
    with pytest.raises(RegistryCorrupt):
        registry.statepoint(statepoint.id)


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "r")
    spec = SandboxSpec("sb-1", "/w", "/l", "/h", "fake")
    branch = Branch("br-1", "sb-1")
    registry.add_sandbox(SandboxRecord(spec, branch.id, "fake", "fake", "t"), branch)
    second = SandboxRecord(replace(spec, id="sb-2"), branch.id, "fake", "fake", "t")
    with pytest.raises(RegistryCorrupt, match="UNIQUE"):
        registry.add_sandbox(second, branch)
    assert [r.id for r in registry.sandboxes()] == ["sb-1"], "the row before the one that failed is gone too"


_APPEND = """
import sys
from pathlib import Path
from planarian_core.model import Outcome, new_id
from planarian_core.registry import Registry
registry = Registry(Path(sys.argv[1]))
for index in range(10):
    registry.add_outcome(Outcome(new_id("oc"), "sp-1", f"{sys.argv[2]}.{index}"))
"""


def test_many_processes_write_to_one_registry(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _APPEND, str(tmp_path / "r")]
    writers = [subprocess.Popen([*command, str(number)], cwd=tmp_path) for number in range(4)]
    for writer in writers:
        assert writer.wait(60) == 0
    texts = [o.text for o in Registry(tmp_path / "r").outcomes("sp-1")]
    assert len(texts) == 40
    for number in range(4):
        assert [t for t in texts if t.startswith(f"{number}.")] == [f"{number}.{i}" for i in range(10)]


_CLOSED_WHILE_READ = """
import sys, threading
from pathlib import Path
from planarian_core.registry import Registry

registry = Registry(Path(sys.argv[1]))
done = threading.Event()

def read():
    while not done.is_set():
        registry.rows("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 300) SELECT i FROM n")

readers = [threading.Thread(target=read) for _ in range(3)]
for reader in readers:
    reader.start()
for _ in range(2000):
    registry.close()
done.set()
for reader in readers:
    reader.join()
"""


def test_a_registry_is_closed_while_threads_read_it(tmp_path: Path) -> None:
    """A connection closed in the middle of a read takes the whole process along, so this is another one."""
    result = subprocess.run(
        [sys.executable, "-c", _CLOSED_WHILE_READ, tmp_path / "r"], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(ConfigurationError) as caught:
        Planarian.open(tmp_path / "home")
    assert caught.value.code == "home-unusable"


@pytest.mark.needs("user")
def test_a_read_only_home_is_refused(tmp_path: Path) -> None:
    Planarian.open(tmp_path / "home").close()
    (tmp_path / "home").chmod(0o500)
    try:
        with pytest.raises((ConfigurationError, RegistryCorrupt)):
            Planarian.open(tmp_path / "home")
    finally:
        (tmp_path / "home").chmod(0o700)


def test_a_home_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o755)
    Planarian.open(tmp_path / "home").close()
    assert (tmp_path / "home").stat().st_mode & 0o077 == 0
