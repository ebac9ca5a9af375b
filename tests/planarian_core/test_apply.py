"""Which changes of a sandbox reach the host's workspace, how they are written, and how they are taken back."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planarian_core import Planarian
from planarian_core.applied_changes import AppliedChanges, ApplyConflict
from planarian_core.applied_store import AppliedStore, FileState, Replaced
from planarian_core.apply_plan import Decision, Ends, Verdict, plan, reports
from planarian_core.apply_policy import held_back, runs_on_host, sanitised
from planarian_core.apply_writing import write
from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import ConfigurationError, LineageError, RestoreError
from planarian_core.file_tree import FileEntry, FileKind
from planarian_core.sandbox import Sandbox
from planarian_core.testing.oracle import assert_same, describe
from planarian_core.testing.workloads import remove_all

# --- what may pass ---


def _entry(kind: FileKind = FileKind.FILE, mode: int = 0o644, **xattrs: bytes) -> FileEntry:
    return FileEntry("x", kind, mode, 0, 0, xattrs={name.replace("__", "."): v for name, v in xattrs.items()})


@pytest.mark.parametrize(
    "path",
    [
        *(".git/hooks/pre-commit", ".git/hooks", ".git/config", ".git/config.worktree", ".git/info/attributes"),
        *(".git/modules/sub/config", ".git/modules/sub/hooks/post-checkout", ".git/modules/refs/config"),
        *("sub/.git/config", "a/b/.git/hooks/x", ".GIT/config", ".git/rebase-merge/git-rebase-todo"),
        *(".git/commondir", ".git/objects/info/alternates", ".git/worktrees/w/config.worktree", ".git/info/grafts"),
        *(".hg/hgrc", "sub/.hg/hgrc", ".jj/repo/planarian.toml", ".git/sequencer/todo", ".git/HEAD/x/config"),
    ],
)
def test_what_version_control_would_execute_is_held_back(path: str) -> None:
    assert runs_on_host(path, _entry())


@pytest.mark.parametrize(
    "path",
    [
        *(".git/HEAD", ".git/index", ".git/objects/ab/cdef", ".git/refs/heads/main", ".git/logs/HEAD"),
        *(".git/packed-refs", ".git/info/exclude", ".git/COMMIT_EDITMSG", "hooks/pre-commit", "config", "git/config"),
        *(".gitignore", ".gitmodules", ".github/workflows/ci.yml", "x.git/config", ".hg/store/data"),
    ],
)
def test_history_and_files_pass(path: str) -> None:
    assert runs_on_host(path, _entry()) == ""


def test_a_git_that_points_elsewhere_is_held_back() -> None:
    assert runs_on_host("sub/.git", _entry())
    assert runs_on_host(".git", _entry(FileKind.SYMLINK))
    assert runs_on_host(".git", _entry(FileKind.DIRECTORY)) == ""
    assert runs_on_host(".git/refs", _entry(FileKind.DIRECTORY)) == ""
    assert runs_on_host(".git/index", _entry(FileKind.DIRECTORY)), "not a name for a directory"


@pytest.mark.parametrize("path", [".git/refs", ".git/logs/HEAD", ".git/HEAD", ".hg/store", "sub/.git/objects/ab"])
def test_nothing_that_git_writes_to_may_be_a_symlink(path: str) -> None:
    assert runs_on_host(path, _entry(FileKind.SYMLINK))
    assert runs_on_host(path, _entry(FileKind.FIFO))


@pytest.mark.parametrize("name", [".Git", ".g\u200cit", "git~1", ".git.", "GIT~1"])
def test_a_git_by_any_name_that_a_file_system_takes_for_it(name: str) -> None:
    assert runs_on_host(f"{name}/config", _entry())


_PIECES = ("HEAD", "objects", "refs", "config", "hooks/post-commit", "commondir")


def _lay(root: Path, *names: str) -> Path:
    """Parts of a repository of another name than ``.git``."""
    for name in names:
        path = root / "docs" / "x" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name in ("objects", "refs", "hooks") else path.write_text("ref: refs/heads/main\n")
    return root


def test_a_directory_that_git_would_take_for_a_repository(tmp_path: Path) -> None:
    ours, theirs = _lay(tmp_path / "ours"), _lay(tmp_path / "theirs", "objects", "refs", "hooks", "config")
    ours.mkdir()
    with DirectoryTree(ours) as mine, DirectoryTree(theirs) as tree:
        assert runs_on_host("docs/x/config", _entry(), tree, mine) == ""
        (theirs / "docs" / "x" / "HEAD").symlink_to("refs/heads/main")
        for name in _PIECES:
            assert runs_on_host(f"docs/x/{name}", _entry(), tree, mine), name
        assert runs_on_host("docs/config", _entry(), tree, mine) == ""
        assert runs_on_host("docs/x/HEAD/README", _entry(), mine, mine) == ""


def test_a_repository_that_says_where_its_rest_lies(tmp_path: Path) -> None:
    ours, theirs = _lay(tmp_path / "ours"), _lay(tmp_path / "theirs", "HEAD", "commondir")
    ours.mkdir()
    with DirectoryTree(ours) as mine, DirectoryTree(theirs) as tree:
        assert runs_on_host("docs/x/HEAD", _entry(), tree, mine)
        assert runs_on_host("docs/x/commondir", _entry(), tree, mine)


@pytest.mark.parametrize("first", [("HEAD", "config"), ("objects", "refs", "config"), ("config", "commondir")])
def test_a_repository_does_not_come_in_several_applications(tmp_path: Path, first: tuple[str, ...]) -> None:
    rest = [name for name in ("HEAD", "objects", "refs") if name not in first]
    ours, theirs = _lay(tmp_path / "ours", *first), _lay(tmp_path / "theirs", *rest)
    with DirectoryTree(ours) as mine, DirectoryTree(theirs) as tree:
        assert any(runs_on_host(f"docs/x/{name}", _entry(), tree, mine) for name in rest)


def test_a_repository_of_the_host_s_own_gets_its_history(tmp_path: Path) -> None:
    ours = _lay(tmp_path / "ours", "HEAD", "objects", "refs")
    with DirectoryTree(ours) as mine:
        assert runs_on_host("docs/x/refs/heads/main", _entry(), mine, mine) == ""
        assert runs_on_host("docs/x/HEAD", _entry(), mine, mine) == ""
        assert runs_on_host("docs/x/config", _entry(), mine, mine)


def _index(*names: bytes, version: int = 2, extension: bytes = b"") -> bytes:
    entries = b""
    for name in names:
        entry = bytes(60) + struct.pack(">H", min(len(name), 0xFFF)) + name
        entries += entry + bytes(8 - len(entry) % 8)
    return b"DIRC" + struct.pack(">II", version, len(names)) + entries + extension + bytes(20)


@pytest.mark.parametrize(
    "content",
    [
        *(
            _index(name)
            for name in (b".git/hooks/x", b"a/.GIT/config", b"../x", b"/etc/x", b"a//x", b"sub/.git/hooks/x")
        ),
        *(_index(b"a", version=4), _index(b"a", extension=b"link\0\0\0\0"), _index(b"a", extension=b"IEOT\0\0\0\0")),
        *(b"", b"DIRC", _index(b"a")[:-25], _index(b"a").replace(b"DIRC", b"DIRX"), _index(b"a") + b"more of it"),
    ],
)
def test_an_index_that_leads_out_of_the_work_tree_is_held_back(tmp_path: Path, content: bytes) -> None:
    """git writes where the names in an index say, into ``.git/hooks`` as well."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(content)
    with DirectoryTree(tmp_path) as tree:
        assert runs_on_host(".git/index", _entry(), tree)


