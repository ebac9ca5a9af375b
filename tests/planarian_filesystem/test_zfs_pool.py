"""The place of a home in a ZFS pool: made, found again, given up. Needs a kernel with ZFS: ``nox -s guest``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planarian_core import Planarian
from planarian_core.errors import BackendUnavailable, ConfigurationError, PlanarianError
from planarian_core.interfaces import Layer
from planarian_core.testing.workloads import remove_all
from planarian_core.testing.zfs import listed
from planarian_filesystem import zfs_making, zfs_mount
from planarian_filesystem.zfs import ZfsBackend
from planarian_filesystem.zfs_datasets import Datasets
from planarian_filesystem.zfs_pool import ZfsPool

_ON_ZFS = pytest.mark.needs("zfs")


def test_a_home_without_a_place_says_what_to_do(tmp_path: Path) -> None:
    """On every host, with ZFS or without."""
    found = ZfsBackend(tmp_path).probe()
    assert not found.available
    assert "planarian zfs create" in found.remedy


@_ON_ZFS
def test_it_is_the_default_where_there_is_a_place(home_on_zfs: Path, workspace: Path) -> None:
    with Planarian.open(home_on_zfs) as planarian:
        assert planarian.create_sandbox(workspace, process="none").record.filesystem == "zfs"
        remove_all(planarian)


@_ON_ZFS
def test_a_pool_file_comes_back_after_an_export(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    pool = ZfsPool(home)
    zfs_making.create_file(pool, zfs_making.SMALLEST, sparse=True)
    with pytest.raises(ConfigurationError):
        zfs_making.create_file(pool, zfs_making.SMALLEST)
    backend = ZfsBackend(home)
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    (layer.path / "file").write_text("kept")
    artefact = backend.capture(layer, "sp-1")
    zfs_mount.remove(layer.path)
    zfs_mount.remove(pool.root)
    subprocess.run(["zpool", "export", pool.where().base], check=True, timeout=60)
    for again in (backend, ZfsBackend(home)):
        again.verify(artefact)
        assert (layer.path / "file").read_text() == "kept"
    with pytest.raises(ConfigurationError):
        zfs_making.destroy(pool, force=False)
    assert zfs_making.destroy(pool, force=True) == (1, 1)
    assert not pool.file.exists()
    assert not ZfsBackend(home).probe().available


@_ON_ZFS
def test_nothing_goes_while_a_layer_is_in_use(home_on_zfs: Path, on_zfs: ZfsBackend, zfs_layer: Layer) -> None:
    (zfs_layer.path / "file").write_text("mine")
    artefact = on_zfs.capture(zfs_layer, "sp-1")
    with open(zfs_layer.path / "file") as held:
        with pytest.raises(PlanarianError, match="sb-1") as caught:
            zfs_making.destroy(ZfsPool(home_on_zfs), force=True)
        assert caught.value.code == "pool-busy"
        assert held.read() == "mine"
    assert (zfs_layer.path / "file").read_text() == "mine"
    on_zfs.verify(artefact)


@_ON_ZFS
@pytest.mark.parametrize("name", ["-r", "tank/-r @x", "tank@snapshot", "one,two", "tank//x", "", "tank/" + 200 * "x"])
def test_what_can_not_be_a_dataset_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError):
        zfs_making.create_below(ZfsPool(tmp_path), name)
    assert not ZfsPool(tmp_path).there


@_ON_ZFS
def test_a_dataset_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="no-such-pool/data"):
        zfs_making.create_below(ZfsPool(tmp_path), "no-such-pool/data")
    assert not ZfsPool(tmp_path).there


@_ON_ZFS
def test_a_dataset_with_a_space_in_its_name(tank: str, tmp_path: Path) -> None:
    parent = f"{tank}/of my own"
    subprocess.run(["zfs", "create", "-o", "mountpoint=none", parent], check=True, timeout=60)
    zfs_making.create_below(ZfsPool(tmp_path), parent)
    for _ in range(2):  # it is found in the table of mounts
        backend = ZfsBackend(tmp_path)
        assert backend.probe().available
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    (layer.path / "file").write_text("mine")
    backend.verify(backend.capture(layer, "sp-1"))
    assert zfs_making.destroy(ZfsPool(tmp_path), force=True) == (1, 1)
    subprocess.run(["zfs", "destroy", parent], check=True, timeout=60)


@_ON_ZFS
def test_the_settings_above_do_not_change_what_files_are(tank: str, tmp_path: Path) -> None:
    parent = f"{tank}/odd"
    settings = ["mountpoint=none", "casesensitivity=insensitive", "normalization=formD", "readonly=on", "xattr=off"]
    options = [text for setting in settings for text in ("-o", setting)]
    subprocess.run(["zfs", "create", *options, parent], check=True, timeout=60)
    zfs_making.create_below(ZfsPool(tmp_path), parent)
    backend = ZfsBackend(tmp_path)
    layer = Layer(backend.place("sb-1"))
    backend.create(layer)
    for name in (b"a", b"A", b"\xff", "\u00e9".encode(), "e\u0301".encode()):
        (layer.path / os.fsdecode(name)).write_bytes(name)
    os.setxattr(layer.path / "a", "user.color", b"blue")
    assert len(os.listdir(layer.path)) == 5
    zfs_making.destroy(ZfsPool(tmp_path), force=True)
    subprocess.run(["zfs", "destroy", parent], check=True, timeout=60)


@_ON_ZFS
def test_a_copy_of_a_home_touches_nothing_of_the_first(
    home_on_zfs: Path, on_zfs: ZfsBackend, zfs_layer: Layer, tmp_path: Path
) -> None:
    (zfs_layer.path / "file").write_text("mine")
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(home_on_zfs / "zfs.json", copy)
    with pytest.raises(BackendUnavailable, match="another home"):
        ZfsBackend(copy).place("sb-1")
    with pytest.raises(BackendUnavailable, match="another home"):
        zfs_making.destroy(ZfsPool(copy), force=True)
    assert (zfs_layer.path / "file").read_text() == "mine"


@_ON_ZFS
def test_what_is_gone_can_be_given_up(tank: str, tmp_path: Path) -> None:
    pool = ZfsPool(tmp_path)
    zfs_making.create_below(pool, tank)
    subprocess.run(["zfs", "destroy", "-r", pool.where().base], check=True, timeout=60)
    with pytest.raises(BackendUnavailable, match="isn't there"):
        zfs_making.destroy(pool, force=False)
    assert zfs_making.destroy(pool, force=True) == (0, 0)
    zfs_making.create_below(pool, tank)
    assert ZfsBackend(tmp_path).probe().available
    assert zfs_making.destroy(pool, force=False) == (0, 0)


@_ON_ZFS
def test_a_damaged_note_is_said(tmp_path: Path) -> None:
    for text in ("", "[]", '{"base": "-f", "file": true}', '{"base": "tank@x", "file": false}'):
        (tmp_path / "zfs.json").write_text(text)
        found = ZfsBackend(tmp_path).probe()
        assert not found.available
        assert "zfs.json can't be read" in found.reason


_MADE = """\
import sys
from pathlib import Path
from planarian_filesystem import zfs_making
from planarian_filesystem.zfs_pool import ZfsPool
pool = ZfsPool(Path(sys.argv[1]))
if sys.argv[2:]:
    zfs_making.create_below(pool, sys.argv[2])
