"""One store for many layers and processes, hostile layers, and what can't be captured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planarian_core.errors import RestoreError
from planarian_core.interfaces import Layer
from planarian_core.model import Artefact, Domain
from planarian_core.testing.filesystem import fill, wreck
from planarian_core.testing.oracle import assert_same, describe
from planarian_filesystem.copy import CopyBackend
from planarian_filesystem.sinks import Deposit
from planarian_filesystem.store import Store


def stored(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "store" / "objects").glob("??/*"))


# --- giving up


def test_collect_frees_what_only_discarded_artefacts_needed(backend: CopyBackend, layer: Layer, home: Path) -> None:
    (layer.path / "kept").write_bytes(os.urandom(100_000))
    kept = backend.capture(layer, "sp-1")
    (layer.path / "kept").write_bytes(os.urandom(200_000))
    (layer.path / "large").write_bytes(os.urandom(3_000_000))
    backend.capture(layer, "sp-2")
    backend.stage(kept, layer).switch()
    before = stored(home)
    assert backend.collect() == 0
    backend.discard("sp-2")
    freed = backend.collect()
    assert freed > 3_000_000
    assert stored(home) == before - freed
    backend.verify(kept)
    backend.destroy(layer)
    backend.discard("sp-1")
    backend.collect()
    assert stored(home) == 0


def test_collect_keeps_what_a_live_layer_builds_on(backend: CopyBackend, layer: Layer) -> None:
    fill(layer.path)
    backend.capture(layer, "sp-1")
    backend.discard("sp-1")
    backend.collect()
    again = backend.capture(layer, "sp-2")
    backend.verify(again)


def test_collect_refuses_to_guess(backend: CopyBackend, layer: Layer, home: Path) -> None:
    """With a tree missing, what it needs can't be told: nothing is removed."""
    (layer.path / "folder").mkdir()
    (layer.path / "folder" / "file").write_text("x")
    artefact = backend.capture(layer, "sp-1")
    path = home / "store" / "objects" / artefact.reference[:2] / artefact.reference[2:]
    path.unlink()
    before = stored(home)
    with pytest.raises(RestoreError):
        backend.collect()
    assert stored(home) == before


def test_what_dead_captures_left_is_swept(backend: CopyBackend, layer: Layer, home: Path) -> None:
    backend.capture(layer, "sp-1")
    left = home / "store" / "pending" / "deposit-of-the-dead"
    left.mkdir()
    (left / ("0" * 64)).write_bytes(b"x" * 1000)
    assert backend.collect() >= 1000
    assert not left.exists()


DEPOSITS = """
import sys
from pathlib import Path
from planarian_filesystem.sinks import Deposit
from planarian_filesystem.store import Store

store = Store(Path(sys.argv[1]) / "store")
for number in range(150):
    with Deposit(store) as deposit:
        deposit.put(f"{sys.argv[2]} {number}".encode())
        deposit.publish()
"""


def test_nobody_sweeps_what_the_living_store(backend: CopyBackend, home: Path) -> None:
    """Captures of several processes and of one, begun at the same time, and leftovers among them."""
    assert backend.probe().available
    store = Store(home / "store")
    with Deposit(store) as first:
        digests = [first.put(b"first")]
        workers = [subprocess.Popen([sys.executable, "-c", DEPOSITS, str(home), str(n)]) for n in range(3)]
        for number in range(100):
            (store.pending / f"deposit-left{number}").mkdir(exist_ok=True)
            with Deposit(store) as second:
                digests.append(second.put(b"second %d" % number))
                second.publish()
        assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0]
        first.publish()
    assert [store.size(digest) is not None for digest in digests] == [True] * 101
    with Deposit(store):
        assert len(os.listdir(store.pending)) == 1
    assert os.listdir(store.pending) == []


def test_a_strange_thing_among_deposits_hinders_nobody(backend: CopyBackend, layer: Layer, home: Path) -> None:
    assert backend.probe().available
    pending = home / "store" / "pending"
    (pending / "deposit-file").write_text("")
    (pending / "deposit-link").symlink_to(layer.path)
    (layer.path / "file").write_text("x")
    backend.verify(backend.capture(layer, "sp-1"))
    assert (layer.path / "file").read_text() == "x"


