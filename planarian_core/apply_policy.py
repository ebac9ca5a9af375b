"""What of a sandbox's changes may reach the host as it is. All of it was written by code that nobody vouches for."""

from __future__ import annotations

import stat
from dataclasses import replace

from planarian_core.file_tree import FileEntry, FileKind, FileTree

MODE = 0o1777
"""Permission bits that are applied: none that give a program another user's rights."""

_GIT_DIRECTORIES = frozenset({"objects", "refs", "logs"})
_GIT_FILES = frozenset(
    [
        *("HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "AUTO_MERGE"),
        *("MERGE_MSG", "MERGE_MODE", "SQUASH_MSG", "COMMIT_EDITMSG", "index", "packed-refs", "shallow", "description"),
    ]
)
_EXECUTED = frozenset({"config", "config.worktree", "hooks", "info", "commondir", "modules", "worktrees"})
_GIT_ITSELF = frozenset({*_GIT_DIRECTORIES, "info", "branches", "modules", "worktrees"})
_OTHERS = {".hg": frozenset({"hgrc", "hgrc-not-shared"}), ".jj": frozenset({"repo"}), ".svn": frozenset[str]()}
_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that a file system of macOS doesn't see in a name."""
_BARE = (("HEAD", FileKind.FILE), ("objects", FileKind.DIRECTORY), ("refs", FileKind.DIRECTORY))


def held_back(path: str, entry: FileEntry | None) -> str:
    """Why a change at ``path`` doesn't reach the host; empty when it does. ``entry`` is None for a deletion."""
    if entry is not None and entry.kind in (FileKind.CHARACTER, FileKind.BLOCK, FileKind.SOCKET):
        return f"a {entry.kind} is never written to the host"
    return ""


def runs_on_host(path: str, entry: FileEntry | None, tree: FileTree | None = None) -> str:
    """Why a change is held back unless somebody asked for it: it decides what version control executes here.

    Within ``.git`` (or a directory of ``tree`` that git would take for a bare repository) only what holds history
    passes; hooks, configuration, attributes (they name filters), pointers to other repositories, unfinished rebases
    (they list commands) and symlinks (git would write through them) don't.
    """
    parts = path.split("/")
    names = [_as_seen(part) for part in parts]
    is_directory = entry is None or entry.kind is FileKind.DIRECTORY
    for folder, files in _OTHERS.items():
        if folder in names:
            rest = names[names.index(folder) + 1 :]
            if rest[:1] and (rest[0] in files or not _is_plain(entry)):
                return f"{folder[1:]} on the host may execute what it says"
    if ".git" in names:
        rest = parts[names.index(".git") + 1 :]
        if not rest:
            return "" if is_directory else "it would make git use another repository's configuration"
    else:
        rest = _in_bare_repository(parts, tree)
    allowed = not rest or (_is_plain(entry) and _is_history(rest, is_directory))
    return "" if allowed else "git on the host may execute what it says"


def _as_seen(name: str) -> str:
    """A name as the most forgiving file system takes it."""
    folded = name.translate(_IGNORED).casefold().rstrip(". ")
    return ".git" if folded == "git~1" else folded


def _is_plain(entry: FileEntry | None) -> bool:
    return entry is None or entry.kind in (FileKind.FILE, FileKind.DIRECTORY)


def _in_bare_repository(parts: list[str], tree: FileTree | None) -> list[str]:
    """The rest of a path below a directory that git takes for a repository; empty where there is none."""
    if tree is None or not _EXECUTED.intersection(map(_as_seen, parts)):
        return []
    for end in range(len(parts)):
        above = "".join(f"{part}/" for part in parts[:end])
        found = ((tree.entry(above + name), kind) for name, kind in _BARE)
        if all(entry is not None and entry.kind is kind for entry, kind in found):
            return parts[end:]
    return []


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