@pytest.mark.needs("git")
@pytest.mark.parametrize("version", ["2", "3"])
def test_an_index_of_git_s_own_passes(tmp_path: Path, version: str) -> None:
    for name in ("a", "b/c", "b/" + "long" * 60, "b/.gitignore", "näme"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    for command in (("init", "-q"), ("add", "."), ("update-index", "--index-version", version), ("status",)):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "later").touch()
    subprocess.run(["git", "add", "--intent-to-add", "later"], cwd=tmp_path, check=True)  # needs an extended entry
    with DirectoryTree(tmp_path) as tree:
        assert runs_on_host(".git/index", _entry(), tree) == ""


def test_paths_that_lie_very_deep_are_decided_in_good_time(tmp_path: Path) -> None:
    """Each path looks at the directory that it is in, not at all above it."""
    looks: list[str] = []

    class Counting(DirectoryTree):
        def entry(self, path: str) -> FileEntry | None:
            looks.append(path)
            return super().entry(path)

    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "theirs" / "/".join("d" * 300)).mkdir(parents=True)
    with DirectoryTree(tmp_path / "theirs") as theirs, Counting(tmp_path / "ours") as ours:
        assert len(plan(Ends(ours, theirs, ours))) == 300
    assert len(looks) < 300 * 8


@pytest.mark.parametrize("kind", [FileKind.CHARACTER, FileKind.BLOCK, FileKind.SOCKET])
def test_devices_and_sockets_are_never_written(kind: FileKind) -> None:
    assert held_back("x", _entry(kind))
    assert held_back("x", _entry()) == ""


