"""What the figures compare with: Podman's own checkpoints, with export and incremental as far as CRIU goes by itself.

Both work on containers of one image on a plain file system, and make durable what they write, as Planarian does.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import figures_load
from benchmarks.figures_load import Load
from benchmarks.figures_subject import Subject, Taken
from benchmarks.timing import Stopwatch
from planarian_core.errors import BackendUnavailable
from planarian_process.criu_statistics import NAME, statistics

_SECONDS = 1800
_IMAGE = "localhost/planarian-figures"
_CGROUPS = Path("/sys/fs/cgroup/cgroup.controllers")


class Podman:
    """The user's podman with a storage of its own below ``folder``, and an image made of nothing but directories."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        version_2 = _CGROUPS.exists()
        self.runtime = next((name for name in (("crun", "runc") if version_2 else ("runc",)) if shutil.which(name)), "")
        if not self.runtime or not shutil.which("podman") or not shutil.which("criu"):
            message = "podman, crun (or runc) or criu isn't installed"
            raise BackendUnavailable(message, remedy="apt-get install podman crun criu")
        self.manage = ["--manage-cgroups-mode=ignore"] if version_2 else []
        folder.mkdir(parents=True, exist_ok=True)
        configuration = folder / "criu.conf"
        configuration.write_text("track-mem\n")
        self.tracked = f"--annotation=org.criu.config={configuration}"
        archive = folder / "image.tar"
        _make_image(archive)
        self.run("import", str(archive), _IMAGE)

    def run(self, *arguments: str) -> str:
        """Run a podman command; RuntimeError with its words when it fails."""
        where = [f"--root={self._folder / 'storage'}", f"--runroot={self._folder / 'run'}", "--cgroup-manager=cgroupfs"]
        return call(["podman", *where, f"--runtime={self.runtime}", *arguments])

    def container(self, verb: str, name: str, load: Load, *options: str) -> None:
        """``podman run`` or ``podman create`` of the load; the host's /usr is what runs in it."""
        limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")  # podman's own need CAP_SYS_RESOURCE
        self.run(
            *(verb, f"--name={name}", *options, *limits, "--network=none", "--log-driver=none", "--workdir=/load"),
            # A fork would have its source's control group as the root of its own namespace, which CRIU refuses to dump.
            *("--cgroupns=host", "--volume=/usr:/usr:ro", _IMAGE, *load.argv),
        )

    def inspect(self, name: str, what: str) -> str:
        return self.run("inspect", name, f"--format={{{{{what}}}}}").strip()

    def pid(self, name: str) -> int:
        return int(self.inspect(name, ".State.Pid"))

    def stop(self, name: str) -> None:
        self.run("stop", "--time=0", name)

    def remove(self, *names: str) -> None:
        self.run("rm", "--force", "--ignore", "--time=0", *names)

    def close(self) -> None:
        """Give up containers and storage."""
        self.run("rm", "--force", "--all", "--time=0")
        self.run("rmi", "--force", "--all")
        subprocess.run(["umount", str(self._folder / "storage" / "overlay")], capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass
class _Container:
    """One container with the load, and where its snapshots lie. ``forks`` counts them."""

    podman: Podman
    load: Load
    folder: Path
    name: str
    number: int = 0
    forks: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        pid = self.podman.pid(self.name)
        return figures_load.find(lambda: [pid])


class Exported(_Container):
    """``full``: a checkpoint with export, which holds all memory and all that changed in the files; and import."""

    def snapshot(self, stopwatch: Stopwatch) -> Taken:
        self.number += 1
        archive = self.folder / f"{self.name}-{self.number}.tar"
        with stopwatch:
            export = ("--leave-running", "--compress=none", f"--export={archive}")
            self.podman.run("container", "checkpoint", *export, self.name)
            _sync(archive)
        return Taken(str(archive), archive.stat().st_size)

    def rollback(self, point: str, stopwatch: Stopwatch) -> None:
        """To remove the old container isn't counted."""
        with stopwatch:
            self.podman.stop(self.name)
        self.podman.remove(self.name)
        with stopwatch:
            self.podman.run("container", "restore", f"--import={point}")

    def fork(self, point: str, stopwatch: Stopwatch) -> Exported:
        name = f"{self.name}-fork"
        with stopwatch:
            self.podman.run("container", "restore", f"--import={point}", f"--name={name}")
        self.forks.append(name)
        return Exported(self.podman, self.load, self.folder, name)


@dataclass
class Incremental(_Container):
    """``criu-inc``: the runtime's checkpoint against the one before, and Podman's restore. It holds no files."""

    before: str = ""

    def snapshot(self, stopwatch: Stopwatch) -> Taken:
        self.number += 1
        images = self.folder / f"{self.name}-{self.number}"
        images.mkdir()
        container = self.podman.inspect(self.name, ".Id")
        command = [self.podman.runtime, "checkpoint", f"--image-path={images}", f"--work-path={images}.work"]
        command += ["--leave-running", *self.podman.manage]
        if self.before:
            command.append(f"--parent-path=../{Path(self.before).name}")
        Path(f"{images}.work").mkdir()
        with stopwatch:
            call([*command, container])
            for path in images.iterdir():
                _sync(path)
        self.before = str(images)
        counted = statistics(Path(f"{images}.work", NAME).read_bytes())
        size = sum(path.lstat().st_size for path in images.iterdir())
        return Taken(str(images), size, counted.details() if counted else {})

    def rollback(self, point: str, stopwatch: Stopwatch) -> None:
        with stopwatch:
            self.podman.stop(self.name)
            self._restore(point)

    def fork(self, point: str, stopwatch: Stopwatch) -> Incremental:
        """A second container, brought to where it can be restored, and a copy of the image by hard links."""
        fork = Incremental(self.podman, self.load, self.folder, f"{self.name}-fork")
        self.forks.append(fork.name)
        with stopwatch:
            self.podman.container("create", fork.name, self.load, self.podman.tracked)
            self.podman.run("init", fork.name)
            self.podman.stop(fork.name)
            copy = f"{point}-copy"
            shutil.copytree(point, copy, symlinks=True, copy_function=os.link)
            fork._restore(copy)
        return fork

    def _restore(self, point: str) -> None:
        """From where Podman would have put a checkpoint of its own."""
        place = Path(self.podman.inspect(self.name, ".StaticDir"), "checkpoint")
        if place.is_symlink():
            place.unlink()
        shutil.rmtree(place, ignore_errors=True)
        place.symlink_to(point)
        self.podman.run("container", "restore", "--keep", self.name)
        self.before = point


@contextmanager
def started(kind: type[Exported | Incremental], podman: Podman, folder: Path, load: Load) -> Iterator[Subject]:
    """A container of this kind with the load in it; it, its forks and its snapshots are gone in the end."""
    folder.mkdir(parents=True)
    subject = kind(podman, load, folder, "load")
    podman.container("run", subject.name, load, "--detach", *([podman.tracked] if kind is Incremental else []))
    try:
        yield subject
    finally:
        podman.remove(subject.name, *subject.forks)
        shutil.rmtree(folder)


def call(argv: list[str]) -> str:
    """Run a command to its end; RuntimeError with its words when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)[:300]}: {done.stderr.strip()[-1500:]}")
    return done.stdout


def _make_image(archive: Path) -> None:
    with tarfile.open(archive, "w") as tar:
        for name in ("usr", "proc", "sys", "dev", "etc", "run", "root", "tmp", "load"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry, io.BytesIO())


def _sync(path: Path) -> None:
    if path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
