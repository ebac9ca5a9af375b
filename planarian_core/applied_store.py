"""What an application to the host's workspace replaced, kept in ``home/applied/ID`` so that it can be put back.

``manifest.json`` says of every path what was there and what was written; ``0``, ``1`` … hold the contents of files that
were there. All of it is durable before anything is written to the workspace.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from planarian_core.apply_policy import MODE, is_plain_attribute
from planarian_core.content import content_digest
from planarian_core.directory_tree import DirectoryTree
from planarian_core.errors import RestoreError
from planarian_core.file_tree import FileEntry, FileKind, FileTree
from planarian_core.writing import Writer

_VERSION = 1


@dataclass(frozen=True)
class FileState:
    """What counts of a file when it is asked who changed it: not its owner, nor its times."""

    kind: str
    mode: int
    content: str = ""
    target: str = ""
    attributes: str = ""


def state_of(tree: FileTree, path: str, entry: FileEntry | None) -> FileState | None:
    """The state of what is at a path; None for nothing."""
    if entry is None:
        return None
    attributes = {name: value.hex() for name, value in sorted(entry.xattrs.items()) if is_plain_attribute(name)}
    return FileState(
        entry.kind.value,
        0 if entry.kind is FileKind.SYMLINK else entry.mode & MODE,
        content_digest(tree, path, entry.size) if entry.kind is FileKind.FILE else "",
        entry.target,
        json.dumps(attributes) if attributes else "",
    )


@dataclass(frozen=True)
class Replaced:
    """One path of an application: what was there, with the number of its kept content, and what came in its stead."""

    path: str
    before: FileEntry | None
    was: FileState | None
    became: FileState | None
    content: int = -1


@dataclass
class PutBack:
    """How putting back went. ``kept``: paths that somebody changed since, which stay as they are."""

    back: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class AppliedStore:
    """The kept files of one application."""

    def __init__(self, home: Path, application_id: str) -> None:
        self.id = application_id
        self.folder = home / "applied" / application_id

    def save(self, tree: FileTree, replaced: Iterable[Replaced]) -> list[Replaced]:
        """Keep what is in ``tree`` (the workspace) at these paths; durable when it returns.

        Raises:
            RestoreError: the workspace changed since it was looked at.
        """
        self.folder.mkdir(mode=0o700, parents=True)
        saved: list[Replaced] = []
        with Descriptor(self.folder) as root:
            writer = Writer(root, ".new", durable=True)
            for one in replaced:
                before = one.before
                if before is None or before.kind is not FileKind.FILE:
                    saved.append(one)
                    continue
                number = len(saved)
                plain = replace(before, mode=0o600, uid=os.geteuid(), gid=os.getegid(), xattrs={})
                writer.put(str(number), plain, tree, source=one.path)
                with DirectoryTree(self.folder) as kept:
                    digest = content_digest(kept, str(number), before.size)
                if one.was is None or digest != one.was.content:
                    raise changed_meanwhile(one.path)
                saved.append(replace(one, content=number))
        data = json.dumps({"version": _VERSION, "replaced": [_encode(one) for one in saved]})
        manifest = self.folder / "manifest.json"
        with open(manifest.with_suffix(".new"), "w", encoding="ascii") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(manifest.with_suffix(".new"), manifest)
        sync(self.folder)
        return saved

    def load(self) -> list[Replaced]:
        """RestoreError when what was kept is gone or damaged."""
        try:
            data = json.loads((self.folder / "manifest.json").read_text(encoding="ascii"))
            return [_decode(one) for one in data["replaced"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RestoreError(
                f"what was replaced can't be read from {self.folder}: {error}",
                code="apply-manifest",
                state="the workspace was not changed",
            ) from error

    def discard(self) -> None:
        """Give up what was kept. Idempotent."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def conflicts(self, ours: FileTree) -> list[str]:
        """Paths that are neither as they were written, nor as they had been before."""
        found = ((one, state_of(ours, one.path, ours.entry(one.path))) for one in self.load())
        return [one.path for one, state in found if state not in (one.was, one.became)]

    def put_back(self, workspace: Path, mark: str) -> PutBack:
        """Put back what was replaced, where the workspace is as it was written; idempotent, and durable when it
        returns. What somebody changed since stays.

        Raises:
            OSError: the workspace can't be written.
        """
        done = PutBack()
        replaced = self.load()
        with Descriptor(workspace) as root, DirectoryTree(workspace) as ours, DirectoryTree(self.folder) as kept:
            writer = Writer(root, mark, manages=is_plain_attribute, durable=True)
            todo = [one for one in replaced if self._is_due(one, ours, writer, done)]
            for one in sorted(todo, key=lambda one: one.path, reverse=True):
                if one.before is None or (one.became and one.became.kind != one.before.kind):
                    _remove(writer, one, done)
            directories = []
            for one in sorted(todo, key=lambda one: one.path):
                before = one.before
                if before is None or one.path in done.kept:
                    continue
                if before.kind is FileKind.DIRECTORY:
                    writer.make_directory(one.path)
                    directories.append((one.path, before))
                else:
                    writer.put(one.path, before, kept, source=str(one.content))
            for path, before in reversed(directories):
                writer.mend(path, before)
            done.back += [one.path for one in todo if one.path not in done.kept]
            sync(workspace)
        return done

    def _is_due(self, one: Replaced, ours: FileTree, writer: Writer, done: PutBack) -> bool:
        writer.sweep(one.path)
        state = state_of(ours, one.path, ours.entry(one.path))
        if state == one.was:
            return False
        if state != one.became and not _is_half_made(state, one):
            done.kept.append(one.path)
            return False
        return True


