"""What lies between two statepoints, or between one and the present: files, processes, remote effects, coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from planarian_core.codec import encode
from planarian_core.comparison import Aspect, Difference, compare
from planarian_core.errors import CompensationError, ConfigurationError
from planarian_core.file_tree import FileEntry, FileKind, FileTree
from planarian_core.model import Gap, ProcessInfo, RemoteEffect, RemotePosition, SandboxRecord, Statepoint
from planarian_core.plugin_manager import PluginManager
from planarian_core.remote_state import RemoteState
from planarian_core.renames import with_renames
from planarian_core.running_processes import running_processes
from planarian_core.seen_files import SeenFiles, at_statepoint, now
from planarian_core.text_diff import content_of, unified

NOW = "now"
_MOST_CHANGES = 20_000
_MOST_TEXTS, _TEXT_CHARACTERS = 200, 400_000


class ChangeKind(StrEnum):
    """What became of a file."""

    ADDED = "added"
    DELETED = "deleted"
    CHANGED = "changed"
    RENAMED = "renamed"


@dataclass(frozen=True)
class FileChange:
    """One changed path: relative to the workspace, or absolute outside of it.

    ``kind`` is what it is (or was), ``aspects`` in which respects it changed, ``details`` those in words. ``text`` is a
    unified diff; ``no_text`` says why there is none of a file whose content changed.
    """

    path: str
    change: ChangeKind
    kind: str
    aspects: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    source: str = ""
    size_before: int = 0
    size_after: int = 0
    text: str = ""
    no_text: str = ""


@dataclass(frozen=True)
class RemoteChange:
    """A remote service that stood elsewhere. ``effects``: what happened between, newest first, where that is known."""

    service: str
    before: str
    after: str
    effects: tuple[RemoteEffect, ...] = ()
    unknown: str = ""


@dataclass(frozen=True)
class Diff:
    """What lies between ``before`` and ``after``: statepoint ids, or ``now``. Modification times alone don't count."""

    before: str
    after: str
    files: tuple[FileChange, ...] = ()
    omitted: int = 0
    """Changed files beyond those listed; -1 where there are more than could be counted."""
    started: tuple[ProcessInfo, ...] = ()
    gone: tuple[ProcessInfo, ...] = ()
    still: tuple[ProcessInfo, ...] = ()
    remote: tuple[RemoteChange, ...] = ()
    newly_missing: tuple[Gap, ...] = ()
    """What only ``before`` captured."""
    no_longer_missing: tuple[Gap, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.files or self.started or self.gone or self.remote)

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = encode(self)
        return data

    def to_markdown(self, limit: int = 8000) -> str:
        """The same for an agent, in at most ``limit`` characters: whole lines, the texts last."""
        from planarian_core.diff_text import markdown

        return markdown(self, limit)


@dataclass(frozen=True)
class Side:
    """One end of a comparison: a sandbox at one of its statepoints, or as it is now."""

    record: SandboxRecord
    statepoint: Statepoint | None = None

    @property
    def name(self) -> str:
        return self.statepoint.id if self.statepoint else NOW


def diff(
    plugins: PluginManager,
    remote: RemoteState,
    one: Side,
    other: Side,
    *,
    paths: Sequence[str] = (),
    text: bool = True,
) -> Diff:
    """Compare two ends. The caller holds the lock of what is compared as it is now.

    Args:
        paths: compare only what is at and below these, and nothing but files.
        text: with unified diffs of texts, bounded in size and number.

    Raises:
        ConfigurationError: a path isn't at either end. RestoreError: files are damaged, or can't be read.
    """
    found = Diff(one.name, other.name)
    if paths or not _same_artefact(one, other):
        with ExitStack() as stack:
            mine, theirs = (stack.enter_context(_files(plugins, side)) for side in (one, other))
            changes, omitted = _file_changes(mine, theirs, paths, text)
        found = Diff(one.name, other.name, changes, omitted)
    if paths:
        return found
    return _with_gaps(_with_remote(remote, _with_processes(plugins, found, one, other), one, other), one, other)


