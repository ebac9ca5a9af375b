"""What has to change to make a live tree equal to a stored one: a comparison of two Merkle trees."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from planarian_filesystem.exclusion import Exclusion
from planarian_filesystem.store import Damaged
from planarian_filesystem.tree import Entry, decode_entry, is_linked, may_be_directory, tree_lines

MAX_SAMPLE = 1000
MAX_PATH = 4096
ReadTree = Callable[[str], bytes]


class Blocked(Exception):
    """Something that was never captured stands where a captured entry belongs."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


@dataclass
class Change:
    """One directory that exists and differs: ``remove`` these live entries, then ``put`` new ones in their place,
    ``fix`` the metadata of others; at last give the directory itself the metadata of ``target``.
    """

    parent: Change | None
    depth: int
    target: Entry
    live: Entry
    remove: list[Entry] = field(default_factory=list)
    put: list[Entry] = field(default_factory=list)
    fix: list[Entry] = field(default_factory=list)

    @property
    def refresh(self) -> bool:
        """Whether the directory's own metadata have to be set."""
        same = replace(self.target, content="") == replace(self.live, content="")
        return bool(self.remove or self.put) or not same

    def path(self, name: str = "") -> str:
        names = [name] if name else []
        at: Change | None = self
        while at is not None and at.depth:
            names.append(at.target.name)
            at = at.parent
        return "/".join(reversed(names)) or "."


@dataclass
class _Member:
    """A name of a link group in the target, and what is live there."""

    change: Change | None
    target: Entry
    live: Entry | None


