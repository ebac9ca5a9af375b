"""What a layer shows, merged without mounting, is what the kernel's overlay shows: asked of a running sandbox."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planarian_core import Planarian
from planarian_core.comparison import Aspect, compare
from planarian_core.directory_tree import DirectoryTree
from planarian_core.file_tree import FileEntry, FileKind, FileTree
from planarian_core.sandbox import Sandbox
from planarian_core.seen_files import at_creation, at_statepoint, now
from planarian_core.testing.workloads import remove_all
from planarian_sandbox.lower import LowerTree
from planarian_sandbox.merged import Hidden
from planarian_sandbox.overlay_tree import Overlay

pytestmark = pytest.mark.needs("namespaces")

_EXAMPLES = 200
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character",
    stat.S_IFBLK: "block",
}
_WORK = """\
import json, os, shutil, sys
os.chdir(sys.argv[1])
def write(path, text):
    with open(path, "a") as file:
        file.write(text)
actions = {
    "write": write, "unlink": os.unlink, "rmtree": shutil.rmtree, "mkdir": os.mkdir, "rename": os.rename,
    "symlink": lambda path, target: os.symlink(target, path), "link": lambda path, other: os.link(other, path),
    "chmod": os.chmod, "mkfifo": os.mkfifo, "truncate": os.truncate, "utime": lambda path: os.utime(path, (1, 1)),
    "setxattr": lambda path: os.setxattr(path, "user.note", b"x"),
}
for action, *arguments in json.loads(sys.argv[2]):
    try:
        actions[action](*arguments)
    except OSError:
        pass
"""


def _fill(root: Path) -> None:
    """One example's files below: nested directories, hard links, a symlink."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "d").mkdir()
    for name in ("x", "a/x", "a/b/x", "a/b/c/x", "d/x"):
        (root / name).write_text(name)
    os.link(root / "a" / "x", root / "d" / "y")
    os.link(root / "a" / "x", root / "y")
    (root / "a" / "link").symlink_to("b/x")
    os.mkfifo(root / "d" / "fifo")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("merged")


@pytest.fixture(scope="module")
def planarian(home: Path) -> Iterator[Planarian]:
    with Planarian.open(home / "home") as planarian:
        yield planarian
        remove_all(planarian)


@pytest.fixture(scope="module")
def sandbox(planarian: Planarian, home: Path) -> Sandbox:
    """A sandbox whose workspace has a directory for each example."""
    for number in range(_EXAMPLES):
        _fill(home / "workspace" / f"e{number}")
    return planarian.create_sandbox(home / "workspace", sandbox="namespace", filesystem="copy", process="none")


_examples = itertools.count()
_path = st.lists(st.sampled_from(["a", "b", "c", "d", "x", "y", "new"]), min_size=1, max_size=4).map("/".join)
_operation = st.one_of(
    st.tuples(st.just("write"), _path, st.sampled_from(["", "more", "z" * 9000])),
    st.tuples(st.sampled_from(["unlink", "rmtree", "mkdir", "utime", "setxattr", "mkfifo"]), _path),
    st.tuples(st.sampled_from(["rename", "link"]), _path, _path),
    st.tuples(st.just("symlink"), _path, st.sampled_from(["a", "../x", "/etc/passwd"])),
    st.tuples(st.just("chmod"), _path, st.sampled_from([0o600, 0o755, 0o4711, 0o1777])),
    st.tuples(st.just("truncate"), _path, st.sampled_from([0, 1 << 30])),
)


def _seen_by_kernel(root: str, path: str) -> dict[str, Any]:
    """All that is at and below a path, asked of the kernel with lstat alone."""
    found: dict[str, Any] = {}
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    todo = [path]
    while todo:
        at = todo.pop()
        real = os.path.join(root, at)
        status = os.lstat(real)
        kind = _KINDS[stat.S_IFMT(status.st_mode)]
        attributes = {name: os.getxattr(real, name, follow_symlinks=False) for name in _attributes(real)}
        content = ""
        if kind == "file":
            content = hashlib.sha256(Path(real).read_bytes()).hexdigest() if status.st_size < 1 << 20 else ""
            groups[status.st_dev, status.st_ino].append(at)
        elif kind == "symlink":
            content = os.readlink(real)
        elif kind == "directory":
            todo += [f"{at}/{name}" for name in os.listdir(real)]
        size = status.st_size if kind == "file" else 0
        found[at] = [kind, status.st_mode & 0o7777, status.st_uid, status.st_gid, size, status.st_mtime_ns]
        found[at] += [attributes, content]
    for names in groups.values():
        for name in names:
            found[name].append(sorted(names))
    return found


def _attributes(path: str) -> list[str]:
    return [name for name in os.listxattr(path, follow_symlinks=False) if not name.startswith("trusted.")]