def _is_half_made(state: FileState | None, one: Replaced) -> bool:
    """Whether it is what lies between: a name made free for another kind, or a directory without its mode yet."""
    kinds = {one.was.kind if one.was else "", one.became.kind if one.became else ""}
    if state is None:
        return len(kinds) == 2 and "" not in kinds
    return state.kind == FileKind.DIRECTORY and state.mode == 0o700 and FileKind.DIRECTORY in kinds


def _remove(writer: Writer, one: Replaced, done: PutBack) -> None:
    try:
        writer.remove(one.path, whole=False)
    except OSError:  # something of somebody else's is in it
        done.kept.append(one.path)


def changed_meanwhile(path: str) -> RestoreError:
    """The error for a workspace that somebody works in at this very moment."""
    return RestoreError(
        f"{path} changed in the workspace at this very moment",
        code="apply-changed",
        state="the workspace is as it was",
        remedy="try again when nobody works in it",
    )


class Descriptor:
    """A directory as a descriptor, for a while; never through a symlink."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def sync(folder: Path) -> None:
    """Make all that was written to the file system of ``folder`` durable."""
    with Descriptor(folder) as fd, suppress(AttributeError):
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) == 0:
            return
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
    os.sync()  # where there is nothing finer


# --- the manifest ---


def _encode(one: Replaced) -> dict[str, Any]:
    before = None
    if one.before is not None:
        before = asdict(one.before)
        before["xattrs"] = {name: base64.b64encode(value).decode() for name, value in one.before.xattrs.items()}
    states = {key: asdict(state) if state else None for key, state in (("was", one.was), ("became", one.became))}
    return {"path": one.path, "before": before, "content": one.content, **states}


def _decode(data: Mapping[str, Any]) -> Replaced:
    before = data["before"]
    if before is not None:
        xattrs = {name: base64.b64decode(value) for name, value in before["xattrs"].items()}
        before = FileEntry(**{**before, "kind": FileKind(before["kind"]), "xattrs": xattrs})
    was, became = (FileState(**data[key]) if data[key] else None for key in ("was", "became"))
    return Replaced(data["path"], before, was, became, data["content"])