def test_rights_of_others_are_dropped_by_name() -> None:
    entry, dropped = sanitised(
        _entry(mode=0o6755, security__capability=b"1", trusted__x=b"1", user__ok=b"1", user__overlay__opaque=b"y")
    )
    assert entry.mode == 0o755
    assert entry.xattrs == {"user.ok": b"1"}
    assert dropped == (
        "the setuid bit",
        "the setgid bit",
        "the attribute security.capability",
        "the attribute trusted.x",
        "the attribute user.overlay.opaque",
    )


# --- three ways ---


class World:
    """Base, theirs and ours as directories, and what it takes to apply one to the other."""

    def __init__(self, root: Path) -> None:
        self.base, self.theirs, self.ours = (root / name for name in ("base", "theirs", "ours"))
        self.home = root / "home"
        self.base.mkdir()

    def branch(self) -> None:
        """Both sides begin with the base."""
        for side in (self.theirs, self.ours):
            shutil.copytree(self.base, side, symlinks=True)

    @contextmanager
    def ends(self, applied: dict[str, FileState | None] | None = None) -> Iterator[Ends]:
        with ExitStack() as stack:
            base, theirs, ours = (
                stack.enter_context(DirectoryTree(path)) for path in (self.base, self.theirs, self.ours)
            )
            yield Ends(base, theirs, ours, applied or {})

    def plan(self, *paths: str, force: bool = False) -> dict[str, Decision]:
        with self.ends() as ends:
            return {decision.path: decision for decision in plan(ends, paths, force=force)}

    def verdicts(self, *paths: str, force: bool = False) -> dict[str, Verdict]:
        return {path: decision.verdict for path, decision in self.plan(*paths, force=force).items()}

    def apply(self, *, force: bool = False) -> AppliedStore:
        store = AppliedStore(self.home, "ap-1")
        with self.ends() as ends:
            decisions = [decision for decision in plan(ends, force=force) if decision.writes]
            store.save(ends.ours, [Replaced(d.path, d.ours, d.was, d.becomes) for d in decisions])
            write(ends, self.ours, decisions, store.id)
        return store


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


APPLY, SAME, CONFLICT, HELD = Verdict.APPLY, Verdict.SAME, Verdict.CONFLICT, Verdict.HELD_BACK


def test_each_side_s_own_changes(world: World) -> None:
    for name in ("changed", "both", "alike", "deleted", "deleted-changed", "host", "host-deleted", "mode"):
        (world.base / name).write_text("base")
    world.branch()
    for name in ("changed", "both", "alike", "host-deleted", "new", "new-both", "new-alike"):
        (world.theirs / name).write_text("theirs")
    for name in ("both", "deleted-changed", "host", "new-both"):
        (world.ours / name).write_text("ours")
    for name in ("alike", "new-alike"):
        (world.ours / name).write_text("theirs")
    (world.theirs / "deleted").unlink()
    (world.theirs / "deleted-changed").unlink()
    (world.ours / "host-deleted").unlink()
    (world.theirs / "mode").chmod(0o755)
    assert world.verdicts() == {
        "alike": SAME,
        "both": CONFLICT,
        "changed": APPLY,
        "deleted": APPLY,
        "deleted-changed": CONFLICT,
        "host-deleted": CONFLICT,
        "mode": APPLY,
        "new": APPLY,
        "new-alike": SAME,
        "new-both": CONFLICT,
    }
    world.apply()
    assert (world.ours / "both").read_text() == "ours"
    assert (world.ours / "host").read_text() == "ours"
    assert (world.ours / "changed").read_text() == "theirs"
    assert not (world.ours / "deleted").exists()
    assert stat.S_IMODE((world.ours / "mode").stat().st_mode) == 0o755
    assert set(world.verdicts().values()) == {SAME, CONFLICT}, "what was applied is not to be applied again"