def _same_artefact(one: Side, other: Side) -> bool:
    """Whether two statepoints share their files: then there is nothing to look at."""
    if one.statepoint is None or other.statepoint is None:
        return False
    mine, theirs = one.statepoint.files, other.statepoint.files
    if mine is None or theirs is None or one.record.spec.origin != other.record.spec.origin:
        return False
    return one.statepoint.owner(mine) == other.statepoint.owner(theirs)


def _files(plugins: PluginManager, side: Side) -> AbstractContextManager[SeenFiles]:
    if side.statepoint is None:
        return now(plugins, side.record)
    return at_statepoint(plugins, side.record, side.statepoint)


# --- files ---


def _file_changes(
    mine: SeenFiles, theirs: SeenFiles, paths: Sequence[str], text: bool
) -> tuple[tuple[FileChange, ...], int]:
    changes: list[FileChange] = []
    omitted = 0
    texts = _Texts() if text else None
    for one, other, path, prefix in _parts(mine, theirs, paths):
        differences: list[Difference] = []
        for difference in compare(one, other, path):
            if len(changes) + len(differences) >= _MOST_CHANGES:
                omitted = -1
                break
            differences.append(difference)
        for difference in with_renames(one, other, differences):
            changes.append(_file_change(one, other, difference, prefix, texts))
    return tuple(changes), omitted


def _parts(mine: SeenFiles, theirs: SeenFiles, paths: Sequence[str]) -> Iterator[tuple[FileTree, FileTree, str, str]]:
    """What is compared with what: two trees, from which path on, and what stands before their paths."""
    if not paths:
        yield mine.files, theirs.files, "", ""
        yield mine.outside, theirs.outside, "", "/"
        return
    for path in paths:
        shown = mine.shown(mine.locate(path))
        outside = shown.startswith("/")
        one, other = (mine.outside, theirs.outside) if outside else (mine.files, theirs.files)
        at = shown.strip("/") if outside else "" if shown == "." else shown
        if one.entry(at) is None and other.entry(at) is None:
            raise ConfigurationError(
                f"there is no {path}, at either end", code="path-unknown", remedy="name a path that the sandbox has"
            )
        yield one, other, at, "/" if outside else ""


def _file_change(
    one: FileTree, other: FileTree, difference: Difference, prefix: str, texts: _Texts | None
) -> FileChange:
    before, after = difference.before, difference.after
    there = after or before
    assert there is not None
    made = FileChange(
        path=prefix + difference.path if difference.path else prefix or ".",
        change=_change_kind(difference),
        kind=there.kind.value,
        aspects=tuple(sorted(aspect.value for aspect in difference.aspects)),
        details=tuple(_details(difference)),
        source=prefix + difference.source if difference.source else "",
        size_before=before.size if before else 0,
        size_after=after.size if after else 0,
    )
    return texts.added(made, one, other, difference) if texts is not None else made


def _change_kind(difference: Difference) -> ChangeKind:
    if difference.source:
        return ChangeKind.RENAMED
    if difference.before is None:
        return ChangeKind.ADDED
    return ChangeKind.DELETED if difference.after is None else ChangeKind.CHANGED


def _details(difference: Difference) -> Iterator[str]:
    before, after = difference.before, difference.after
    if before is None or after is None or difference.source:
        return
    if Aspect.KIND in difference.aspects:
        yield f"{before.kind} -> {after.kind}"
    if Aspect.MODE in difference.aspects:
        yield f"mode {before.mode:04o} -> {after.mode:04o}"
    if Aspect.OWNER in difference.aspects:
        yield f"owner {before.uid}:{before.gid} -> {after.uid}:{after.gid}"
    if Aspect.TARGET in difference.aspects:
        yield f"target {before.target} -> {after.target}"
    if Aspect.DEVICE in difference.aspects:
        yield f"device {before.device:#x} -> {after.device:#x}"
    if Aspect.ATTRIBUTES in difference.aspects:
        names = {n for n in before.xattrs.keys() | after.xattrs.keys() if before.xattrs.get(n) != after.xattrs.get(n)}
        yield f"attributes {', '.join(sorted(names))}"
    if Aspect.LINKS in difference.aspects:
        yield "other hard links"