else:
    zfs_making.create_file(pool, zfs_making.SMALLEST, sparse=True)
"""


@_ON_ZFS
@pytest.mark.parametrize(("point", "file"), [("zfs.begun", True), ("zfs.made", True), ("zfs.made", False)])
def test_killed_while_it_is_made(tank: str, tmp_path: Path, point: str, file: bool) -> None:
    before = listed(tank)
    command = [sys.executable, "-c", _MADE, str(tmp_path), *([] if file else [tank])]
    done = subprocess.run(command, env={**os.environ, "PLANARIAN_FAULT": f"{point}=kill"}, check=False, timeout=300)
    assert done.returncode < 0
    assert not ZfsBackend(tmp_path).probe().available
    assert zfs_making.destroy(ZfsPool(tmp_path), force=True) == (0, 0)
    assert listed(tank) == before
    assert not (tmp_path / "pool.zfs").exists()
    subprocess.run([*command], check=True, timeout=300)
    assert ZfsBackend(tmp_path).probe().available
    zfs_making.destroy(ZfsPool(tmp_path), force=False)


# --- the command


def run(home: Path, *arguments: str, code: int = 0) -> str:
    """What ``planarian zfs`` prints; on stderr where it fails."""
    env = {**os.environ, "PLANARIAN_HOME": str(home), "TERM": "dumb"}
    done = subprocess.run(
        [shutil.which("planarian") or "planarian", "zfs", *arguments],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@_ON_ZFS
def test_from_nothing_to_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert "planarian zfs create" in run(home, "status", code=4)
    made = json.loads(run(home, "create", "--size", "256M", "--json"))
    assert made["file"] == str(home / "pool.zfs")
    assert os.stat(made["file"]).st_blocks * 512 >= 256 * 1024**2, "its space is set aside"
    assert made["health"] == "ONLINE"
    assert made["sandboxes"] == made["statepoints"] == made["waiting"] == 0
    assert "already" in run(home, "create", code=1)
    assert "removed it" in run(home, "destroy")
    assert not (home / "pool.zfs").exists()


@_ON_ZFS
def test_refused_while_anything_is_in_it(
    home_on_zfs: Path, on_zfs: ZfsBackend, zfs_layer: Layer, datasets: Datasets
) -> None:
    (zfs_layer.path / "file").write_text("mine")
    assert "1 sandboxes" in run(home_on_zfs, "destroy", code=1)
    assert (zfs_layer.path / "file").read_text() == "mine"
