"""Builds the parts of the guest, each kept in a folder of the cache until its packages, or how it is built, change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .commands import GuestError, run, say
from .packages import ROOT, TOOLS, Apt, Chosen
from .root import assemble

_UNWANTED = ("man", "locale", "doc", "info")
_HERE = Path(__file__).parent


class Cache:
    """Folders named ``KIND-KEY``, each there only when it is complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "log").mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def making(self, final: Path) -> Iterator[Path]:
        """A folder that gets its name when everything in it is done; others of its kind go then."""
        partial = final.with_name(f"{final.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        yield partial
        os.rename(partial, final)
        kind = final.name.partition("-")[0]
        for other in self.folder.glob(f"{kind}-*"):
            if other != final:
                shutil.rmtree(other, ignore_errors=True)

    def at(self, kind: str, facts: Mapping[str, str] | Sequence[str], *sources: str) -> Path:
        """Where a part lies that these facts, and our own source files, determine."""
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for name in sources:
            digest.update((_HERE / name).read_bytes())
        return self.folder / f"{kind}-{digest.hexdigest()[:12]}"

    def log(self, name: str) -> Path:
        return self.folder / "log" / f"{name}.txt"


class Guest:
    """The parts: ``tools`` is a chroot with QEMU, ``disk`` a folder with the kernel, its first root and the disk."""

    def __init__(self, cache: Cache, chosen: Chosen) -> None:
        self._cache = cache
        self._one_at_a_time = threading.Lock()
        self._alone = (sys.executable, "-I", str(_HERE / "alone.py"), str(cache.folder))
        self.chosen = chosen
        self.tools = cache.at("tools", chosen.tools)
        self._modules = cache.at("modules", [chosen.kernel, chosen.tools["zfs-dkms"]])
        self._tree = cache.at("tree", chosen.versions)
        facts = [self.tools.name, self._modules.name, self._tree.name]
        self.disk = cache.at("disk", facts, "root.py", "init", "first-init")

    def build(self) -> None:
        """Build what isn't in the cache. The two big installations run at once: they wait for different things."""
        with ThreadPoolExecutor(2) as both:
            trees = both.submit(self._make_tree)
            both.submit(self._make_tools).result()
            trees.result()
        if not self.disk.is_dir():
            with self._cache.making(self.disk) as made:
                say("disk")
                kernel = self._kernel(made / "kernel")
                assemble(made, self.tools, self._tree, self._modules, kernel, self.chosen)
                shutil.rmtree(made / "kernel")

    def _make_tools(self) -> None:
        if not self.tools.is_dir():
            with self._cache.making(self.tools) as made:
                say(f"tools: QEMU {self.chosen.tools['qemu-system-x86']}, a compiler, the kernel's headers")
                self._bootstrap(made, [*TOOLS, f"linux-headers-{self.chosen.kernel}"], self.chosen.suites[:1])
        if not self._modules.is_dir():
            with self._cache.making(self._modules) as made:
                say(f"modules of ZFS {self.chosen.zfs} for {self.chosen.kernel}")
                self._build_modules(made)

    def _make_tree(self) -> None:
        if not self._tree.is_dir():
            with self._cache.making(self._tree) as made:
                say(f"guest: {len(self.chosen.versions)} packages")
                self._bootstrap(made, ROOT, self.chosen.suites)

    def _apt(self, suites: tuple[str, ...]) -> Apt:
        with self._one_at_a_time:
            return Apt(self._cache.folder / "apt", suites)

    def _bootstrap(self, into: Path, packages: Sequence[str], suites: tuple[str, ...]) -> None:
        """Debian's essential packages and these, installed into an empty folder."""
        left_out = [f"--dpkgopt=path-exclude=/usr/share/{kind}/*" for kind in _UNWANTED]
        source = self._apt(suites)
        pins = source.preferences
        command = [
            *("unshare", "--mount", *self._alone),
            *("mmdebstrap", "--quiet", "--mode=root", "--variant=essential", "--skip=check/qemu"),
            *('--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Retries "3"', "--dpkgopt=force-unsafe-io"),
            *left_out,
            f'--setup-hook=mkdir -p "$1/etc/apt/preferences.d" && cp \'{pins}\' "$1/etc/apt/preferences.d/guest"',
            f"--include={','.join(packages)}",
            *("trixie", str(into), *source.sources()),
        ]
        run(command, log=self._cache.log(into.name.partition("-")[0]), limit=900)

    def _build_modules(self, into: Path) -> None:
        """DKMS in the chroot, against the headers of the guest's kernel."""
        kernel, zfs = self.chosen.kernel, self.chosen.zfs
        package = self._apt(self.chosen.suites[:1]).download(
            f"zfs-dkms={self.chosen.tools['zfs-dkms']}", into / "package"
        )
        run(["dpkg-deb", "-x", str(package), str(self.tools)])
        # No type information for the modules: pahole would run for each of the configuration's hundreds of probes.
        (self.tools / "usr" / "src" / f"linux-headers-{kernel}" / "vmlinux").unlink(missing_ok=True)
        at_once = str(os.cpu_count() or 1)
        enter = ["unshare", f"--mount-proc={self.tools / 'proc'}", *self._alone, "chroot", str(self.tools)]
        build = ["dkms", "build", "-m", "zfs", "-v", zfs, "-k", kernel, "-j", at_once, "--no-depmod"]
        no_debugging = {"KCFLAGS": "-g0"}  # it is stripped off afterwards, and takes a sixth of the time
        run([*enter, *build], log=self._cache.log("modules"), limit=1800, environment=no_debugging)
        for built in (self.tools / "var/lib/dkms/zfs" / zfs / kernel).rglob("*.ko*"):
            shutil.copy(built, into)
        shutil.rmtree(into / "package")
        if not list(into.glob("zfs.ko*")):
            raise GuestError(f"DKMS built no module zfs (all it said: {self._cache.log('modules')})")

    def _kernel(self, into: Path) -> Path:
        package = self._apt(self.chosen.suites[:1]).download(f"linux-image-{self.chosen.kernel}", into / "package")
        run(["dpkg-deb", "-x", str(package), str(into / "files")])
        return into / "files"
