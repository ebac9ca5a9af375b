"""``new --root``: a sandbox on an unpacked image, made and used by commands alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core.testing.small_root import small_root

ON_IMAGES = ("--sandbox", "namespace", "--filesystem", "copy", "--process", "respawn")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return small_root(tmp_path / "image")


@pytest.fixture
def rooted(bare: Any, image: Path) -> Iterator[Any]:
    """The command, beside an image; what it made is removed in the end."""
    yield bare
    for row in reversed(bare.json("list")["sandboxes"]):
        bare("rm", "--yes", row["id"])


@pytest.mark.needs("root", "namespaces")
def test_commands_work_in_the_image_and_go_back_there(rooted: Any, image: Path) -> None:
    made = rooted.run("new", "/project", "--root", str(image), "--name", "boxed", *ON_IMAGES)
    assert made.returncode == 0, made.stderr
    assert f"/project in {image}: sandbox namespace" in made.stderr.decode()
    assert "ID=small" in rooted("run", "cat", "/etc/os-release"), "the image's files, not the host's"
    assert rooted("run", "cat", "answer.txt") == "41"
    rooted("snapshot", "before")
    rooted("run", "--", "sh", "-c", "echo 42 >answer.txt; rm /etc/passwd")
    rooted("fork", "before", "--name", "other")
    assert rooted("run", "-s", "other", "cat", "answer.txt", "/etc/passwd").splitlines()[0] == "41"
    rooted("rollback", "-s", "boxed", "before")
    assert rooted("run", "-s", "boxed", "cat", "answer.txt", "/etc/passwd").splitlines()[0] == "41"
    assert (image / "project" / "answer.txt").read_text() == "41\n"
    assert {row["root"] for row in rooted.json("list")["sandboxes"]} == {str(image)}
    assert f"/project in {image} (fork of sp-" in rooted("list")


@pytest.mark.needs("root", "namespaces")
def test_doctor_names_an_image_that_is_gone(rooted: Any, image: Path) -> None:
    sandbox = rooted("new", "/project", "--root", str(image), *ON_IMAGES)
    assert rooted.json("doctor")["problems"] == []
    image.rename(image.with_name("elsewhere"))
    [problem] = rooted.json("doctor")["problems"]
    assert problem.startswith(f"{image} is gone, the unpacked image that {sandbox} stand on: put it back")
    assert f"planarian rm {sandbox}" in problem
    rooted("rm", "--yes", sandbox)
    assert rooted.json("doctor")["problems"] == []


@pytest.mark.needs("root", "namespaces")
def test_what_can_t_be_meant_is_refused_with_the_next_step(rooted: Any, image: Path, tmp_path: Path) -> None:
    said = rooted.fails(1, "new", "--root", str(image), *ON_IMAGES)
    assert f"Next: name a project's directory as it is called in {image}, such as /app" in said
    said = rooted.fails(1, "new", "/app", "--root", str(tmp_path / "nowhere"), *ON_IMAGES)
    assert "unpack an image there first" in said
    assert "a home lies in it" in rooted.fails(1, "new", "/app", "--root", "/", *ON_IMAGES)
    assert rooted.json("list")["sandboxes"] == []


def test_a_backend_that_can_t_says_which_can(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "image" / "app").mkdir(parents=True)
    said = cli.fails(4, "new", "/app", "--root", str(tmp_path / "image"))
    assert "a fake sandbox can't stand on another root than the host's" in said
    assert "namespace, as root" in said
