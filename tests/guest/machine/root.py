"""Puts the guest together: kernel, first root (what finds the disk), disk."""

from __future__ import annotations

import json
import lzma
import os
import shutil
from pathlib import Path

from .commands import GuestError, run
from .packages import Chosen

_HERE = Path(__file__).parent
_ELF = b"\x7fELF"
_ZSTD = b"\x28\xb5\x2f\xfd"
_FIRST = ("virtio_blk", "virtio_pci", "ext4")
"""Modules that the kernel needs to find its disk."""
_NOT_NEEDED = ("usr/share/doc", "usr/share/man", "var/cache/apt", "var/lib/apt/lists", "boot")
_CONTAINERS = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
[containers]
log_driver = "k8s-file"
netns = "none"
"""
DISK_SIZE = "4G"


def assemble(into: Path, tools: Path, tree: Path, modules: Path, kernel: Path, chosen: Chosen) -> None:
    """Fill ``into`` with ``vmlinux``, ``first.gz``, ``root.ext4`` and ``versions.json``."""
    if "CONFIG_MEM_SOFT_DIRTY=y" not in (kernel / "boot" / f"config-{chosen.kernel}").read_text():
        raise GuestError(f"Debian's kernel {chosen.kernel} has no soft-dirty tracking any more")
    _unpack_kernel(kernel / "boot" / f"vmlinuz-{chosen.kernel}", into / "vmlinux", tools)
    versions = {"linux": chosen.kernel, "zfs": chosen.zfs, "suites": list(chosen.suites), **chosen.versions}
    (into / "versions.json").write_text(json.dumps(versions, indent=1, sort_keys=True))
    _fill(tree, modules, kernel, chosen.kernel)
    _make_first_root(into, tree, chosen.kernel)
    disk = into / "root.ext4"
    run(["truncate", "-s", DISK_SIZE, str(disk)])
    make_disk(tools, disk, tree)


def make_disk(tools: Path, disk: Path, tree: Path) -> None:
    """An ext4 of a file's size, with a copy of a tree in it. Both lie on the host: mke2fs runs outside of the chroot,
    by the libraries in it.
    """
    loader = tools / "lib64" / "ld-linux-x86-64.so.2"
    libraries = tools / "usr" / "lib" / "x86_64-linux-gnu"
    program = tools / "usr" / "sbin" / "mke2fs"
    command = [str(loader), "--library-path", str(libraries), str(program)]
    options = ["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-d", str(tree), str(disk)]
    run([*command, *options], environment={"MKE2FS_CONFIG": str(tools / "etc" / "mke2fs.conf")})


def _unpack_kernel(compressed: Path, into: Path, tools: Path) -> None:
    """The kernel as an ELF file: QEMU starts that without a BIOS and without unpacking, both slow in emulation."""
    data = compressed.read_bytes()
    at = data.find(_ZSTD)
    while at >= 0:
        (tools / "tmp" / "kernel.zst").write_bytes(data[at:])
        # What follows the frame isn't zstd's, about which it complains; what came out before is the kernel, or isn't.
        run(["chroot", str(tools), "sh", "-c", "zstd -dcq /tmp/kernel.zst >/tmp/kernel 2>/dev/null || true"])
        unpacked = tools / "tmp" / "kernel"
        with open(unpacked, "rb") as file:
            if file.read(4) == _ELF:
                shutil.move(unpacked, into)
                (tools / "tmp" / "kernel.zst").unlink()
                return
        at = data.find(_ZSTD, at + 1)
    raise GuestError(f"no zstd-compressed kernel in {compressed.name}")


def _fill(tree: Path, modules: Path, kernel: Path, release: str) -> None:
    """The kernel's modules and ours, the first process, and what the packages leave to be set up. Repeatable."""
    library = tree / "usr" / "lib" / "modules"
    shutil.rmtree(library, ignore_errors=True)
    found = next(path for path in (kernel / "usr/lib/modules", kernel / "lib/modules") if path.is_dir())
    shutil.copytree(found, library, symlinks=True)
    shutil.copytree(modules, library / release / "updates")
    run(["chroot", str(tree), "depmod", "-a", release])
    for name in _NOT_NEEDED:
        shutil.rmtree(tree / name, ignore_errors=True)
    shutil.copy(_HERE / "init", tree / "sbin" / "guest-init")
    (tree / "sbin" / "guest-init").chmod(0o755)
    (tree / "host").mkdir(exist_ok=True)
    mtab = tree / "etc" / "mtab"
    mtab.unlink(missing_ok=True)
    mtab.symlink_to("/proc/self/mounts")
    (tree / "etc" / "resolv.conf").unlink(missing_ok=True)
    (tree / "etc" / "resolv.conf").write_text("")
    (tree / "etc" / "hosts").write_text("127.0.0.1 localhost guest\n")
    (tree / "etc" / "machine-id").write_text(f"{os.urandom(16).hex()}\n")
    settings = tree / "etc" / "containers" / "containers.conf.d"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "guest.conf").write_text(_CONTAINERS)


def _make_first_root(into: Path, tree: Path, release: str) -> None:
    """A small archive that loads what the disk needs, mounts it and goes on from there."""
    first = into / "first"
    for name in ("bin", "proc", "sys", "dev", "new", "modules"):
        (first / name).mkdir(parents=True)
    shutil.copy(tree / "usr" / "bin" / "busybox", first / "bin" / "busybox")
    shown = run(["chroot", str(tree), "modprobe", "-S", release, "--show-depends", "-a", *_FIRST])
    order = dict.fromkeys(line.split()[1] for line in shown.splitlines() if line.startswith("insmod"))
    names = [_unpack_module(tree / path.lstrip("/"), first / "modules") for path in order]
    script = (_HERE / "first-init").read_text().replace("@MODULES@", " ".join(names))
    (first / "init").write_text(script)
    (first / "init").chmod(0o755)
    pack = "find . | ./bin/busybox cpio -o -H newc 2>/dev/null | gzip -6 >../first.gz"
    run(["sh", "-c", pack], cwd=first)
    shutil.rmtree(first)


def _unpack_module(module: Path, into: Path) -> str:
    name = module.name.removesuffix(".xz")
    data = module.read_bytes()
    (into / name).write_bytes(lzma.decompress(data) if module.suffix == ".xz" else data)
    return name
