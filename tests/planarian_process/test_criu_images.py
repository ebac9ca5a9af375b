"""Where images are written, what is changed in them, and that nothing of it is left on the host."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from pathlib import Path

import pytest

from planarian_core.errors import RestoreError
from planarian_core.testing.process import Subject, eventually, goes_on, python
from planarian_process import criu_memory
from planarian_process.criu import CriuBackend
from planarian_process.criu_images import Verification, seal
from planarian_process.criu_inventory import add_network
from planarian_process.criu_namespaces import memory_directory
from planarian_process.criu_rpc import StartCache, Surroundings, Worker, find_binary
from planarian_process.criu_tasks import Task

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


def task(memory: int) -> Task:
    return Task(1, 1, (), "/", "S", 0, False, memory)


def test_memory_is_used_while_there_is_enough() -> None:
    assert criu_memory.room([task(1024)]) > 0
    assert criu_memory.room([task(1 << 50)]) == 0


def test_a_directory_in_memory_is_bounded_and_unseen() -> None:
    descriptor = memory_directory(1 << 20)
    try:
        place = Path(f"/proc/self/fd/{descriptor}")
        (place / "one").write_bytes(b"x" * 1000)
        assert os.statvfs(descriptor).f_blocks * os.statvfs(descriptor).f_bsize == 1 << 20
        with pytest.raises(OSError, match="No space left"):
            (place / "two").write_bytes(bytes(2 << 20))
        device = os.fstat(descriptor).st_dev
        assert f" {os.major(device)}:{os.minor(device)} " not in Path("/proc/self/mountinfo").read_text()
    finally:
        os.close(descriptor)


def test_an_image_that_outgrows_memory_goes_to_the_disk(counting: Subject, criu_home: Path) -> None:
    """What it holds is known only when it is written: here, files that are deleted but open."""
    program = (
        "import time; held = open('held', 'w+b'); held.write(bytes(range(256)) * (80 << 12)); held.flush()\n"
        "import os; os.unlink('held'); open('ready', 'w').close(); time.sleep(1000)"
    )
    counting.spawn(python(), "-c", program)
    counting.shell("until test -e ready; do sleep 0.01; done")
    counting.backend = CriuBackend(criu_home, memory=64 << 20)
    taken = counting.take()
    assert taken.artefact is not None
    assert taken.artefact.stored > 80 << 20
    assert goes_on(counting)
    counting.rollback(taken)
    assert goes_on(counting)


def test_the_hosts_mounts_and_temporary_files_stay(counting: Subject) -> None:
    before = set(os.listdir("/tmp"))  # noqa: S108  # where CRIU works
    descriptors = len(os.listdir("/proc/self/fd"))
    taken = counting.take()
    counting.rollback(taken)
    counting.fork(taken, frozen=True).stop()
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(counting.folder) not in mounts
    assert "criu" not in mounts
    assert len(os.listdir("/proc/self/fd")) == descriptors
    # Waits for those of other programs' restores.
    assert eventually(lambda: not {name for name in set(os.listdir("/tmp")) - before if "criu" in name})  # noqa: S108


def test_a_killed_restore_leaves_no_directory_on_the_host() -> None:
    """CRIU makes its directories in /tmp, which for it is a file system of its own where the home lies elsewhere."""
    elsewhere = Surroundings(keep=(Path("/var/lib/planarian/mounts/one"),))
    assert not elsewhere.holds("/tmp")  # noqa: S108  # where CRIU makes them
    cache = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="planarian-test-"))
    try:
        with Worker(find_binary() or "", StartCache(cache), elsewhere) as worker:
            worker.settle()
            seen = Path(f"/proc/{worker.process.pid}/root/tmp")
            assert seen.stat().st_dev != os.stat("/tmp").st_dev  # noqa: S108
            assert not list(seen.iterdir())
    finally:
        shutil.rmtree(cache)


def test_the_start_cache_serves_dump_and_restore(counting: Subject) -> None:
    taken = counting.take()
    (cache,) = Path(counting.spec.home, "cache").glob("criu-*.kdat")
    made = cache.stat().st_ino
    counting.take()
    counting.rollback(taken)
    assert cache.stat().st_ino == made, "CRIU found nothing that it had not been given"


def test_an_inventory_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "inventory.img"
    for content in (
        b"",
        b"short",
        struct.pack("<II", 0x58313116, 9) + b"\x08\x02",
        struct.pack("<II", 1, 2) + b"\x08\x02",
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="inventory"):
            add_network(tmp_path)
        assert path.read_bytes() == content


def test_an_inventory_without_namespaces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inventory.img").write_bytes(struct.pack("<II", 0x58313116, 2) + b"\x08\x02")
    with pytest.raises(ValueError, match="no network namespace"):
        add_network(tmp_path)


@pytest.mark.parametrize("name", ["pages-1.img", "core-1.img"])
def test_a_changed_file_is_found_before_anything_runs(tmp_path: Path, name: str) -> None:
    written = tmp_path / "written"
    images = tmp_path / "images"
    written.mkdir()
    images.mkdir()
    for file in ("pages-1.img", "core-1.img"):
        (written / file).write_bytes(os.urandom(5000))
    manifest = seal(written, images)
    with Verification(images, manifest.digest) as verification:
        verification.begin()
        verification.finish()
    content = bytearray((images / name).read_bytes())
    content[77] ^= 1
    (images / name).write_bytes(content)
    with Verification(images, manifest.digest) as verification:
        if name.startswith("pages"):
            verification.begin()
        with pytest.raises(RestoreError, match=name):
            verification.finish() if name.startswith("pages") else verification.begin()


def test_a_restored_program_keeps_its_unconnected_sockets(counting: Subject) -> None:
    """CRIU's worker is in the sandbox's network when it dumps; sockets without an address are still the sandbox's."""
    program = (
        "import socket, time; held = [socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0), socket.socket(socket.AF_INET6)]\n"
        "open('held', 'w').close()\n"
        "while not __import__('os').path.exists('go'): time.sleep(0.01)\n"
        "held[0].bind(('127.0.0.1', 7777)); held[0].listen()\n"
        "held[3].bind(('::1', 7778)); held[3].listen()\n"
        "open('bound', 'w').close(); time.sleep(1000)"
    )
    counting.spawn(python(), "-c", program)
    counting.shell("until test -e held; do sleep 0.01; done")
    counting.rollback(counting.take())
    connect = "import socket; socket.create_connection(('127.0.0.1', 7777)); socket.create_connection(('::1', 7778))"
    counting.shell("touch go; until test -e bound; do sleep 0.01; done")
    assert counting.run(python(), "-c", f"{connect}; print('connected')").stdout == "connected\n"