def test_only_some_paths(world: World) -> None:
    world.branch()
    for name in ("a/f", "b/f", "ab"):
        (world.theirs / name).parent.mkdir(exist_ok=True)
        (world.theirs / name).write_text("x")
    assert world.verdicts("a").keys() == {"a", "a/f"}


def test_a_conflict_shows_both_sides(world: World) -> None:
    (world.base / "f").write_text("one\ntwo\n")
    world.branch()
    (world.ours / "f").write_text("one\nours\n")
    (world.theirs / "f").write_text("theirs\ntwo\n")
    with world.ends() as ends:
        told = reports(ends, plan(ends))["f"]
    assert "+++ workspace/f" in told
    assert "+ours\n" in told
    assert "+++ sandbox/f" in told
    assert "+theirs\n" in told


def test_theirs_where_there_is_a_conflict(world: World) -> None:
    (world.base / "f").write_text("base")
    (world.base / "d").mkdir()
    world.branch()
    (world.ours / "f").write_text("ours")
    (world.theirs / "f").write_text("theirs")
    (world.theirs / "d").rmdir()
    (world.theirs / "d").write_text("a file now")
    (world.ours / "d" / "mine").write_text("x")
    shutil.rmtree(world.ours / "d")
    (world.ours / "d").symlink_to("/etc")
    before = describe(world.ours)
    store = world.apply(force=True)
    assert (world.ours / "f").read_text() == "theirs"
    assert (world.ours / "d").read_text() == "a file now"
    store.put_back(world.ours, ".mark")
    after = describe(world.ours)
    before.pop(b".")
    after.pop(b".")
    assert_same(after, before)


def test_a_directory_that_the_host_filled_stays(world: World) -> None:
    (world.base / "d").mkdir()
    (world.base / "d" / "f").write_text("x")
    world.branch()
    shutil.rmtree(world.theirs / "d")
    (world.ours / "d" / "mine").write_text("mine")
    assert world.verdicts() == {"d": HELD, "d/f": APPLY}
    world.apply()
    assert os.listdir(world.ours / "d") == ["mine"]


def test_a_directory_that_the_host_filled_blocks_a_file_of_its_name(world: World) -> None:
    (world.base / "d").mkdir()
    world.branch()
    (world.theirs / "d").rmdir()
    (world.theirs / "d").write_text("file")
    (world.ours / "d" / "mine").write_text("mine")
    assert world.verdicts() == {"d": CONFLICT}


def test_nothing_is_written_through_what_the_host_made_a_symlink(world: World, tmp_path: Path) -> None:
    (world.base / "d").mkdir()
    world.branch()
    (tmp_path / "outside").mkdir()
    (world.ours / "d").rmdir()
    (world.ours / "d").symlink_to(tmp_path / "outside")
    (world.theirs / "d" / "f").write_text("x")
    assert world.verdicts() == {"d/f": CONFLICT}
    world.apply(force=True)
    assert list((tmp_path / "outside").iterdir()) == []
    assert (world.ours / "d" / "f").read_text() == "x"


def test_symlinks_arrive_as_symlinks(world: World, tmp_path: Path) -> None:
    (world.base / "d").mkdir()
    (world.base / "d" / "f").write_text("x")
    (world.base / "f").write_text("x")
    world.branch()
    (tmp_path / "outside").write_text("precious")
    shutil.rmtree(world.theirs / "d")
    for name in ("d", "f", "new"):
        (world.theirs / name).unlink(missing_ok=True)
        (world.theirs / name).symlink_to(tmp_path / "outside")
    world.apply()
    assert all((world.ours / name).is_symlink() for name in ("d", "f", "new"))
    assert (tmp_path / "outside").read_text() == "precious"