class Plan:
    """The changes, parents before children. ``changed`` is a sample of paths, ``changed_count`` the number of all."""

    def __init__(self, read: ReadTree, exclusion: Exclusion, own: Callable[[Entry], bool]) -> None:
        self._read = read
        self._exclusion = exclusion
        self._own = own
        self._members: dict[str, list[_Member]] = {}
        self._live_members: Counter[str] = Counter()
        self._suspects: frozenset[str] = frozenset()
        self.changes: list[Change] = []
        self.sample: list[str] = []
        self.changed_count = 0

    def compare(self, target: Entry, live: Entry) -> Plan:
        """Fill the plan from the entries of two roots."""
        self._compare(target, live)
        relinked = self._settle_links()
        if relinked and self._count_names(target, relinked) > sum(len(self._members[label]) for label in relinked):
            # A directory was renamed over: names of these groups are also in directories that are equal.
            again = Plan(self._read, self._exclusion, self._own)
            again._suspects = relinked
            again._compare(target, live)
            again._settle_links()
            return again
        return self

    def _compare(self, target: Entry, live: Entry) -> None:
        todo = [Change(None, 0, target, live)]
        while todo:
            change = todo.pop()
            self.changes.append(change)
            if change.refresh:
                self._note(change)
            if self._suspects or change.target.content != change.live.content:
                todo.extend(reversed(self._compare_directory(change)))

    def _count_names(self, target: Entry, labels: frozenset[str]) -> int:
        """How many names the target has in these link groups."""
        found = 0
        todo = [target.content]
        while todo:
            for line in self._lines(todo.pop()):
                if may_be_directory(line):
                    entry = decode_entry(line)
                    todo.extend([entry.content] if entry.is_dir else [])
                elif is_linked(line):
                    found += decode_entry(line).link in labels
        return found

    def everything(self, target: Entry) -> Plan:
        """Fill the plan for a layer that doesn't exist yet."""
        top = Change(None, 0, target, target)
        self._note(top)
        self._walk(target, top)
        return self

    def _entries(self, digest: str, other: frozenset[bytes]) -> dict[str, Entry]:
        entries = map(decode_entry, (line for line in self._lines(digest) if self._suspects or line not in other))
        return {entry.name: entry for entry in entries}

    def _lines(self, digest: str) -> list[bytes]:
        try:
            return tree_lines(self._read(digest))
        except ValueError as error:
            raise Damaged(digest, "is damaged: it is no tree object") from error

    def _compare_directory(self, change: Change) -> list[Change]:
        """Sort the entries of a directory that differ; returns the subdirectories to go into."""
        live_lines = frozenset(self._lines(change.live.content))
        target = self._entries(change.target.content, live_lines)
        live = self._entries(change.live.content, frozenset(self._lines(change.target.content)))
        inside = []
        for name in sorted(target.keys() | live.keys()):
            wanted, there = target.get(name), live.get(name)
            if self._exclusion.any and self._exclusion.excludes(change.path(name)):
                continue
            if wanted is not None and wanted == there and not wanted.is_dir and wanted.link not in self._suspects:
                continue
            if _both_directories(wanted, there):
                assert wanted is not None
                assert there is not None
                inside.append(Change(change, change.depth + 1, wanted, there))
            else:
                self._decide(change, wanted, there)
        return inside

    def _decide(self, change: Change, wanted: Entry | None, there: Entry | None) -> None:
        if there is not None and there.link:
            self._live_members[there.link] += 1
        if wanted is None:
            if there is not None and not there.unread:
                self._remove(change, there)
            return
        if wanted.unread:
            return
        if there is not None and there.unread and not there.vague:
            raise Blocked(change.path(wanted.name), there.gap)
        if wanted.link:
            self._members.setdefault(wanted.link, []).append(_Member(change, wanted, there))
            if there is not None and there.is_dir:
                self._remove(change, there)
            return
        self._note(change, wanted.name)
        if there is not None and self._fixable(wanted, there):
            change.fix.append(wanted)
            return
        if there is not None and (there.is_dir or wanted.is_dir):
            self._remove(change, there)
        change.put.append(wanted)
        if wanted.is_dir:
            self._walk(wanted, change, wanted.name)

    def _fixable(self, wanted: Entry, there: Entry) -> bool:
        """Whether only metadata differ, of a file with one name, so that its inode stays."""
        if not wanted.is_file or not there.is_file or there.link or there.unread or not self._own(there):
            return False
        return (wanted.content, wanted.mapped, wanted.size) == (there.content, there.mapped, there.size)

    def _remove(self, change: Change, there: Entry) -> None:
        self._note(change, there.name)
        change.remove.append(there)
        if there.is_dir:
            for names, entry in walk(there.content, self._lines):
                if entry.link:
                    self._live_members[entry.link] += 1
                self._note(change, there.name, *names, entry.name)

    def _walk(self, wanted: Entry, change: Change, *above: str) -> None:
        """Note what a new directory holds."""
        for names, entry in walk(wanted.content, self._lines):
            if entry.link:
                self._members.setdefault(entry.link, []).append(_Member(None, entry, None))
            self._note(change, *above, *names, entry.name)

    def _settle_links(self) -> frozenset[str]:
        """Keep a link group whose names are the same and share one inode still; make all of any other anew."""
        relinked = set()
        for group, members in self._members.items():
            labels = {member.live.link if member.live else "" for member in members}
            label = labels.pop()
            same = all(m.live is not None and m.live.unlinked() == m.target.unlinked() for m in members)
            if same and not labels and label and self._live_members[label] == len(members):
                continue
            relinked.add(group)
            for member in members:
                if member.change is not None:
                    member.change.put.append(member.target)
                    self._note(member.change, member.target.name)
        return frozenset(relinked)

    def _note(self, change: Change, *names: str) -> None:
        self.changed_count += 1
        if len(self.sample) < MAX_SAMPLE:
            path = change.path("/".join(names))
            self.sample.append(path if len(path) <= MAX_PATH else f"…{path[-MAX_PATH:]}")


def _both_directories(wanted: Entry | None, there: Entry | None) -> bool:
    return all(entry is not None and entry.is_dir and not entry.unread for entry in (wanted, there))


def walk(digest: str, lines: Callable[[str], list[bytes]]) -> Iterator[tuple[list[str], Entry]]:
    """All entries below a tree, parents first, with the names of the directories they are in (a list that changes)."""
    names: list[str] = []
    stack = [iter(lines(digest))]
    while stack:
        line = next(stack[-1], None)
        if line is None:
            stack.pop()
            if names:
                names.pop()
            continue
        entry = decode_entry(line)
        yield names, entry
        if stat.S_ISDIR(entry.mode) and not entry.unread:
            names.append(entry.name)
            stack.append(iter(lines(entry.content)))
