"""Build, boot and use the guest: ``python -m machine --cache FOLDER --site FOLDER --checkout FOLDER -- TEST …``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .booting import boot
from .building import Cache, Guest
from .commands import GuestError, say
from .measuring import add_benchmarks
from .packages import EXPECTED, choose, remember, remembered
from .payload import fill

_USUAL, _LARGE = 4096, 8192
"""MB of memory, for tests and for the benchmarks."""
UNAVAILABLE = 69
"""Exit code where the guest can't be had; pytest's own codes are passed on otherwise."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="machine", description=__doc__)
    parser.add_argument("--lacking", action="store_true", help="only say what this host lacks; nothing if nothing")
    parser.add_argument("--cache", type=Path, help="keeps what was built between runs")
    parser.add_argument("--site", type=Path, help="a folder with the wheel installed for the guest's Python")
    parser.add_argument("--checkout", type=Path, help="where the tests are")
    parser.add_argument("--results", type=Path, help="gets junit.xml and console.txt; below the cache unless given")
    parser.add_argument("--limit", type=float, default=1200, help="seconds that the guest may run")
    parser.add_argument(
        "--benchmark", action="store_true", help="run `python -m benchmarks` with these arguments, and a large /scratch"
    )
    parser.add_argument("--build-only", action="store_true", help="boot nothing")
    parser.add_argument("tests", nargs="*", help="paths below the checkout, and pytest's options")
    chosen = parser.parse_args(arguments)
    if chosen.lacking:
        print(lacking())
        return 0
    try:
        return _work(chosen, chosen.tests)
    except GuestError as error:
        print(f"guest: {error}", file=sys.stderr)
        return UNAVAILABLE


def _work(chosen: argparse.Namespace, tests: Sequence[str]) -> int:
    missing = lacking()
    if missing:
        raise GuestError(missing)
    cache = Cache(chosen.cache.resolve())
    note = cache.folder / "chosen.json"
    guest = Guest(cache, remembered(note) or choose(cache.folder / "apt"))
    guest.build()
    if not note.is_file() or remembered(note) is None:
        remember(note, guest.chosen)
    versions = {**guest.chosen.versions, "linux": guest.chosen.kernel}
    say("has " + ", ".join(f"{name} {versions[name]}" for name in EXPECTED))
    if chosen.build_only:
        return 0
    for left in (*cache.folder.glob("payload-*"), *guest.tools.glob("tmp/run-*")):  # of one that was killed
        shutil.rmtree(left, ignore_errors=True)
    results = chosen.results or cache.folder / "results"
    payload = Path(tempfile.mkdtemp(prefix="payload-", dir=cache.folder))
    try:
        fill(payload, chosen.site, chosen.checkout, guest.disk / "versions.json", tests)
        add_benchmarks(payload, chosen.checkout, instead=chosen.benchmark)
        say("boot")
        memory = _LARGE if chosen.benchmark else _USUAL
        machine = (guest.tools, guest.disk, payload, results)
        return boot(*machine, limit=chosen.limit, memory=memory, scratch=chosen.benchmark)
    finally:
        shutil.rmtree(payload, ignore_errors=True)


def lacking() -> str:
    """What this host lacks to build the guest, with what mends that; empty when nothing."""
    if os.geteuid() != 0:
        return "the guest is built by root (chroots, mounts)"
    absent = [name for name in ("apt-get", "chroot", "dpkg-deb", "mmdebstrap", "unshare") if shutil.which(name) is None]
    return f"{', '.join(absent)} missing: apt-get install mmdebstrap (a Debian host is needed)" if absent else ""


if __name__ == "__main__":
    sys.exit(main())