def test_owners_are_those_of_what_is_replaced_or_of_the_directory_above(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    (world.base / "d").mkdir()
    (world.base / "d" / "f").write_text("x")
    world.branch()
    for path, uid in (("", 1000), ("d", 1001), ("d/f", 1002)):
        os.chown(world.ours / path, uid, uid)
    (world.ours / "d").chmod(0o2770)
    (world.theirs / "d" / "f").write_text("y")
    (world.theirs / "d" / "new").mkdir()
    (world.theirs / "d" / "new" / "f").write_text("y")
    os.chown(world.theirs / "d" / "new" / "f", 4321, 4321)
    (world.theirs / "top").write_text("y")
    world.apply()
    owners = {path: os.lstat(world.ours / path).st_uid for path in ("d", "d/f", "d/new", "d/new/f", "top")}
    assert owners == {"d": 1001, "d/f": 1002, "d/new": 1001, "d/new/f": 1001, "top": 1000}
    assert (world.ours / "d" / "new").stat().st_mode & stat.S_ISGID, "a group's directory makes such ones"


def test_setuid_bits_do_not_arrive_and_are_named(world: World) -> None:
    (world.base / "known").write_text("x")
    world.branch()
    (world.theirs / "known").chmod(0o4755)
    (world.theirs / "new").write_text("x")
    (world.theirs / "new").chmod(0o4755)
    decisions = world.plan()
    assert decisions["new"].dropped == ("the setuid bit",)
    world.apply()
    for name in ("known", "new"):
        assert stat.S_IMODE((world.ours / name).stat().st_mode) == 0o755
    (world.ours / "known").chmod(0o644)
    (world.theirs / "known").chmod(0o4644)
    assert world.plan()["known"].verdict is HELD, "where only that differs, that is said"


def test_hard_links_that_come_together_stay_together(world: World) -> None:
    world.branch()
    (world.theirs / "a").write_text("x")
    os.link(world.theirs / "a", world.theirs / "b")
    world.apply()
    assert os.stat(world.ours / "a").st_ino == os.stat(world.ours / "b").st_ino


def test_hard_links_of_the_workspace_may_go_one_after_the_other(world: World) -> None:
    (world.base / "a").write_text("x")
    world.branch()
    for side in (world.base, world.theirs, world.ours):
        os.link(side / "a", side / "b")
    (world.theirs / "a").unlink()
    (world.theirs / "b").write_text("y")
    before = describe(world.ours)
    store = world.apply()
    assert (world.ours / "b").read_text() == "y"
    assert not (world.ours / "a").exists()
    store.put_back(world.ours, ".mark")
    assert describe(world.ours)[b"a"][:7] == before[b"a"][:7]


def test_what_was_applied_last_is_the_base_of_the_next(world: World) -> None:
    (world.base / "f").write_text("0")
    world.branch()
    (world.theirs / "f").write_text("1")
    store = world.apply()
    applied = {one.path: one.became for one in store.load()}
    (world.theirs / "f").write_text("2")
    with world.ends() as ends:
        assert [d.verdict for d in plan(ends)] == [CONFLICT], "without knowing"
    with world.ends(applied) as ends:
        assert [d.verdict for d in plan(ends)] == [APPLY]
    (world.theirs / "f").write_text("0")
    with world.ends(applied) as ends:
        assert [d.verdict for d in plan(ends)] == [APPLY], "back to what it began with"
    (world.theirs / "f").write_text("1")
    (world.ours / "f").write_text("mine")
    with world.ends(applied) as ends:
        assert [d.verdict for d in plan(ends)] == [SAME], "only the host changed it since"


def test_a_workspace_that_changes_at_this_moment_is_noticed(world: World) -> None:
    (world.base / "f").write_text("0")
    world.branch()
    (world.theirs / "f").write_text("1")
    store = AppliedStore(world.home, "ap-1")
    with world.ends() as ends:
        decisions = plan(ends)
        store.save(ends.ours, [Replaced(d.path, d.ours, d.was, d.becomes) for d in decisions])
        (world.ours / "f").write_text("now")
        with pytest.raises(RestoreError, match="at this very moment"):
            write(ends, world.ours, decisions, "ap-1")
    assert (world.ours / "f").read_text() == "now"


# --- any three trees ---

_names = st.sampled_from(["a", "b", "a/a", "a/b", "b/a", "a/a/a"])
_contents = st.sampled_from(["", "1", "2", "->a", "->/etc/passwd", "dir", "x"])
_trees = st.dictionaries(_names, _contents, max_size=6)


def _make(root: Path, files: dict[str, str]) -> None:
    root.mkdir()
    for path in sorted(files):
        target = root / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if files[path] == "dir":
                target.mkdir(exist_ok=True)
            elif files[path].startswith("->"):
                target.symlink_to(files[path][2:])
            else:
                target.write_text(files[path])
                target.chmod(0o755 if files[path] == "x" else 0o644)
        except OSError:  # not all of them fit into one tree
            continue


def _without_times(root: Path) -> dict[bytes, tuple[object, ...]]:
    return {path: (*found[:3], *found[4:]) for path, found in describe(root).items() if path != b"."}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_trees, _trees, _trees, st.booleans())