WORKER = """
import os, sys
from pathlib import Path
from planarian_core.interfaces import Layer
from planarian_filesystem.copy import CopyBackend

backend = CopyBackend(Path(sys.argv[1]))
layer = Layer(Path(sys.argv[2]))
for number in range(12):
    for file in range(20):
        (layer.path / f"file{file}").write_bytes(b"%d" % (number * file) * 500)
    backend.prepare(layer)
    artefact = backend.capture(layer, f"sp-{layer.path.name}-{number}")
    print(artefact.reference, flush=True)
    if number % 3 == 1:
        backend.discard(f"sp-{layer.path.name}-{number - 1}")
        backend.collect()
"""


def test_processes_share_one_store(backend: CopyBackend, home: Path, tmp_path: Path) -> None:
    """Captures of equal content, discards and collections at the same time: what is kept stays whole."""
    workers = []
    for number in range(4):
        (tmp_path / f"layer{number}").mkdir()
        arguments = [sys.executable, "-c", WORKER, str(home), str(tmp_path / f"layer{number}")]
        workers.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
    for worker in workers:
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        for number, reference in enumerate(output.split()):
            if number % 3 != 0:
                backend.verify(Artefact(Domain.FILES, "copy", reference))


# --- hostile layers


def test_a_directory_swapped_for_a_link_leads_nowhere(backend: CopyBackend, layer: Layer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("host's own")
    (outside / "extra").write_text("host's own")
    (layer.path / "folder").mkdir()
    (layer.path / "folder" / "file").write_text("state")
    description = describe(layer.path)
    artefact = backend.capture(layer, "sp-1")
    (layer.path / "folder" / "file").write_text("changed")
    host = describe(outside)
    staged = backend.stage(artefact, layer)
    shutil.rmtree(layer.path / "folder")
    (layer.path / "folder").symlink_to(outside)
    staged.switch()
    assert_same(describe(outside), host)
    assert_same(describe(layer.path), description)


def test_links_are_captured_not_followed(backend: CopyBackend, layer: Layer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (layer.path / "link").symlink_to(tmp_path / "secret")
    (layer.path / "folder").symlink_to(tmp_path)
    artefact = backend.capture(layer, "sp-1")
    assert artefact.logical == 0
    fork = Layer(tmp_path / "fork")
    backend.stage(artefact, fork).switch()
    assert os.readlink(fork.path / "link") == str(tmp_path / "secret")
    assert (fork.path / "folder").is_symlink()


def test_a_layer_that_became_a_link_is_refused(backend: CopyBackend, layer: Layer, tmp_path: Path) -> None:
    artefact = backend.capture(layer, "sp-1")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    layer.path.rmdir()
    layer.path.symlink_to(tmp_path / "outside")
    with pytest.raises(RestoreError):
        backend.stage(artefact, layer)
    assert (tmp_path / "outside" / "file").exists()


def test_a_directory_with_excluded_files_is_not_replaced(backend: CopyBackend, tmp_path: Path) -> None:
    layer = Layer(tmp_path / "layer", ("*.keep",))
    backend.create(layer)
    (layer.path / "thing").write_text("a file")
    artefact = backend.capture(layer, "sp-1")
    (layer.path / "thing").unlink()
    (layer.path / "thing" / "sub").mkdir(parents=True)
    (layer.path / "thing" / "sub" / "data.keep").write_text("precious")
    with pytest.raises(RestoreError) as caught:
        backend.stage(artefact, layer)
    assert caught.value.code == "restore-blocked"
    assert (layer.path / "thing" / "sub" / "data.keep").read_text() == "precious"


@pytest.mark.needs("root")
def test_a_mount_inside_is_named_and_left_alone(backend: CopyBackend, layer: Layer) -> None:
    (layer.path / "mounted").mkdir()
    (layer.path / "file").write_text("one")
    subprocess.run(["mount", "-t", "tmpfs", "none", str(layer.path / "mounted")], check=True, timeout=30)
    try:
        (layer.path / "mounted" / "inside").write_text("another filesystem's")
        artefact = backend.capture(layer, "sp-1")
        assert [path for path, _ in artefact.details["gaps"]] == ["mounted"]
        (layer.path / "file").write_text("two")
        backend.stage(artefact, layer).switch()
        assert (layer.path / "file").read_text() == "one"
        assert (layer.path / "mounted" / "inside").read_text() == "another filesystem's"
        with pytest.raises(RestoreError) as caught:
            backend.destroy(layer)
        assert caught.value.code == "layer-mounted"
        assert (layer.path / "mounted" / "inside").exists()
    finally:
        subprocess.run(["umount", str(layer.path / "mounted")], check=True, timeout=30)


@pytest.mark.needs("root")
def test_a_layer_that_is_a_mount_of_its_own(backend: CopyBackend, layer: Layer) -> None:
    """Nothing can be renamed into it from outside: staging goes inside, under a name that is never state."""
    subprocess.run(["mount", "-t", "tmpfs", "none", str(layer.path)], check=True, timeout=30)
    try:
        fill(layer.path)
        before = describe(layer.path)
        artefact = backend.capture(layer, "sp-1")
        wreck(layer.path)
        staged = backend.stage(artefact, layer)
        meanwhile = backend.capture(layer, "sp-2")
        staged.switch()
        assert_same(describe(layer.path), before)
        assert backend.stage(meanwhile, layer).changed_count > 0
    finally:
        subprocess.run(["umount", "-l", str(layer.path)], check=True, timeout=30)


@pytest.mark.needs("mkfs.btrfs")
@pytest.mark.needs("root")
def test_extents_are_shared_where_the_filesystem_can(tmp_path: Path) -> None:
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with open(image, "wb") as file:
        file.truncate(256 * 1024 * 1024)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, timeout=60)
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True, timeout=60)
    try:
        backend = CopyBackend(disk / "home")
        layer = Layer(disk / "layer")
        backend.create(layer)
        fill(layer.path)
        (layer.path / "large").write_bytes(os.urandom(100 * 1024 * 1024))
        before = describe(layer.path)
        os.sync()
        used = _used(disk)
        artefact = backend.capture(layer, "sp-1")
        backend.stage(artefact, Layer(disk / "fork")).switch()
        os.sync()
        assert _used(disk) - used < 20 * 1024 * 1024
        assert_same(describe(disk / "fork"), before)
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=60)


