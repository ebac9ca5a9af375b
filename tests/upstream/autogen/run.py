"""Run AutoGen's own tests of workbenches and code executors with ours swapped in.

``python run.py [--source DIRECTORY] [BACKENDS…]``, backends as ``directory/respawn``; all that work here if none are
named. The tests come from the sdists of the installed versions, or from a checkout of AutoGen's repository
(``--source``). Nothing of them is kept.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from planarian_core import Planarian
from planarian_core.errors import PlanarianError

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.upstream import sdist

TESTS = {
    "autogen-core": ("test_workbench.py", "test_static_workbench_overrides.py"),
    "autogen-agentchat": ("test_code_executor_agent.py",),
    "autogen-ext": ("code_executors/test_commandline_code_executor.py",),
}
BACKENDS = ("directory/respawn", "namespace/respawn")

# What a test looks at that isn't there with ours, and, by sandbox backend, what isolation takes away.
DESELECTED = {
    "": {
        "test_static_workbench_serialization_with_overrides": "wants the overrides at the top of the configuration",
        "test_cleanup_temp_files_oserror": "lets this process's own pathlib fail; files are removed inside",
    },
    "namespace": {
        "test_static_workbench": "wants no word of the rollback that a load is: nothing proves that none is needed",
        "test_execute_code": "opens the code's file on the host",
        "test_valid_relative_path": "looks for the code's file on the host",
        "test_cleanup_temp_files_behavior": "looks for the code's file on the host",
        "test_local_executor_with_custom_venv_in_local_relative_path": "looks for the interpreter on the host",
    },
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="a checkout of AutoGen's repository, at the installed version")
    parser.add_argument("backends", nargs="*", help="SANDBOX/PROCESS")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="autogen-upstream-") as folder:
        place = Path(folder)
        suite = place / "suite"
        suite.mkdir()
        for package, names in TESTS.items():
            source = of_checkout(options.source, package) if options.source else sdist.fetch(package, place)
            for name in names:
                if not (source / "tests" / name).is_file():
                    print(f"SKIPPED: {source.name} has no {name}; give a checkout with --source")
                    return 0
                shutil.copy(source / "tests" / name, suite)
        failed = [backends for backends in options.backends or available(place) if not run(suite, backends, place)]
    return 1 if failed else 0


def of_checkout(checkout: Path, package: str) -> Path:
    """A package's folder; tests of another version would say nothing about the installed one."""
    source = checkout.absolute() / "python" / "packages" / package
    version = importlib.metadata.version(package)
    if f'version = "{version}"' not in (source / "pyproject.toml").read_text():
        raise SystemExit(f"{source} is not {package} {version}")
    return source


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


def run(suite: Path, backends: str, place: Path) -> bool:
    """Run the tests with one pair of backends and print the counts; whether all passed."""
    sandbox, process = backends.split("/")
    report = place / "report.xml"
    deselected = {**DESELECTED[""], **DESELECTED.get(sandbox, {})}
    command = [sys.executable, "-m", "pytest", "-p", "planarian_swap", "-p", "no:cacheprovider", "-q", "--tb=short"]
    command += ["-o", "asyncio_default_fixture_loop_scope=function", "-W", "ignore", f"--junitxml={report}"]
    environment = {
        **os.environ,
        "PLANARIAN_DESELECTED": " ".join(deselected),
        "PLANARIAN_SWAP": f"{sandbox} {process}",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    done = subprocess.run([*command, "."], cwd=suite, env=environment, check=False, timeout=1800)
    counts = sdist.read_counts(report)
    version = importlib.metadata.version("autogen-core")
    print(f"AutoGen {version} on {backends}: " + ", ".join(f"{number} {what}" for what, number in counts.items()))
    for name, reason in deselected.items():
        print(f"  deselected: {name}: {reason}")
    return done.returncode == 0 and counts["failed"] == 0 and counts["passed"] > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
