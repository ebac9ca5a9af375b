"""Run mini-swe-agent's own tests of its local environment and agents with our environment swapped in.

``python run.py [--source DIRECTORY] [--clone] [BACKENDS…]``, backends as ``directory/respawn``; all that work here if
none are named. The tests come from the sdist of the installed version, from a checkout of it (``--source``), or from
the repository that its metadata names (``--clone``). Nothing of them is kept.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from planarian_core import Planarian
from planarian_core.errors import PlanarianError

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.upstream import sdist

PACKAGE = "mini-swe-agent"
TESTS = ("tests/environments/test_local.py", "tests/agents/test_default.py", "tests/agents/test_interactive.py")
BACKENDS = ("directory/respawn", "namespace/respawn", "namespace/criu")

# Tests that check what isolation takes away, by sandbox backend.
DESELECTED = {
    "namespace": {
        "test_local_environment_timeout_kills_child_process": "looks for the child's pid outside",
        "test_local_environment_file_operations": "looks at the host's directory for what was written inside",
        "test_local_environment_cwd_parameter_override": "wants a second host directory below /tmp",
    },
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="an unpacked source tree of the installed version, with tests")
    parser.add_argument("--clone", action="store_true", help="clone the repository if the sdist holds no tests")
    parser.add_argument("backends", nargs="*", help="SANDBOX/PROCESS")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="miniswe-upstream-") as folder:
        place = Path(folder)
        source = options.source.absolute() if options.source else sdist.fetch(PACKAGE, place)
        if not has_tests(source) and options.clone:
            source = clone(place)
        if not has_tests(source):
            print(f"SKIPPED: the sdist of {PACKAGE} {version()} has no tests; give --source or --clone")
            return 0
        check_version(source)
        failed = [backends for backends in options.backends or available(place) if not run(source, backends, place)]
    return 1 if failed else 0


def version() -> str:
    return importlib.metadata.version(PACKAGE)


def clone(place: Path) -> Path:
    urls = dict(line.split(", ", 1) for line in importlib.metadata.metadata(PACKAGE).get_all("Project-URL", []))
    git = ["git", "clone", "--quiet", "--depth", "1", "--branch", f"v{version()}", urls["Repository"]]
    subprocess.run([*git, str(place / "clone")], check=True, timeout=600)
    return place / "clone"


def has_tests(source: Path) -> bool:
    return all((source / name).is_file() for name in TESTS)


def check_version(source: Path) -> None:
    """Tests of another version would say nothing about the installed one."""
    if f'__version__ = "{version()}"' not in (source / "src" / "minisweagent" / "__init__.py").read_text():
        raise SystemExit(f"{source} is not {PACKAGE} {version()}")


def available(place: Path) -> list[str]:
    """The backends that make a sandbox here; the others are named with the reason."""
    found = []
    workspace = place / "probe"
    workspace.mkdir(exist_ok=True)
    with Planarian.open(place / "probe-home") as planarian:
        for backends in BACKENDS:
            sandbox, process = backends.split("/")
            try:
                planarian.remove_sandbox(planarian.create_sandbox(workspace, sandbox=sandbox, process=process))
            except PlanarianError as error:
                print(f"{backends}: not available here: {error.message}")
            else:
                found.append(backends)
    return found


def run(source: Path, backends: str, place: Path) -> bool:
    """Run the tests with one pair of backends and print the counts; whether all passed."""
    sandbox, process = backends.split("/")
    report = place / "report.xml"
    deselected = DESELECTED.get(sandbox, {})
    command = [sys.executable, "-m", "pytest", "-p", "planarian_swap", "-p", "no:cacheprovider", "-q", "--tb=short"]
    command += [f"--junitxml={report}", "-k", " and ".join(f"not {name}" for name in deselected), *TESTS]
    environment = {
        **os.environ,
        "PLANARIAN_SWAP": f"{sandbox} {process}",
        "PYTHONPATH": str(Path(__file__).parent),
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": str(place / "mini-swe-agent"),
    }
    done = subprocess.run(command, cwd=source, env=environment, check=False, timeout=1800)
    counts = sdist.read_counts(report)
    print(f"{PACKAGE} {version()} on {backends}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    for name, reason in deselected.items():
        print(f"  deselected: {name}: {reason}")
    return done.returncode == 0 and counts["failed"] == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