def _used(disk: Path) -> int:
    status = os.statvfs(disk)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


ORDINARY = """
import os, sys
from pathlib import Path
from planarian_core.interfaces import Layer
from planarian_filesystem.copy import CopyBackend

home, layer = Path(sys.argv[1]), Layer(Path(sys.argv[2]))
os.setgroups([]); os.setgid(65534); os.setuid(65534)
backend = CopyBackend(home)
artefact = backend.capture(layer, "sp-1")
gaps = dict(artefact.details["gaps"])
assert set(gaps) == {"theirs", "closed", "capable"}, gaps
(layer.path / "mine").write_text("changed")
(layer.path / "theirs").unlink()
backend.stage(artefact, layer).switch()
assert (layer.path / "mine").read_text() == "mine"
assert (layer.path / "mine").stat().st_mode & 0o7777 == 0o604
assert (layer.path / "theirs").read_text() == "theirs"
(layer.path / "new").write_text("new")
backend.stage(artefact, layer).switch()
assert not (layer.path / "new").exists()
print("well")
"""


@pytest.mark.needs("root")
def test_an_ordinary_user_is_told_what_is_beyond_him(tmp_path: Path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="planarian-ordinary-") as folder:
        base = Path(folder)
        base.chmod(0o755)
        for name in ("home", "layer"):
            (base / name).mkdir()
            os.chown(base / name, 65534, 65534)
        for name in ("mine", "theirs", "closed", "capable"):
            (base / "layer" / name).write_text(name)
        os.chown(base / "layer" / "mine", 65534, 65534)
        os.chown(base / "layer" / "capable", 65534, 65534)
        (base / "layer" / "mine").chmod(0o604)
        (base / "layer" / "closed").chmod(0o600)
        capability = bytes.fromhex("0100000200040000000000000000000000000000")
        os.setxattr(base / "layer" / "capable", "security.capability", capability)
        arguments = [sys.executable, "-c", ORDINARY, str(base / "home"), str(base / "layer")]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "well\n", done.stderr
        assert (base / "layer" / "closed").read_text() == "closed"
