"""What of a sandbox's changes may reach the host as it is. All of it was written by code that nobody vouches for."""

from __future__ import annotations

import stat
from dataclasses import replace

from planarian_core.file_tree import FileEntry, FileKind, FileTree
from planarian_core.git_files import as_seen, is_repository, leads_out

MODE = 0o1777
"""Permission bits that are applied: none that give a program another user's rights."""

_GIT_DIRECTORIES = frozenset({"objects", "refs", "logs"})
_GIT_FILES = frozenset(
    [
        *("HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "AUTO_MERGE"),
        *("MERGE_MSG", "MERGE_MODE", "SQUASH_MSG", "COMMIT_EDITMSG", "index", "packed-refs", "shallow", "description"),
    ]
)
_GIT_ITSELF = frozenset({*_GIT_DIRECTORIES, "info", "branches", "modules", "worktrees"})
_PARTS = frozenset({"config", "config.worktree", "hooks", "info", "commondir", "modules", "worktrees"})
_REPOSITORY = frozenset({*_PARTS, "HEAD", "index", "objects", "refs"})
"""What makes a directory a repository, and what git executes then."""
_OTHERS = {
    ".hg": frozenset({"hgrc", "hgrc-not-shared", "sharedpath"}),
    ".sl": frozenset({"config", "hgrc", "hgrc-not-shared", "sharedpath"}),
    ".jj": frozenset({"repo"}),
    ".svn": frozenset[str](),
    ".pijul": frozenset({"config"}),
    "_darcs": frozenset({"prefs"}),
    ".bzr": frozenset({"branch"}),
}
_TOOLS = ("user.overlay.", "user.fuseoverlayfs.", "user.containers.", "user.rootlesscontainers")
"""Attributes that container tools take for orders: other owners, other files."""


def held_back(path: str, entry: FileEntry | None) -> str:
    """Why a change at ``path`` doesn't reach the host; empty when it does. ``entry`` is None for a deletion."""
    if entry is not None and entry.kind in (FileKind.CHARACTER, FileKind.BLOCK, FileKind.SOCKET):
        return f"a {entry.kind} is never written to the host"
    return ""


def runs_on_host(
    path: str, entry: FileEntry | None, theirs: FileTree | None = None, ours: FileTree | None = None
) -> str:
    """Why a change is held back unless somebody asked for it: it decides what version control executes here.

    Within ``.git`` only what holds history passes; hooks, configuration, attributes (they name filters), pointers to
    other repositories, unfinished rebases (they list commands), symlinks (git would write through them) and an index
    with names that lead out of the work tree don't. What would make a directory of another name a repository doesn't
    pass either; in one that the workspace (``ours``) has, the same goes as in ``.git``.
    """
    parts = path.split("/")
    names = [as_seen(part) for part in parts]
    is_directory = entry is None or entry.kind is FileKind.DIRECTORY
    for folder, files in _OTHERS.items():
        if folder in names:
            rest = names[names.index(folder) + 1 :]
            if rest[:1] and (rest[0] in files or not _is_plain(entry)):
                return f"{folder.lstrip('._')} on the host may execute what it says"
    if ".git" in names:
        rest = parts[names.index(".git") + 1 :]
        if not rest:
            return "" if is_directory else "it would make git use another repository's configuration"
    else:
        top, rest = _repository(parts, theirs, ours)
        if rest and entry is not None and not is_repository(top, ours):
            return f"git on the host would take {top or 'the workspace'} for a repository"
    if rest == ["index"] and theirs is not None and leads_out(theirs, path):
        return "git on the host may write to where its names lead"
    allowed = not rest or (_is_plain(entry) and _is_history(rest, is_directory))
    return "" if allowed else "git on the host may execute what it says"


def _is_plain(entry: FileEntry | None) -> bool:
    return entry is None or entry.kind in (FileKind.FILE, FileKind.DIRECTORY)


def _repository(parts: list[str], theirs: FileTree | None, ours: FileTree | None) -> tuple[str, list[str]]:
    """The directory that git would take for a repository and that a path is a part of, and the path's rest below it;
    no rest where there is none. Both sides count: applications add up.
    """
    for at in (at for at, part in enumerate(parts) if part in _REPOSITORY):
        top = "/".join(parts[:at])
        if is_repository(top, theirs, ours):
            return top, parts[at:]
    return "", []


def _is_history(rest: list[str], is_directory: bool) -> bool:
    """Whether a path in a ``.git`` is of what was committed, or of where the work stands."""
    if rest[0] in _GIT_DIRECTORIES:
        return not (rest[:2] == ["objects", "info"] and as_seen(rest[-1]).endswith("alternates"))
    if len(rest) == 1:
        return rest[0] in (_GIT_ITSELF if is_directory else _GIT_FILES)
    return rest == ["info", "exclude"]


def sanitised(entry: FileEntry) -> tuple[FileEntry, tuple[str, ...]]:
    """An entry as it may be written to the host, and by name what was dropped of it."""
    dropped = []
    if entry.kind is not FileKind.DIRECTORY:
        for bit, name in ((stat.S_ISUID, "the setuid bit"), (stat.S_ISGID, "the setgid bit")):
            if entry.mode & bit:
                dropped.append(name)
    kept = {name: value for name, value in entry.xattrs.items() if is_plain_attribute(name)}
    dropped += [f"the attribute {name}" for name in sorted(entry.xattrs.keys() - kept.keys())]
    return replace(entry, mode=entry.mode & MODE, xattrs=kept), tuple(dropped)


def is_plain_attribute(name: str) -> bool:
    """Whether an extended attribute is mere data to the kernel."""
    return name.startswith("user.") and not name.startswith(_TOOLS)
