"""``restore`` as a user types it: into a workspace in place, and into a running isolated sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.testing.oracle import Description, assert_same, describe

DIRECTORY = ("--sandbox", "directory", "--filesystem", "copy", "--process", "none")
NAMESPACE = ("--sandbox", "namespace", "--filesystem", "copy", "--process", "respawn")
KINDS = [
    pytest.param(DIRECTORY, id="directory", marks=pytest.mark.thorough),
    pytest.param(NAMESPACE, id="namespace", marks=pytest.mark.needs("namespaces")),
]
FILL = """
mkdir -p d/e d/empty; echo one > d/e/f; echo two > d/g; ln d/g d/h; ln -s ../elsewhere d/l; mkfifo -m 640 d/p
printf '#!/bin/sh\\n' > d/program; chmod 755 d/program; truncate -s 1G d/sparse; printf x >> d/sparse
touch -d @1000000000 d/e/f; chmod 750 d/e; touch -d @1000000001 d/e d; echo rest > rest
python3 -c 'import os; os.setxattr("d/g", "user.note", b"1")'
"""


@pytest.fixture(params=KINDS)
def real(bare: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    bare("new", *request.param)
    yield bare
    for row in reversed(bare.json("list")["sandboxes"]):
        bare("rm", "--yes", row["id"])


@pytest.fixture
def isolated(bare: Any) -> Iterator[Any]:
    bare("new", *NAMESPACE)
    yield bare
    bare("rm", "--yes")


def _sh(cli: Any, script: str) -> str:
    return str(cli("run", "--", "sh", "-c", script))


def _tree(cli: Any, path: str) -> Description:
    """What is below a path of the workspace, asked of the kernel."""
    with Planarian.open(cli.home, recover=False) as planarian:
        record = planarian.sandbox().record
        live = record.live
        assert live is not None
        root = f"/proc/{live.init_pid}/root" if live.init_pid else ""
        found = describe(f"{root}{record.spec.workspace}/{path}")
    plain = {}
    for name, (*facts,) in found.items():
        facts[4] = tuple(one for one in facts[4] if not one[0].startswith("trusted.overlay."))
        plain[name] = tuple(facts)
    return plain


def test_a_directory_comes_back_exactly_and_the_rest_is_not_touched(real: Any) -> None:
    _sh(real, FILL)
    real("snapshot", "one")
    before = _tree(real, "d")
    _sh(real, "rm -r d/e d/h d/l d/p; echo changed > d/g; chmod 777 d/program; rm d/sparse; mkdir d/l d/sparse; "
              "touch d/new d/l/x; echo changed > rest")  # fmt: skip
    text = real("restore", "d", "--from", "one")
    assert_same(_tree(real, "d"), before)
    assert _sh(real, "cat rest") == "changed"
    assert "`d` of sandbox" in text
    assert "- d/new" in text
    assert len(real.json("log")["statepoints"]) == 2, "a safety statepoint"


def test_a_single_file_as_json(real: Any) -> None:
    _sh(real, FILL)
    real("snapshot", "one")
    _sh(real, "echo changed > d/e/f; echo changed > rest")
    done = real.json("restore", "d/e/f", "--from", "one", "--no-safety")
    assert done["restored"] == ["d/e/f"]
    assert done["safety_id"] is None
    assert _sh(real, "cat d/e/f rest") == "one\nchanged"
    assert len(real.json("log")["statepoints"]) == 1


def test_what_runs_runs_on(real: Any) -> None:
    _sh(real, "echo one > f; sleep 8765.4 >/dev/null 2>&1 & echo $! > pid")
    real("snapshot", "one")
    _sh(real, "echo two > f")
    real("restore", "f", "--from", "one")
    assert _sh(real, "cat f; kill -0 $(cat pid) && echo alive") == "one\nalive"


def test_errors_say_what_to_do(real: Any) -> None:
    _sh(real, "mkdir d; echo 1 > d/f; ln -s d l")
    real("snapshot", "one")
    assert "neither at the statepoint nor now" in real.fails(1, "restore", "never", "--from", "one")
    assert "symbolic link" in real.fails(1, "restore", "l/f", "--from", "one")
    assert "planarian log" in real.fails(3, "restore", "d", "--from", "never")
    assert "Missing argument" in real.fails(2, "restore")
    _sh(real, "rm -r d; echo file > d")
    assert "no directory now" in real.fails(1, "restore", "d/f", "--from", "one")
    stopped = real("stop")
    assert "planarian attach" in real.fails(1, "restore", "d", "--from", "one", "-s", stopped)


@pytest.mark.needs("namespaces", "root")
def test_files_outside_of_the_workspace_and_below_the_layer(isolated: Any, workspace: Path) -> None:
    isolated("snapshot", "one")
    _sh(isolated, "rm /etc/hostname hello.txt; echo forged > /etc/passwd; mkdir /etc/new; echo x > /etc/new/f")
    isolated("restore", "/etc/hostname", "/etc/passwd", "/etc/new", "hello.txt", "--from", "one")
    assert _sh(isolated, "cat hello.txt; ls -d /etc/new 2>/dev/null || echo gone") == "hello\ngone"
    assert (
        _sh(isolated, "cat /etc/hostname /etc/passwd")
        == (Path("/etc/hostname").read_text() + Path("/etc/passwd").read_text()).strip()
    )
    assert "path by path" in isolated.fails(1, "restore", "/", "--from", "one")
    assert isolated.json("diff", "one")["files"] == []


@pytest.mark.needs("namespaces", "root")
def test_a_sandbox_that_swaps_directories_gets_nothing_written_outside(isolated: Any, tmp_path: Path) -> None:
    """Links to the host's paths lead to the sandbox's own files, whatever it does while we write."""
    _sh(isolated, "mkdir d; for i in $(seq 200); do echo $i > d/$i; done")
    isolated("snapshot", "one")
    target = tmp_path / "precious"
    target.mkdir()
    before = describe(target)
    etc = sorted(os.listdir("/etc"))
    swap = (
        "cat > swap.py <<'END'\nimport os\nwhile True:\n    try:\n        os.rename('d', 'away')\n"
        f"        os.symlink('{target}', 'd')\n        os.unlink('d')\n        os.symlink('/etc', 'd')\n"
        "        os.unlink('d')\n        os.rename('away', 'd')\n    except OSError:\n        pass\nEND\n"
        "rm -f d/*; python3 swap.py >/dev/null 2>&1 &"
    )
    _sh(isolated, swap)
    for _ in range(5):
        done = isolated.run("restore", "d", "--from", "one", "--no-safety")
        assert done.returncode in (0, 1, 5), done.stderr
    assert_same(describe(target), before)
    assert sorted(os.listdir("/etc")) == etc
    isolated("run", "--", "pkill", "-9", "-f", "swap.py")
    isolated("recover")
    _sh(isolated, "test -d away && { rm -rf d; mv away d; } || true")
    isolated("restore", "d", "--from", "one")
    assert _sh(isolated, "ls d | wc -l") == "200"