def _seen_merged(tree: FileTree, path: str) -> dict[str, Any]:
    """The same of a tree."""
    found: dict[str, Any] = {}
    groups: dict[str, list[str]] = defaultdict(list)
    todo = [path]
    while todo:
        at = todo.pop()
        entry = tree.entry(at)
        assert entry is not None, at
        content = entry.target
        if entry.kind is FileKind.FILE:
            content = hashlib.sha256(b"".join(tree.read(at))).hexdigest() if entry.size < 1 << 20 else ""
            groups[entry.links or at].append(at)
        elif entry.kind is FileKind.DIRECTORY:
            todo += [f"{at}/{child.name}" for child in tree.children(at)]
        found[at] = [entry.kind.value, entry.mode, entry.uid, entry.gid, entry.size, entry.mtime_ns]
        found[at] += [dict(entry.xattrs), content]
    for names in groups.values():
        for name in names:
            found[name].append(sorted(names))
    return found


def _root(sandbox: Sandbox) -> str:
    live = sandbox.record.live
    assert live is not None
    return f"/proc/{live.init_pid}/root"


def _work(sandbox: Sandbox, directory: str, operations: Any) -> None:
    done = sandbox.run(["python3", "-c", _WORK, directory, json.dumps(operations)], timeout=60)
    assert done.exit_code == 0, done.stderr


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_operation, max_size=12))
def test_whatever_is_done_shows_as_the_kernel_shows_it(
    planarian: Planarian, sandbox: Sandbox, operations: list[tuple[Any, ...]]
) -> None:
    directory = f"e{next(_examples)}"
    _work(sandbox, directory, operations)
    with now(planarian.plugins, sandbox.record) as seen:
        path = f"{seen.workspace}/{directory}"
        assert _seen_merged(seen.tree, path) == _seen_by_kernel(_root(sandbox), path)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_operation, min_size=1, max_size=8))
def test_equal_identities_hide_no_change(
    planarian: Planarian, sandbox: Sandbox, operations: list[tuple[Any, ...]]
) -> None:
    """A comparison that trusts identities finds what one that reads everything finds."""
    directory = f"e{next(_examples)}"
    _work(sandbox, directory, operations)
    base = at_creation(planarian.plugins, sandbox.record)
    with now(planarian.plugins, sandbox.record) as seen, DirectoryTree(Path(sandbox.record.spec.origin)) as origin:
        only_links = {Aspect.LINKS}  # a name that is left alone of several may lie where nothing else changed
        trusting, reading = (
            {(d.path, d.aspects) for d in compare(one, seen.files, directory) if d.aspects != only_links}
            for one in (base.files, origin)
        )
    assert trusting == reading


def test_a_statepoint_shows_what_the_kernel_showed(planarian: Planarian, sandbox: Sandbox) -> None:
    directory = f"e{next(_examples)}"
    operations = [("rename", "a", "moved"), ("write", "moved/b/x", "more"), ("rmtree", "d"), ("mkdir", "d")]
    _work(sandbox, directory, [*operations, ("rename", "moved/b", "d/b"), ("write", "d/b/c/x", "deep")])
    path = f"{sandbox.workspace.lstrip('/')}/{directory}"
    shown = _seen_by_kernel(_root(sandbox), path)
    point = planarian.snapshot(sandbox)
    sandbox.run(["rm", "-r", directory])
    with at_statepoint(planarian.plugins, sandbox.record, point) as seen:
        assert _seen_merged(seen.tree, path) == shown
    planarian.rollback(sandbox, point)
    assert _seen_by_kernel(_root(sandbox), path).keys() == shown.keys()


def test_what_is_planarians_own_hidden_or_the_kernels_never_shows(planarian: Planarian, sandbox: Sandbox) -> None:
    with now(planarian.plugins, sandbox.record) as seen:
        tree = seen.tree
        assert tree.children("proc") == ()
        assert tree.entry("run/planarian") is None
        assert tree.entry("run/planarian/agent.py") is None
        assert tree.entry("etc/shadow") is None
        assert tree.entry(str(planarian.home).lstrip("/")) is None
        assert "planarian" not in {entry.name for entry in tree.children("run")}
        assert tree.entry("etc/passwd") is not None
        assert tree.entry(f"{seen.workspace}/../etc/passwd") is None


def test_the_rest_of_the_sandbox_shows_as_the_kernel_shows_it(planarian: Planarian, sandbox: Sandbox) -> None:
    script = "echo own > /etc/own; rm /etc/hostname; mkdir -p /opt/a/b; echo x > /tmp/t; ln -s /etc /opt/link"
    assert sandbox.run(script).exit_code == 0
    with now(planarian.plugins, sandbox.record) as seen:
        for path in ("etc", "opt", "tmp", "dev/shm"):
            assert _seen_merged(seen.tree, path) == _seen_by_kernel(_root(sandbox), path)


