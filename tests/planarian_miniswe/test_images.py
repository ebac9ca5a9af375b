"""Container images below a sandbox, and the SWE-bench runner: by the real podman and the real command lines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.errors import ConfigurationError, PlanarianError
from planarian_core.testing.small_root import small_root
from planarian_miniswe import PlanarianEnvironment
from planarian_miniswe.images import ImageError, Images

pytestmark = [pytest.mark.needs("podman"), pytest.mark.needs("root", "namespaces")]

NAME = "localhost/planarian-test-image:1"
TWO = ["proj__one-1", "proj__two-2"]


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A podman with a storage of its own that holds one image."""
    place = tmp_path_factory.mktemp("podman")
    root = small_root(place / "root", ("git",))
    tar = place / "image.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(root, ".")
    shutil.rmtree(root)
    engine = place / "podman"
    real = shutil.which("podman")
    engine.write_text(
        f'#!/bin/sh\nexec {real} --root {place}/storage --runroot {place}/run --storage-driver vfs "$@"\n'
    )
    engine.chmod(0o755)
    changes = ["--change", "ENV GREETING=hello", "--change", "WORKDIR /project"]
    subprocess.run([engine, "import", *changes, tar, NAME], check=True, capture_output=True, timeout=300)
    tar.unlink()
    yield engine
    subprocess.run([engine, "rmi", "--all", "--force"], check=False, capture_output=True, timeout=300)


def test_an_action_runs_on_the_image(podman: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"home": str(tmp_path / "home"), "executable": str(podman), "image": NAME, "keep": False}
    with PlanarianEnvironment(**settings) as environment:
        seen = environment.execute({"command": "cat /etc/os-release answer.txt; echo $GREETING; echo 42 > answer.txt"})
        assert seen["output"] == 'ID=small\nPRETTY_NAME="a small root"\n41\nhello\n'
        rolled_back = environment.execute({"command": "planarian rollback @head"})["output"]
        assert "rolled back" in rolled_back
        (unpacked,) = (p for p in (tmp_path / "home" / "images").iterdir() if p.is_dir())
        with PlanarianEnvironment(**settings) as other:
            assert other.execute({"command": "cat answer.txt"})["output"] == "41\n"
        assert unpacked.is_dir(), "the first one still stands on it"
    assert not unpacked.exists()
    containers = subprocess.run([podman, "ps", "--all", "--quiet"], capture_output=True, text=True, check=True)
    assert containers.stdout == ""


def test_an_image_that_can_not_be_had_leaves_nothing(podman: Path, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="nonesuch") as caught:
        PlanarianEnvironment(home=str(tmp_path / "home"), executable=str(podman), image="localhost/nonesuch:1")
    assert "by hand" in caught.value.remedy
    with Planarian.open(tmp_path / "home") as planarian:
        assert planarian.registry.sandboxes() == []
        with pytest.raises(ConfigurationError, match="isn't there"):
            Images(planarian, "nonesuch-engine")


def test_a_disk_that_fills_while_it_is_unpacked_leaves_nothing(podman: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with Planarian.open(home) as planarian:
        small = home / "images"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
        try:
            with pytest.raises(PlanarianError, match="can't be unpacked"), Images(planarian, str(podman)).get(NAME):
                pass
            assert [p for p in small.iterdir() if p.is_dir()] == []
        finally:
            subprocess.run(["umount", str(small)], check=True)


class Runner:
    """Runs the runner over a data set of two instances whose images are named in it."""

    def __init__(self, place: Path, engine: Path) -> None:
        self.place, self.engine = place, engine
        (place / "data").mkdir()
        rows = [{"instance_id": i, "problem_statement": f"mend {i}", "image_name": NAME} for i in TWO]
        (place / "data" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, commands: Sequence[str], **environment: Any) -> subprocess.CompletedProcess[str]:
        answers = [{"role": "assistant", "content": "", "extra": {"actions": [{"command": c}]}} for c in commands]
        model = {"model_class": "minisweagent.models.test_models.DeterministicModel", "model_name": "scripted"}
        settings = {"executable": str(self.engine), "interpreter": ["bash", "-c"], "cwd": "/project", **environment}
        config = self.place / "config.yaml"
        config.write_text(json.dumps({"model": {**model, "outputs": answers}, "environment": settings}))
        options = ["--subset", str(self.place / "data"), "--split", "test", "-o", str(self.place / "out"), "-w", "2"]
        options += ["-c", "swebench.yaml", "-c", str(config)]
        variables = {
            "HOME": str(self.place), "PLANARIAN_HOME": str(self.place / "home"), "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": str(self.place / "mini"), "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, "-m", "planarian_miniswe.swebench", *options],
            env={**os.environ, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def predictions(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = json.loads((self.place / "out" / "preds.json").read_text())
        return found


def test_two_instances_are_run_each_in_a_sandbox_of_its_own(podman: Path, tmp_path: Path) -> None:
    runner = Runner(tmp_path, podman)
    commands = [
        "git init -q . && git add . && git -c user.name=a -c user.email=a@example.org commit -qm begin",
        "planarian snapshot begun; rm -rf *; planarian rollback begun",
        "echo 42 > answer.txt; planarian snapshot mended",
        "git diff > /tmp/patch; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat /tmp/patch",
    ]
    done = runner.run(commands)
    assert done.returncode == 0, done.stdout + done.stderr
    found = runner.predictions()
    assert sorted(found) == TWO, done.stdout
    for instance_id, prediction in found.items():
        assert prediction["instance_id"] == instance_id
        assert prediction["model_name_or_path"] == "scripted"
        assert "-41\n+42\n" in prediction["model_patch"], done.stdout
    trajectories = [json.loads((tmp_path / "out" / i / f"{i}.traj.json").read_text()) for i in TWO]
    assert len({t["info"]["planarian"]["sandbox"] for t in trajectories}) == 2
    with Planarian.open(tmp_path / "home") as planarian:
        assert planarian.registry.sandboxes() == []
    assert [p for p in (tmp_path / "home" / "images").iterdir() if p.is_dir()] == []
    again = runner.run(["false"])
    assert "Skipping 2 existing instances" in again.stdout + again.stderr
    assert runner.predictions() == found


def test_sandboxes_are_kept_when_asked(podman: Path, tmp_path: Path) -> None:
    runner = Runner(tmp_path, podman)
    runner.run(["echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"], keep=True)
    with Planarian.open(tmp_path / "home") as planarian:
        kept = planarian.registry.sandboxes()
        assert len(kept) == 2
        for record in kept:
            sandbox = planarian.sandbox(record.id)
            assert sandbox.run("cat answer.txt").stdout == "41\n"
            planarian.remove_sandbox(sandbox)