def test_any_three_trees(base: dict[str, str], theirs: dict[str, str], ours: dict[str, str], force: bool) -> None:
    """What one side changed is as that side has it, conflicts are the host's unless forced, and it can be undone."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.base.rmdir()
        for root, files in ((world.base, base), (world.theirs, theirs), (world.ours, ours)):
            _make(root, files)
        wanted, before = (_without_times(root) for root in (world.theirs, world.ours))
        exact = describe(world.ours)
        decisions = world.plan(force=force)
        store = world.apply(force=force)
        after = _without_times(world.ours)
        for path in wanted.keys() | before.keys() | after.keys():
            decision = decisions.get(os.fsdecode(path))
            if decision is not None and decision.writes:
                assert after.get(path) == wanted.get(path), path
            elif decision is not None or not force:
                assert after.get(path) == before.get(path), path
        done = store.put_back(world.ours, ".mark")
        assert done.kept == []
        restored = describe(world.ours)
        directories = [path for path, found in restored.items() if stat.S_ISDIR(found[0])]
        for path in [b".", *directories]:  # a directory's own time moves with what comes and goes in it
            exact.pop(path, None)
            restored.pop(path, None)
        assert_same(restored, exact)


# --- taking back ---


def test_what_somebody_changed_since_stays(world: World) -> None:
    for name in ("a", "b"):
        (world.base / name).write_text("base")
    world.branch()
    for name in ("a", "b", "d/new"):
        (world.theirs / name).parent.mkdir(exist_ok=True)
        (world.theirs / name).write_text("theirs")
    store = world.apply()
    (world.ours / "b").write_text("mine")
    (world.ours / "d" / "mine").write_text("mine")
    with DirectoryTree(world.ours) as ours:
        assert store.conflicts(ours) == ["b"]
    done = store.put_back(world.ours, ".mark")
    assert set(done.kept) == {"b", "d"}
    assert set(done.back) == {"a", "d/new"}
    assert (world.ours / "a").read_text() == "base"
    assert (world.ours / "b").read_text() == "mine"
    assert os.listdir(world.ours / "d") == ["mine"]
    assert set(store.put_back(world.ours, ".mark").kept) == {"b", "d"}, "again is harmless"


def test_a_lost_manifest_is_named(world: World) -> None:
    with pytest.raises(RestoreError, match="can't be read"):
        AppliedStore(world.home, "ap-never").load()


# --- sandboxes that work in place ---


@pytest.fixture
def planarian(tmp_path: Path) -> Iterator[Planarian]:
    with Planarian.open(tmp_path / "home") as planarian:
        planarian.with_config(sandbox="directory", filesystem="copy", process="none")
        yield planarian
        remove_all(planarian)


@pytest.fixture
def sandbox(planarian: Planarian, workspace: Path) -> Sandbox:
    return planarian.create_sandbox(workspace)


def test_in_place_there_is_nothing_to_apply(planarian: Planarian, sandbox: Sandbox) -> None:
    with pytest.raises(ConfigurationError, match="works in place"):
        planarian.apply(sandbox)


def _fork(planarian: Planarian, sandbox: Sandbox) -> Sandbox:
    return planarian.fork(planarian.snapshot(sandbox, name="base"))


def test_a_fork_is_applied_to_the_workspace_of_its_source(
    planarian: Planarian, sandbox: Sandbox, workspace: Path
) -> None:
    fork = _fork(planarian, sandbox)
    fork.run("echo fork > hello.txt; mkdir d; echo new > d/new")
    preview = planarian.apply(fork, preview=True)
    assert (workspace / "hello.txt").read_text() == "hello\n"
    assert preview.id == ""
    done = planarian.apply(fork)
    assert [one.path for one in done.applied] == [one.path for one in preview.applied] == ["d", "d/new", "hello.txt"]
    assert (workspace / "hello.txt").read_text() == "fork\n"
    assert planarian.registry.applications.get(done.id) is not None
    undone = planarian.undo_application(fork)
    assert set(undone.back) == {"d", "d/new", "hello.txt"}
    assert (workspace / "hello.txt").read_text() == "hello\n"
    assert planarian.registry.applications.all() == {}
    assert list((planarian.home / "applied").iterdir()) == []
    with pytest.raises(LineageError, match="there are: none"):
        planarian.undo_application(fork)


def test_conflicts_stop_everything(planarian: Planarian, sandbox: Sandbox, workspace: Path) -> None:
    fork = _fork(planarian, sandbox)
    fork.run("echo fork > hello.txt; echo new > new")
    (workspace / "hello.txt").write_text("user\n")
    with pytest.raises(ApplyConflict) as caught:
        planarian.apply(fork)
    assert caught.value.to_dict()["conflicts"][0]["path"] == "hello.txt"
    assert not (workspace / "new").exists()
    done: AppliedChanges = planarian.apply(fork, skip_conflicts=True)
    assert [one.path for one in done.applied] == ["new"]
    assert (workspace / "hello.txt").read_text() == "user\n"
    planarian.apply(fork, theirs=True)
    assert (workspace / "hello.txt").read_text() == "fork\n"


def test_one_application_after_the_other(planarian: Planarian, sandbox: Sandbox, workspace: Path) -> None:
    fork = _fork(planarian, sandbox)
    for number in range(3):
        fork.run(f"echo {number} > hello.txt")
        assert [one.path for one in planarian.apply(fork).applied] == ["hello.txt"]
    assert planarian.apply(fork).applied == ()
    for text in ("1\n", "0\n", "hello\n"):
        planarian.undo_application(fork)
        assert (workspace / "hello.txt").read_text() == text


def test_a_fork_of_a_fork_knows_what_was_applied_before(
    planarian: Planarian, sandbox: Sandbox, workspace: Path
) -> None:
    fork = _fork(planarian, sandbox)
    fork.run("echo one > hello.txt")
    planarian.apply(fork)
    with pytest.raises(ConfigurationError, match="outside"):
        planarian.apply(fork, paths=["/etc"])
    (workspace / "hello.txt").write_text("user\n")
    with pytest.raises(RestoreError, match="changed in the workspace since"):
        planarian.undo_application(fork)
    assert planarian.undo_application(fork, skip_conflicts=True).kept == ("hello.txt",)


def test_a_workspace_that_is_gone_or_a_symlink_is_refused(
    planarian: Planarian, sandbox: Sandbox, workspace: Path, tmp_path: Path
) -> None:
    fork = _fork(planarian, sandbox)
    fork.run("echo fork > hello.txt")
    workspace.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="gone, or a symbolic link"):
        planarian.apply(fork)
    workspace.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="gone, or a symbolic link"):
        planarian.apply(fork)
    workspace.unlink()
    (tmp_path / "elsewhere").rename(workspace)


@pytest.mark.parametrize("fault", ["apply.begun", "apply.saved", "apply.half", "apply.written"])
def test_a_full_disk_leaves_the_workspace_as_it_was(
    planarian: Planarian, sandbox: Sandbox, workspace: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = _fork(planarian, sandbox)
    fork.run("echo fork > hello.txt; mkdir -p d; echo new > d/new")
    before = _without_times(workspace)
    monkeypatch.setenv("PLANARIAN_FAULT", f"{fault}=fail")
    with pytest.raises(RestoreError) as caught:
        planarian.apply(fork)
    monkeypatch.delenv("PLANARIAN_FAULT")
    assert caught.value.state
    assert "space" in caught.value.remedy
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert _without_times(workspace) == before
    assert not planarian.registry.operations()
    assert not planarian.registry.applications.all()
    assert [one.path for one in planarian.apply(fork).applied] == ["d", "d/new", "hello.txt"]