def test_unchanged_directories_are_told_without_looking_into_them(planarian: Planarian, sandbox: Sandbox) -> None:
    base = at_creation(planarian.plugins, sandbox.record)
    with now(planarian.plugins, sandbox.record) as seen:
        for path in ("usr", f"{seen.workspace}/e{_EXAMPLES - 1}"):
            before, after = base.tree.entry(path), seen.tree.entry(path)
            assert before is not None
            assert after is not None
            assert before.identity == after.identity != ""


# --- markers that no sandbox of ours makes by itself ---


class _Files:
    """A layer in memory: a path is there with its entry, files with their path as content."""

    def __init__(self, **entries: FileEntry) -> None:
        self._entries = {"upper": _entry("upper", FileKind.DIRECTORY), **entries}

    def entry(self, path: str) -> FileEntry | None:
        return self._entries.get(path)

    def children(self, path: str) -> list[FileEntry]:
        return [entry for at, entry in sorted(self._entries.items()) if at.rpartition("/")[0] == path]

    def read(self, path: str) -> Iterator[bytes]:
        yield path.encode()


def _entry(path: str, kind: FileKind = FileKind.FILE, **xattrs: bytes) -> FileEntry:
    named = {name.replace("__", "."): value for name, value in xattrs.items()}
    return FileEntry(path.rpartition("/")[2], kind, 0o755, 0, 0, xattrs=named)


def _overlay(tmp_path: Path, *entries: tuple[str, FileEntry], rootless: bool = False) -> Overlay:
    _fill(tmp_path)
    lower = LowerTree(tmp_path, without_mounts=False)
    return Overlay(_Files(**dict(entries)), "upper", lower, "lower", rootless=rootless)


@pytest.mark.parametrize("mark", ["trusted", "user"])
def test_a_whiteout_may_be_an_attribute(tmp_path: Path, mark: str) -> None:
    gone = _entry("upper/x", FileKind.FILE, **{f"{mark}__overlay__whiteout": b""})
    overlay = _overlay(tmp_path, ("upper/x", gone), rootless=mark == "user")
    assert overlay.entry("x") is None
    assert [entry.name for entry in overlay.children("")] == ["a", "d", "y"]
    other = _overlay(tmp_path / "other", ("upper/x", gone), rootless=mark != "user")
    assert other.entry("x") is not None, "another kind of overlay's attribute is none of ours"


def test_markers_of_an_overlay_inside_are_shown_by_their_own_names(tmp_path: Path) -> None:
    made = _entry(
        "upper/d",
        FileKind.DIRECTORY,
        trusted__overlay__origin=b"",
        trusted__overlay__overlay__opaque=b"y",
        user__note=b"1",
    )
    overlay = _overlay(tmp_path, ("upper/d", made))
    entry = overlay.entry("d")
    assert entry is not None
    assert entry.xattrs == {"trusted.overlay.opaque": b"y", "user.note": b"1"}
    assert overlay.entry("d/x") is not None, "what is escaped doesn't make it opaque"


def test_an_opaque_directory_hides_what_is_below(tmp_path: Path) -> None:
    made = _entry("upper/d", FileKind.DIRECTORY, trusted__overlay__opaque=b"y")
    assert _overlay(tmp_path, ("upper/d", made)).children("d") == []


@pytest.mark.parametrize(
    ("redirect", "rootless", "names"),
    [("/a/b", False, ["c", "x"]), ("a", False, ["b", "link", "x"]), ("a", True, ["fifo", "x", "y"])],
)
def test_a_renamed_directory_shows_what_it_was(tmp_path: Path, redirect: str, rootless: bool, names: list[str]) -> None:
    mark = "user" if rootless else "trusted"
    made = _entry("upper/d", FileKind.DIRECTORY, **{f"{mark}__overlay__redirect": redirect.encode()})
    overlay = _overlay(tmp_path, ("upper/d", made), rootless=rootless)
    assert [entry.name for entry in overlay.children("d")] == names


@pytest.mark.parametrize("redirect", ["/../etc", "..", "/a/../../etc", "/etc/passwd", "/"])
def test_a_hostile_redirect_leads_nowhere(tmp_path: Path, redirect: str) -> None:
    made = _entry("upper/d", FileKind.DIRECTORY, trusted__overlay__redirect=redirect.encode())
    names = {entry.name for entry in _overlay(tmp_path, ("upper/d", made)).children("d")}
    assert names <= {"a", "d", "x", "y"}


def test_a_redirect_does_not_lead_into_what_is_hidden(tmp_path: Path) -> None:
    made = _entry("upper/d", FileKind.DIRECTORY, trusted__overlay__redirect=b"/a/b")
    _fill(tmp_path)
    lower = LowerTree(tmp_path, without_mounts=False)
    hidden = Overlay(_Files(**{"upper/d": made}), "upper", lower, "lower", hidden=Hidden(["a"]))
    assert hidden.children("d") == []
    assert hidden.entry("a") is None
