"""Commands that no backend can run are refused by both, in the same words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core.errors import SandboxError
from planarian_core.model import Command, LiveSandbox, SandboxSpec
from planarian_sandbox.command_check import check_command
from planarian_sandbox.directory import DirectoryBackend
from planarian_sandbox.namespace import NamespaceBackend

GOOD = Command(("true",), env={"NAME": "a=b"})
BAD = [
    ("command-empty", replace(GOOD, argv=())),
    ("command-nul", replace(GOOD, argv=("echo", "a\0b"))),
    ("command-nul", replace(GOOD, env={"NAME": "a\0b"})),
    ("command-nul", replace(GOOD, env={"NA\0ME": ""})),
    ("command-nul", replace(GOOD, cwd="a\0b")),
    ("command-nul", replace(GOOD, detach=True, stderr_path="a\0b")),
    ("command-env", replace(GOOD, env={"A=B": "c"})),
    ("session-name", replace(GOOD, session="../other")),
    ("session-name", replace(GOOD, session="a" * 65)),
    ("session-input", replace(GOOD, session="main", argv=("a", "b"))),
    ("session-input", replace(GOOD, session="main", detach=True)),
]


@pytest.fixture
def spec(tmp_path: Path) -> SandboxSpec:
    return SandboxSpec("sb-none", str(tmp_path), str(tmp_path), str(tmp_path / "home"), "directory")


@pytest.mark.parametrize(("code", "command"), BAD)
@pytest.mark.parametrize("backend", [DirectoryBackend, NamespaceBackend])
def test_it_is_refused_before_all_else(
    spec: SandboxSpec, backend: type[DirectoryBackend | NamespaceBackend], code: str, command: Command
) -> None:
    stopped = LiveSandbox(0, 0, "another boot", (), {})
    with pytest.raises(SandboxError) as caught:
        backend(Path(spec.home)).execute(spec, stopped, command)
    assert caught.value.code == code


def test_what_can_be_run(spec: SandboxSpec) -> None:
    for command in (GOOD, replace(GOOD, session="main-1_b"), replace(GOOD, detach=True, stdout_path="log")):
        check_command(spec, command)


def test_the_sandboxs_own_environment_counts(spec: SandboxSpec) -> None:
    with pytest.raises(SandboxError):
        check_command(replace(spec, env={"A=B": "c"}), GOOD)
