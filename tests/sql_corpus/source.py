"""The regression SQL of the installed PostgreSQL, from Debian's source package of that very version."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

_WANTED = "/src/test/regress/"
_PARTS = ("sql/", "data/", "parallel_schedule")


class NoSource(RuntimeError):
    """The source package can't be had here."""


def regression_folder(version: int, cache: Path) -> Path:
    """The folder with ``sql/``, ``data/`` and ``parallel_schedule`` of a major version; fetched once into ``cache``.

    Readable by everyone, as the server reads data files from it.

    Raises:
        NoSource: not a Debian, or its mirror is out of reach.
    """
    package = f"postgresql-{version}"
    installed = _output(["dpkg-query", "-W", "-f", "${source:Package}\n${source:Version}", package]).split()
    source, exact = installed[0], installed[1]
    kept = cache / f"{source}-{exact}"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _unpack(_download(package, source, exact, Path(scratch)), Path(scratch) / "regress")
            (Path(scratch) / "regress").rename(kept)
    return kept


def schedule(folder: Path) -> list[str]:
    """The names of the files in ``sql/``, in the order in which PostgreSQL runs them."""
    names: list[str] = []
    for line in (folder / "parallel_schedule").read_text().splitlines():
        if line.startswith("test:"):
            names += line.removeprefix("test:").split()
    return [name for name in dict.fromkeys(names) if (folder / "sql" / f"{name}.sql").exists()]


def _download(package: str, source: str, version: str, folder: Path) -> Path:
    """Fetch with apt, from the suites that offer the installed package; the machine's own apt state isn't touched."""
    (folder / "lists" / "partial").mkdir(parents=True)
    sites = {}
    for line in _output(["apt-cache", "madison", package]).splitlines():
        _, offered, where = (part.strip() for part in line.split("|"))
        site, suite_and_component, *_ = where.split()
        suite, _, component = suite_and_component.rpartition("/")
        sites[f"deb-src [check-valid-until=no] {site} {suite} {component}"] = offered
    if not sites:
        raise NoSource(f"apt knows no {package}")
    (folder / "sources.list").write_text("\n".join(sites) + "\n")
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    _output([*apt, "update"])
    try:
        _output([*apt, "source", "--download-only", f"{source}={version}"], cwd=folder)
    except NoSource:  # a mirror keeps the newest only: another minor version has nearly the same SQL
        _output([*apt, "source", "--download-only", source], cwd=folder)
    return next(folder.glob("*.orig.tar.*"))


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as opened:
        for member in opened:
            _, found, name = member.name.partition(_WANTED)
            if not found or not member.isfile() or not name.startswith(_PARTS):
                continue
            content = opened.extractfile(member)
            assert content is not None
            to = folder / name
            to.parent.mkdir(parents=True, exist_ok=True)
            with open(to, "wb") as out:
                shutil.copyfileobj(content, out)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _output(command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=cwd)
    except OSError as error:
        raise NoSource(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise NoSource(f"{' '.join(command[:1] + command[-2:])}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
