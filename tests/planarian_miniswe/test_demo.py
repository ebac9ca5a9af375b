"""``planarian demo`` and the example script, run as users run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_miniswe import demo_tree_hash

EXAMPLE = Path(__file__).parents[2] / "examples" / "miniswe" / "run_agent.py"


def run(place: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program of Python with a temporary directory of its own."""
    (place / "tmp").mkdir(exist_ok=True)
    variables = {"HOME": str(place), "TMPDIR": str(place / "tmp"), "MSWEA_SILENT_STARTUP": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **variables}, capture_output=True, text=True, timeout=180
    )


def demo(place: Path, *options: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """``planarian demo``; ``before`` runs in its process first."""
    script = f"{before}\nimport sys\nfrom planarian_core.cli.main import main\nsys.exit(main())"
    return run(place, ["-c", script, "demo", *options])


NAMESPACES = "namespaces" if os.geteuid() == 0 else "userns"
DEMO_BACKENDS = [
    pytest.param(("directory", "respawn"), id="directory-respawn"),
    pytest.param(("namespace", "respawn"), id="namespace-respawn", marks=pytest.mark.needs(NAMESPACES)),
    pytest.param(("namespace", "criu"), id="namespace-criu", marks=pytest.mark.needs("namespaces", "criu")),
]


@pytest.mark.parametrize("backends", DEMO_BACKENDS)
def test_the_demo_proves_what_it_claims_and_leaves_nothing(tmp_path: Path, backends: tuple[str, str]) -> None:
    done = demo(tmp_path, "--json", "--sandbox", backends[0], "--process", backends[1])
    report: dict[str, Any] = json.loads(done.stdout)
    assert [proof for proof in report["proofs"] if not proof["holds"]] == []
    assert done.returncode == 0
    assert (report["sandbox"], report["processes"]) == backends
    claims = " ".join(proof["claim"] for proof in report["proofs"])
    assert "the tree is exactly that of the statepoint" in claims
    counters = ("the source answers 3", "leibniz answers 13", "machin answers 103")
    memory = [claim in claims for claim in counters]
    assert all(memory) if backends[1] == "criu" else not any(memory)
    assert ("memory lost" in " ".join(report["not_covered"])) == (backends[1] != "criu")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.thorough
def test_the_demo_can_be_left_to_look_around(tmp_path: Path) -> None:
    done = demo(tmp_path, "--keep", "--sandbox", "directory", "--process", "none")
    assert done.returncode == 0, done.stdout
    assert "Look around: PLANARIAN_HOME=" in done.stdout
    (place,) = (tmp_path / "tmp").iterdir()
    with Planarian.open(place / "home") as planarian:
        first, *forks = planarian.registry.sandboxes()
        assert planarian.resolve(planarian.sandbox(first.id), "works").description.startswith("committed")
        for record in (*forks, first):
            planarian.remove_sandbox(planarian.sandbox(record.id))


def test_the_demo_fails_loudly_when_a_proof_fails(tmp_path: Path) -> None:
    sabotage = (
        "import itertools, planarian_miniswe.demo as d; n = itertools.count(); h = d.tree_hash;"
        " d.tree_hash = lambda sandbox: f'{h(sandbox)}-{next(n)}'"
    )
    done = demo(tmp_path, "--sandbox", "directory", "--process", "none", before=sabotage)
    assert done.returncode == 1
    assert "NOT TRUE: the tree is exactly that of the statepoint" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_demo_says_how_to_get_mini_swe_agent(tmp_path: Path) -> None:
    done = demo(tmp_path, before="import sys; sys.modules['minisweagent'] = None")
    assert done.returncode != 0
    assert "pip install 'planarian[miniswe]'" in done.stdout + done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_example_runs(tmp_path: Path) -> None:
    done = run(tmp_path, [str(EXAMPLE)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("Submitted: 42")
    assert "outcome, failed: answer.py is needed" in done.stdout


@pytest.mark.parametrize("change", ["content", "mode", "time", "link", "name", "empty folder"])
def test_the_witness_sees_every_kind_of_change(tmp_path: Path, change: str) -> None:
    """The demo's hash is a proof only if it notices; each change here leaves everything else as it was."""
    file, link = tmp_path / "file", tmp_path / "link"

    def build(content: str = "a", mode: int = 0o644, time: int = 1, target: str = "x", name: str = "") -> str:
        file.write_text(content)
        file.chmod(mode)
        os.utime(file, ns=(time, time))
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        os.utime(link, ns=(1, 1), follow_symlinks=False)
        if name:
            (tmp_path / name).mkdir()
            os.utime(tmp_path / name, ns=(1, 1))
        os.utime(tmp_path, ns=(1, 1))
        return demo_tree_hash.tree_hash(str(tmp_path))

    before = build()
    assert build() == before
    after = {
        "content": lambda: build(content="b"),
        "mode": lambda: build(mode=0o600),
        "time": lambda: build(time=2),
        "link": lambda: build(target="y"),
        "name": lambda: (link.rename(tmp_path / "other"), build())[1],
        "empty folder": lambda: build(name=".empty"),
    }[change]()
    assert after != before
