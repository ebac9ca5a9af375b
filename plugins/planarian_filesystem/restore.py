"""Making a layer equal to an artefact: staged and checked first, then switched by renames."""

from __future__ import annotations

import contextlib
import errno
import os
import time

from planarian_core.interfaces import Layer
from planarian_filesystem import host, metadata
from planarian_filesystem.adoption import Adoption
from planarian_filesystem.descent import WRITE, Descent, Unsettled
from planarian_filesystem.errors import restore_errors
from planarian_filesystem.exclusion import Exclusion
from planarian_filesystem.index import Index
from planarian_filesystem.plan import Blocked, Change, Plan
from planarian_filesystem.removal import remove
from planarian_filesystem.scan import Scanned, Scanner
from planarian_filesystem.sinks import Comparison
from planarian_filesystem.staging import Staging
from planarian_filesystem.store import Store
from planarian_filesystem.tree import Entry

_TRIES = 4
_UNTOUCHED = "the files are as they were"
_BETWEEN = "the files are partly restored; all that the statepoint needs is still stored"


class StagedCopy:
    """A restore that is ready; see :class:`planarian_core.interfaces.StagedFiles`."""

    def __init__(self, store: Store, layer: Layer, top: Entry, root: str) -> None:
        self._store = store
        self._layer = layer
        self._top = top
        self._root = root
        self._exclusion = Exclusion(layer)
        self._mounts = host.mounts_below(layer.path)
        self._comparison = Comparison(store)
        self._index = Index(store, layer.path)
        self._staging = Staging(store, layer.path, self._exclusion)
        self._scanned: Scanned | None = None
        self._new = ""
        self._proof = False
        self._floor = 0
        self._labels: dict[str, str] = {}
        self.changed: tuple[str, ...] = ()
        self.changed_count = 0

    def prepare(self) -> None:
        """Everything before the switch. On an exception call :meth:`discard`."""
        with self._store.locked(), self._index:
            if os.path.lexists(self._layer.path):
                self._begin()
                plan = self._compare(lenient=True)
                self._check_removals(plan)
                self._staging.prepare(plan)
            else:
                plan = Plan(self._comparison.read_tree, self._exclusion, _own).everything(self._top)
                self._new = self._staging.make(self._top, "")
                self._proof = host.stat_proves_content(self._staging.path)
                self._adopt_new()
            self._staging.sync()
        self.changed = tuple(plan.sample)
        self.changed_count = plan.changed_count

    def switch(self) -> None:
        """See the protocol. Processes are stopped by now; what changed since the staging is seen and staged too."""
        with restore_errors(self._store, _BETWEEN), self._store.locked(), self._index:
            if self._new:
                self._place_new()
            else:
                self._switch_in_place()
        self._staging.remove()

    def discard(self) -> None:
        self._staging.remove()

    # --- comparing

    def _begin(self) -> None:
        """Sync, so that what is read from now on and is older than this moment needs no reading at the switch."""
        self._proof = (self._index.fact("proof") or proof_of(self._layer)) == "yes"
        self._floor = host.stamp_floor()
        self._staging.sync()

    def _compare(self, lenient: bool) -> Plan:
        for attempt in range(_TRIES):
            scanner = Scanner(self._layer, self._index, self._comparison, self._floor, self._proof, lenient)
            try:
                self._scanned = scanner.run()
                break
            except Unsettled:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(0.02 * 2**attempt)
        assert self._scanned is not None
        return Plan(self._comparison.read_tree, self._exclusion, _own).compare(self._top, self._scanned.top)

    def _spares_anything(self) -> bool:
        return bool(self._exclusion.any or self._mounts or (self._scanned and self._scanned.unread))

    def _spared(self, path: str) -> bool:
        unread = self._scanned.unread if self._scanned else ()
        return self._exclusion.excludes(path) or path in self._mounts or path in unread

    def _check_removals(self, plan: Plan) -> None:
        """Refuse to put something where a directory holds what must be spared."""
        if not self._spares_anything():
            return
        wanted = {change.path(entry.name) for change in plan.changes for entry in change.put}
        inside = [change.path(entry.name) for change in plan.changes for entry in change.remove if entry.is_dir]
        for path in wanted.intersection(inside):
            spared = [*self._mounts, *(self._scanned.unread if self._scanned else ())]
            if any(other.startswith(f"{path}/") for other in spared):
                raise Blocked(path, "it holds what can't be captured")
            if self._exclusion.any and self._holds_excluded(path):
                raise Blocked(path, "it holds excluded files")

    def _holds_excluded(self, path: str) -> bool:
        with Descent(self._layer.path) as descent:
            for name in path.split("/"):
                descent.down(name)
            todo = [iter(os.listdir(descent.fd))]
            while todo:
                child = next(todo[-1], None)
                if child is None:
                    todo.pop()
                    if todo:
                        descent.up()
                elif self._exclusion.excludes(descent.path(child)):
                    return True
                else:
                    with contextlib.suppress(NotADirectoryError, FileNotFoundError, OSError):
                        descent.down(child)
                        todo.append(iter(os.listdir(descent.fd)))
        return False

    # --- switching

    def _place_new(self) -> None:
        target = self._layer.path
        parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.path.lexists(target):
                raise OSError(errno.EEXIST, "something was made there meanwhile", str(target))
            os.rename(self._new, target.name, src_dir_fd=self._staging.fd, dst_dir_fd=parent)
            metadata.apply(parent, target.name, self._top)
            host.sync_filesystem(parent)
        finally:
            os.close(parent)
        self._commit(self._labels)

    def _switch_in_place(self) -> None:
        plan = self._compare(lenient=False)
        with restore_errors(self._store, _UNTOUCHED):
            self._check_removals(plan)
            self._staging.prepare(plan)
        fixed = self._apply(plan)
        self._staging.drop_groups()
        host.sync_filesystem(self._staging.fd)
        host.wait_past(time.time_ns() if plan.changed_count else 0)
        self._adopt(fixed)
        self._commit({**self._index.labels, **self._labels})

    def _apply(self, plan: Plan) -> set[int]:
        """Carry the plan out; returns the inodes whose metadata were set."""
        fixed: set[int] = set()
        parent = os.open(self._layer.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with Descent(self._layer.path, WRITE, self._index) as descent:
                entered: list[Change] = []
                for change in plan.changes:
                    while len(entered) > change.depth:
                        self._leave(descent, entered.pop())
                    if change.depth:
                        descent.down(change.target.name)
                    entered.append(change)
                    self._apply_here(descent, change, fixed)
                while len(entered) > 1:
                    self._leave(descent, entered.pop())
            if plan.changes[0].refresh:
                metadata.apply(parent, self._layer.path.name, self._top)
        finally:
            os.close(parent)
        return fixed

    @staticmethod
    def _leave(descent: Descent, change: Change) -> None:
        descent.up()
        if change.refresh:
            metadata.apply(descent.fd, change.target.name, change.target)

    def _apply_here(self, descent: Descent, change: Change, fixed: set[int]) -> None:
        for entry in change.remove:
            self._remove(descent, entry)
        for entry in change.put:
            source = self._staging.take(entry)
            os.rename(source, entry.name, src_dir_fd=self._staging.fd, dst_dir_fd=descent.fd)
            if entry.is_dir:
                metadata.apply(descent.fd, entry.name, entry)
        for entry in change.fix:
            metadata.apply(descent.fd, entry.name, entry)
            fixed.add(os.stat(entry.name, dir_fd=descent.fd, follow_symlinks=False).st_ino)

    def _remove(self, descent: Descent, entry: Entry) -> None:
        """Take an entry away: a directory at once, by a rename, unless something in it is spared."""
        if not entry.is_dir:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=descent.fd)
            return
        if self._spares_anything():
            remove(descent, entry.name, self._spared)
            return
        descent.down(entry.name)  # grants an ordinary user what a move to another parent needs
        name = self._staging.fresh_name()
        trash = os.open("trash", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._staging.fd)
        try:
            descent.up(restore_mode=False)
            os.rename(entry.name, name, src_dir_fd=descent.fd, dst_dir_fd=trash)
        finally:
            os.close(trash)

    # --- the index

    def _adopt_new(self) -> None:
        """Learn a new layer while it is staged: nobody else can write there."""
        self._staging.drop_groups()
        host.wait_past(time.time_ns())
        adoption = Adoption(self._store, self._index, Exclusion(Layer(self._staging.path)), self._proof)
        with Descent(self._staging.fd) as descent:
            descent.down(self._new)
            adoption.walk(descent, self._top.content)
        self._labels.update(adoption.labels)

    def _adopt(self, fixed: set[int]) -> None:
        adoption = Adoption(self._store, self._index, self._exclusion, self._proof, fixed)
        with contextlib.suppress(OSError), Descent(self._layer.path) as descent:
            adoption.walk(descent, self._top.content)
        self._labels.update(adoption.labels)

    def _commit(self, labels: dict[str, str]) -> None:
        facts = {"root": self._root, "proof": "yes" if self._proof else "no"}
        unusual = {own: label for own, label in labels.items() if own != label}
        self._index.commit(facts, labels=unusual, without=self._comparison.trees)


def proof_of(layer: Layer) -> str:
    """``yes`` where stat proves unchanged content on the layer's filesystem, else ``no``."""
    return "yes" if host.stat_proves_content(layer.path) else "no"


def _own(entry: Entry) -> bool:
    return os.geteuid() in (0, entry.uid)
