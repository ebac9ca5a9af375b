"""The pieces of the namespace backend that can be looked at alone."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planarian_core.errors import ConfigurationError, SandboxError
from planarian_sandbox.collect import Collector
from planarian_sandbox.hidden import check_workspace, hidden_paths
from planarian_sandbox.identity import descendants, end_found, exited, namespace_pids, pid_namespace, process_stat
from planarian_sandbox.inside import Inside, open_below
from planarian_sandbox.layout import Layout
from planarian_sandbox.podman_engine import container_name
from planarian_sandbox.podman_launch import end_half_made
from planarian_sandbox.seccomp import allowed, filters

pytestmark = pytest.mark.needs("linux")


@given(st.lists(st.binary(max_size=40)), st.integers(0, 60))
def test_collector_keeps_beginning_and_end(pieces: list[bytes], limit: int) -> None:
    collector = Collector(limit)
    for piece in pieces:
        collector.feed(piece)
    whole = b"".join(pieces)
    if len(whole) <= limit:
        assert not collector.truncated
        assert collector.text() == whole.decode("utf-8", "replace")
    else:
        assert collector.truncated
        head, tail = whole[: limit // 2], whole[len(whole) - (limit - limit // 2) :]
        assert collector.text().startswith(head.decode("utf-8", "replace"))
        assert collector.text().endswith(tail.decode("utf-8", "replace"))
        assert f"{len(whole) - limit} bytes cut" in collector.text()


def test_open_below_follows_no_link_and_stays_below(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("the secret")
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_text("inside")
    (root / "link").symlink_to(outside)
    (root / "a" / "absolute").symlink_to(outside / "secret")
    (root / "proc").symlink_to("/proc/self/root")
    descriptor = os.open(root, os.O_PATH)
    try:
        os.close(open_below(descriptor, "a/file", os.O_RDONLY))
        for path in ("link/secret", "a/absolute", "proc/etc", "../outside/secret", f"/..{outside}/secret"):
            with pytest.raises(OSError, match=r"symbolic links|No such file|Not a directory|cross-device"):
                open_below(descriptor, path, os.O_RDONLY)
    finally:
        os.close(descriptor)


def test_make_directory_replaces_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "run").symlink_to(outside)
    with Inside.of_path(str(root)) as inside, inside.make_directory("run", 0o755) as made:
        made.replace("file", b"content", 0o644)
    assert list(outside.iterdir()) == []
    assert (root / "run" / "file").read_bytes() == b"content"


def test_read_regular_is_bounded_and_never_hangs(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 101)
    (tmp_path / "fits").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to(tmp_path / "fits")
    os.mkfifo(tmp_path / "fifo")
    with Inside.of_path(str(tmp_path)) as inside:
        assert inside.read_regular("fits", 100)[0] == b"x" * 100
        for name in ("big", "link", "fifo", "missing", "."):
            with pytest.raises(OSError, match=r".+"):
                inside.read_regular(name, 100)


def test_hidden_paths_resolve_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "user"
    (home / "elsewhere").mkdir(parents=True)
    (home / ".ssh").symlink_to(home / "elsewhere")
    monkeypatch.setenv("HOME", str(home))
    found = hidden_paths([str(tmp_path / "planarian")])
    assert {str(home / ".ssh"), str(home / "elsewhere"), str(home / ".netrc"), str(tmp_path / "planarian")} <= set(
        found
    )
    assert str(home / ".gitconfig") not in found
    assert "/etc/shadow" in found


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("[global]\nindex-url = https://me:word@host/simple\n", True),
        ("[global]\nextra-index-url =\n  https://a/simple\n  https://token@host/simple\n", True),
        ("<settings><server><password>x</password></server></settings>", True),
        ("\0" * (1024 * 1024 + 1), True),
        ("[global]\nindex-url = https://host/simple\ncert = /etc/ssl/certs/ca.crt\n", False),
        ("", False),
    ],
)
def test_settings_are_hidden_only_with_a_secret_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, hidden: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".pip").mkdir()
    (tmp_path / ".pip" / "pip.conf").write_text(text)
    os.mkfifo(tmp_path / ".m2")
    assert (str(tmp_path / ".pip" / "pip.conf") in hidden_paths([])) is hidden


@pytest.mark.parametrize("path", ["relative", "/", "/etc/.."])
def test_a_hidden_path_must_be_absolute(path: str) -> None:
    with pytest.raises(ConfigurationError):
        hidden_paths([], [path])


def test_workspaces_that_can_not_be(tmp_path: Path) -> None:
    (tmp_path / "hidden" / "repo").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "hidden" / "repo")
    (tmp_path / "file").write_text("")
    for workspace in ("/", str(tmp_path / "none"), str(tmp_path / "file"), str(tmp_path / "link")):
        with pytest.raises(ConfigurationError):
            check_workspace(workspace, [str(tmp_path / "hidden")])
    (tmp_path / "hidden-not").mkdir()
    check_workspace(str(tmp_path / "hidden-not"), [str(tmp_path / "hidden")])


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"rootless": true}', "nonsense"])
def test_a_damaged_layout_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "layout.json").write_text(content)
    with pytest.raises(SandboxError):
        Layout.load(str(tmp_path))


def test_filters_are_compiled_once(tmp_path: Path) -> None:
    first = filters(tmp_path)
    times = [path.stat().st_mtime_ns for path in first]
    for path in first:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_size % 8 == 0
    assert filters(tmp_path) == first
    assert [path.stat().st_mtime_ns for path in first] == times


def test_the_allow_list_leaves_out_what_opens_the_kernel() -> None:
    dangerous = {
        "mount",
        "unshare",
        "setns",
        "bpf",
        "kexec_load",
        "init_module",
        "open_by_handle_at",
        "keyctl",
        "reboot",
    }
    assert not dangerous & set(allowed())
    assert {"read", "write", "execve", "openat"} <= set(allowed())


def test_identity_of_processes() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 60; true"])
    try:
        found = process_stat(child.pid)
        assert found is not None
        assert found[0] in "SRD"
        assert child.pid in descendants(os.getpid())
        pidfd = os.pidfd_open(child.pid)
        assert not exited(pidfd)
        child.kill()
        assert exited(pidfd, 5)
        os.close(pidfd)
    finally:
        child.kill()
        child.wait()
    assert process_stat(child.pid) is None
    assert namespace_pids(child.pid) == ()


def test_more_processes_than_descriptors_are_ended() -> None:
    """An ordinary user has no control group that ends all at once, and often 1,024 descriptors."""
    processes = [subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL) for _ in range(60)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = pid_namespace(os.getpid())
    assert own is not None
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, hard))
        ended = end_found(lambda: {process.pid for process in processes}, 30.0, own)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for process in processes:
            process.kill()
    assert ended
    assert [process.wait() for process in processes] == [-9] * 60


def test_what_is_found_only_once_may_be_another_by_now() -> None:
    """It may have ended, and its pid may be that of some process of the host's."""
    process = subprocess.Popen(["sleep", "1000"])
    found = iter([{process.pid}])
    try:
        assert end_found(lambda: next(found, set()), 5.0)
        assert process_stat(process.pid)[0] in "SR"  # type: ignore[index]
    finally:
        process.kill()
        process.wait()


def test_the_end_of_what_never_stops_starting_is_not_said() -> None:
    """None of them is there the second time."""
    begun: list[subprocess.Popen[bytes]] = []

    def found() -> set[int]:
        begun.append(subprocess.Popen(["sleep", "1000"]))
        return {begun[-1].pid}

    try:
        assert not end_found(found, 0.2)
    finally:
        for process in begun:
            process.kill()
            process.wait()


def test_what_a_killed_podman_began_is_ended_with_all_below() -> None:
    """A process that looks as its conmon does, and two others that this started."""
    script = "sleep 1000 & sleep 1000 & echo; wait"
    name = container_name("sb-begun")
    conmon = subprocess.Popen(["sh", "-c", script, "-n", name, "other"], stdout=subprocess.PIPE)
    assert conmon.stdout is not None
    conmon.stdout.readline()
    below = descendants(conmon.pid)
    assert len(below) == 2
    end_half_made("sb-other")
    assert conmon.poll() is None
    end_half_made("sb-begun")
    assert conmon.wait(5) == -9
    conmon.stdout.close()
    left = filter(None, map(process_stat, below))
    assert all(state in "ZX" for state, _ in left)
