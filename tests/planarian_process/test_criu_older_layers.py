"""Images of sandboxes that were made when overlays still kept access times come back as they were taken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from planarian_core.model import SandboxSpec
from planarian_core.testing.process import COUNTER, Subject, goes_on, python
from planarian_process.criu import CriuBackend
from planarian_sandbox.namespace import NamespaceBackend

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


@pytest.fixture
def older(criu_backend: CriuBackend, criu_home: Path, criu_spec: SandboxSpec, tmp_path: Path) -> Iterator[Subject]:
    """A started sandbox with a layer of the first version."""
    host = NamespaceBackend(criu_home)
    spec = host.prepare(criu_spec)
    layout = Path(spec.layer, "layout.json")
    layout.write_text(json.dumps({**json.loads(layout.read_text()), "version": 1}))
    subject = Subject(criu_backend, host, spec, tmp_path, host.start(spec))
    yield subject
    subject.stop()
    shutil.rmtree(criu_home / "sandboxes")


def _options(subject: Subject, place: str) -> set[str]:
    """How something is mounted inside."""
    assert subject.live is not None
    for line in Path(f"/proc/{subject.live.init_pid}/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        if fields[4] == place:
            return set(fields[5].split(","))
    raise AssertionError(f"nothing is mounted at {place}")


def test_an_image_on_a_layer_of_the_first_version_comes_back(older: Subject) -> None:
    older.spawn(python(), "-c", COUNTER)
    older.shows("count")
    places = ("/", older.spec.workspace, "/dev")
    assert all("noatime" not in _options(older, place) for place in places)
    taken = older.take()
    older.rollback(taken)
    assert goes_on(older)
    assert all("noatime" not in _options(older, place) for place in places)


def test_a_new_layer_keeps_no_access_times(subject: Subject) -> None:
    assert all("noatime" in _options(subject, place) for place in ("/", subject.spec.workspace, "/dev"))
