"""What of a sandbox's changes may reach the host as it is. All of it was written by code that nobody vouches for."""

from __future__ import annotations

import stat
from dataclasses import replace

from planarian_core.file_tree import FileEntry, FileKind

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
_OTHERS = ({".hg": frozenset({"hgrc", "hgrc-not-shared"})}, {".jj": frozenset({"repo"})})


def held_back(path: str, entry: FileEntry | None) -> str:
    """Why a change at ``path`` doesn't reach the host; empty when it does. ``entry`` is None for a deletion."""
    if entry is not None and entry.kind in (FileKind.CHARACTER, FileKind.BLOCK, FileKind.SOCKET):
        return f"a {entry.kind} is never written to the host"
    return ""


def runs_on_host(path: str, entry: FileEntry | None) -> str:
    """Why a change is held back unless somebody asked for it: it decides what version control executes here.

    Within ``.git`` only what holds history passes; hooks, configuration, attributes (they name filters), pointers to
    other repositories and unfinished rebases (they list commands) don't.
    """
    names = path.casefold().split("/")
    if ".git" in names:
        at = names.index(".git")
        rest = path.split("/")[at + 1 :]
        is_directory = entry is None or entry.kind is FileKind.DIRECTORY
        if not rest:
            return "" if is_directory else "it would make git use another repository's configuration"
        return "" if _is_history(rest, is_directory) else "git on the host may execute what it says"
    for known in _OTHERS:
        for folder, files in known.items():
            if folder in names[:-1] and names[names.index(folder) + 1] in files:
                return f"{folder[1:]} on the host may execute what it says"
    return ""


def _is_history(rest: list[str], is_directory: bool) -> bool:
    """Whether a path in a ``.git`` is of what was committed, or of where the work stands."""
    if rest[0] in _GIT_DIRECTORIES:
        return rest[:3] != ["objects", "info", "alternates"]
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
    return name.startswith("user.") and not name.startswith("user.overlay.")
