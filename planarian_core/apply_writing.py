"""The writing of an application: what was decided, onto the host's workspace."""

from __future__ import annotations

import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planarian_core.applied_store import Descriptor, changed_meanwhile, sync
from planarian_core.apply_plan import Decision, Ends
from planarian_core.apply_policy import is_plain_attribute
from planarian_core.faults import reach
from planarian_core.file_tree import FileEntry, FileKind
from planarian_core.writing import Writer


def mark_of(application_id: str) -> str:
    """The name that a file has while it is written for an application, or put back."""
    return f".planarian-{application_id}"


def write(ends: Ends, workspace: Path, decisions: Sequence[Decision], application_id: str) -> list[tuple[str, str]]:
    """Write what is decided, deletions first; durable when it returns.

    Returns:
        (path, what could not be set of it).

    Raises:
        OSError, RestoreError: some of it may be written.
    """
    with Descriptor(workspace) as root:
        writer = Writer(root, mark_of(application_id), manages=is_plain_attribute, durable=True)
        for decision in reversed(decisions):
            if decision.ours is not None and _goes(decision):
                if decision.ours.kind is not FileKind.DIRECTORY:
                    _check_unchanged(ends, decision)
                writer.remove(decision.path, whole=False)
                reach("apply.half")
        owned = _Owned(ends)
        first: dict[str, str] = {}
        directories: list[tuple[str, FileEntry]] = []
        for decision in decisions:
            path, theirs = decision.path, decision.theirs
            if theirs is None:
                continue
            entry = owned.entry(decision, theirs)
            if theirs.kind is FileKind.DIRECTORY:
                writer.make_directory(path)
                directories.append((path, entry))
            elif theirs.links and theirs.links in first:
                writer.link(path, first[theirs.links])
            else:
                if not _goes(decision):
                    _check_unchanged(ends, decision)
                writer.put(path, entry, ends.theirs)
                first[theirs.links] = path
            reach("apply.half")
        for path, entry in reversed(directories):
            writer.mend(path, entry)
        sync(workspace)
        return writer.left_out


def _goes(decision: Decision) -> bool:
    """Whether what is there has to go before anything else can take its name."""
    ours, theirs = decision.ours, decision.theirs
    kinds = {entry.kind for entry in (ours, theirs) if entry is not None}
    return theirs is None or (len(kinds) == 2 and FileKind.DIRECTORY in kinds)


def _check_unchanged(ends: Ends, decision: Decision) -> None:
    """Somebody may work in the workspace at this moment: what was not looked at is not overwritten."""
    there = ends.ours.entry(decision.path)
    # Its other names may have gone a moment ago, by our own hand.
    if (replace(there, links="") if there else None) != (replace(decision.ours, links="") if decision.ours else None):
        raise changed_meanwhile(decision.path)


class _Owned:
    """Entries as they are written: whose files they become, and how old."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._made: dict[str, FileEntry] = {}

    def entry(self, decision: Decision, theirs: FileEntry) -> FileEntry:
        """Owned by who owned what it replaces, else by the owner of the directory that it is in."""
        above = decision.path.rpartition("/")[0]
        parent = self._made.get(above) or self._ends.ours.entry(above)
        like = decision.ours or parent
        assert like is not None
        mode = theirs.mode
        if theirs.kind is FileKind.DIRECTORY:  # a directory of a group's stays one, and so do new ones in it
            mode |= like.mode & stat.S_ISGID
        made = replace(theirs, uid=like.uid, gid=like.gid, mode=mode, mtime_ns=time.time_ns())
        self._made[decision.path] = made
        return made