class _Texts:
    """Adds unified diffs while there is room for them."""

    def __init__(self) -> None:
        self._left, self._characters = _MOST_TEXTS, _TEXT_CHARACTERS

    def added(self, change: FileChange, one: FileTree, other: FileTree, difference: Difference) -> FileChange:
        before, after = difference.before, difference.after
        touched = not difference.aspects or difference.aspects & {Aspect.CONTENT, Aspect.TARGET, Aspect.KIND}
        if difference.source or not touched or not any(e is not None and _has_text(e) for e in (before, after)):
            return change
        if self._left <= 0 or self._characters <= 0:
            return replace(change, no_text="too many changes to show them all")
        path = change.path.lstrip("/")
        names = (f"a/{path}" if before else "/dev/null", f"b/{path}" if after else "/dev/null")
        text, why = unified(content_of(one, difference.path, before), content_of(other, difference.path, after), names)
        self._left -= bool(text)
        self._characters -= len(text)
        return replace(change, text=text, no_text=why)


def _has_text(entry: FileEntry) -> bool:
    return entry.kind in (FileKind.FILE, FileKind.SYMLINK)


# --- processes, remote services, coverage ---


def _with_processes(plugins: PluginManager, found: Diff, one: Side, other: Side) -> Diff:
    before, after = (
        side.statepoint.process_list if side.statepoint else running_processes(plugins, side.record)
        for side in (one, other)
    )
    mine, theirs = ({(p.pid, p.argv) for p in processes} for processes in (before, after))
    return replace(
        found,
        started=tuple(p for p in after if (p.pid, p.argv) not in mine),
        gone=tuple(p for p in before if (p.pid, p.argv) not in theirs),
        still=tuple(p for p in after if (p.pid, p.argv) in mine),
    )


def _with_remote(remote: RemoteState, found: Diff, one: Side, other: Side) -> Diff:
    mine, theirs = (_positions(remote, side) for side in (one, other))
    changes = []
    for service in sorted(mine.keys() | theirs.keys()):
        before, after = mine.get(service), theirs.get(service)
        stood, stands = (position.position if position else "" for position in (before, after))
        if stood != stands:
            effects, unknown = _effects(remote, one, other, before, after)
            changes.append(RemoteChange(service, stood, stands, effects, unknown))
    return replace(found, remote=tuple(changes))


def _positions(remote: RemoteState, side: Side) -> dict[str, RemotePosition]:
    if side.statepoint is not None:
        return {position.service: position for position in side.statepoint.remote}
    positions = remote.capture(side.record, remote.services(side.record))
    return {position.service: position for position in positions}


def _effects(
    remote: RemoteState, one: Side, other: Side, before: RemotePosition | None, after: RemotePosition | None
) -> tuple[tuple[RemoteEffect, ...], str]:
    """What happened between two positions: what undoing to the earlier would undo, less what the later would."""
    if before is None or after is None:
        return (), "the service was in use at one end only"
    if one.record.id != other.record.id:
        return (), "of different sandboxes"
    services = {service.name: service for service in remote.services(one.record)}
    if before.service not in services:
        return (), "the service isn't configured now"
    try:
        since, later = (services[before.service].plan(position, one.record.id) for position in (before, after))
    except CompensationError as error:
        return (), error.message
    longer, shorter = (since, later) if len(since) >= len(later) else (later, since)
    known = {effect.position for effect in shorter}
    return tuple(effect for effect in longer if effect.position not in known), ""


def _with_gaps(found: Diff, one: Side, other: Side) -> Diff:
    if one.statepoint is None or other.statepoint is None:
        return found
    mine, theirs = (set(side.statepoint.coverage.missing) for side in (one, other) if side.statepoint)
    return replace(
        found,
        newly_missing=tuple(sorted(theirs - mine, key=str)),
        no_longer_missing=tuple(sorted(mine - theirs, key=str)),
    )
