"""The private copy of a workspace: exact, complete or said, and removed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from planarian_core.errors import SandboxError
from planarian_core.testing.oracle import assert_same, describe
from planarian_core.workspace_copy import copy_workspace, remove_copy

pytestmark = pytest.mark.needs("linux")


def test_a_copy_is_exact(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "a").write_text("content")
    os.link(source / "a", source / "deep" / "b")
    (source / "link").symlink_to("/nowhere")
    os.mkfifo(source / "fifo")
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 20)
        file.write(b"x" * 4096)
    os.setxattr(source / "a", "user.name", b"value")
    (source / "deep").chmod(0o750)
    os.utime(source / "deep", ns=(1, 2_000_000_003))
    assert copy_workspace(source, tmp_path / "copies" / "one") == ()
    assert_same(describe(tmp_path / "copies" / "one"), describe(source))
    assert (tmp_path / "copies" / "one" / "sparse").stat().st_blocks < 1000


@pytest.mark.needs("user")
def test_what_the_user_may_not_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "source" / "closed").mkdir(parents=True)
    for name in ("secret", "new\nline", "open"):
        (tmp_path / "source" / name).write_text(name)
    for name in ("secret", "new\nline", "closed"):
        (tmp_path / "source" / name).chmod(0)
    gaps = copy_workspace(tmp_path / "source", tmp_path / "copy")
    (tmp_path / "source" / "closed").chmod(0o700)
    assert len(gaps) == 3
    assert any("secret" in gap.subject for gap in gaps)
    assert (tmp_path / "copy" / "open").read_text() == "open"
    remove_copy(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.needs("root")
def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big").write_bytes(os.urandom(4 * 1024 * 1024))
    (tmp_path / "small").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(tmp_path / "small")], check=True)
    try:
        with pytest.raises(SandboxError, match="No space left") as caught:
            copy_workspace(tmp_path / "source", tmp_path / "small" / "origins" / "copy")
        assert "PLANARIAN_HOME" in caught.value.remedy
        assert list((tmp_path / "small" / "origins").iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path / "small")], check=True)
