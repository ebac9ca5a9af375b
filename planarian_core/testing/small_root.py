"""A root file system of a few megabytes, put together from the host's own programs: what an unpacked image looks like.

Nothing of it comes from anywhere else, so that tests of images need neither a registry nor a container engine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

_PROGRAMS = ("sh", "bash", "cat", "ls", "sleep", "id", "chmod", "mkdir", "rm", "python3")
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "test", "idlelib", "tkinter", "ensurepip", "lib2to3", "config-*", "*.a"
)
_OS_RELEASE = 'ID=small\nPRETTY_NAME="a small root"\n'


def small_root(place: Path, programs: Iterable[str] = ()) -> Path:
    """Fill the directory ``place`` with a shell, a few tools, the system's Python and further ``programs``.

    It is told from the host by ``/etc/os-release``. There is a project in ``/project``.
    """
    for name in ("etc", "tmp", "root", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "var", "project"):
        (place / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (place / name).symlink_to(f"usr/{name}")
    for name in (*_PROGRAMS, *programs):
        _copy_program(place, name)
    standard = ["/usr/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
    library = subprocess.run(standard, capture_output=True, text=True, check=True).stdout.strip()
    shutil.copytree(library, place / library.lstrip("/"), ignore=_LEFT_OUT, symlinks=True)
    for module in Path(library, "lib-dynload").glob("_ctypes.*"):
        _copy_libraries(place, module)
    (place / "etc" / "os-release").write_text(_OS_RELEASE)
    (place / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (place / "project" / "answer.txt").write_text("41\n")
    return place


def _copy_program(place: Path, name: str) -> None:
    found = Path(shutil.which(name, path="/usr/bin:/bin") or f"/usr/bin/{name}")
    real = found.resolve()
    _copy(place, str(real))
    _copy_libraries(place, real)
    link = place / "usr" / "bin" / name
    if not link.exists():
        link.symlink_to(real.name)


def _copy_libraries(place: Path, program: Path) -> None:
    linked = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    for path in re.findall(r"(/\S+)", linked):
        _copy(place, path)


def _copy(place: Path, path: str) -> None:
    target = place / "usr" / path.lstrip("/").removeprefix("usr/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(path, target)
