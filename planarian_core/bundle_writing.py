"""Export: one statepoint with all that it takes to go on from it, as one file.

It holds no lock while it reads: artefacts don't change. Should the statepoint be removed meanwhile, that is noticed
before the file gets its name.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from planarian_core.artefacts import Artefacts
from planarian_core.bundle_checking import layers_of, objection, this_host
from planarian_core.bundle_format import BundleError, BundleWriter, Kind
from planarian_core.bundle_packing import Progress, TreePacker
from planarian_core.bundle_records import MOST_ANCESTORS, BundledSandbox, BundleHead, PartSize
from planarian_core.codec import encode
from planarian_core.directory_tree import DirectoryTree
from planarian_core.durable import sync_directory
from planarian_core.errors import LineageError, RestoreError
from planarian_core.faults import reach
from planarian_core.file_tree import FileEntry, FileTree
from planarian_core.interfaces import OpensTrees, SandboxBackend
from planarian_core.model import Evidence, SandboxRecord, Statepoint, Status, utc_now
from planarian_core.plugin_manager import PluginManager
from planarian_core.registry import Registry


@dataclass(frozen=True)
class Exported:
    """A bundle that was written. ``size`` in bytes; ``content`` what its files hold, holes counted."""

    file: Path
    statepoint: Statepoint
    size: int
    content: int
    ancestors: int
    processes: bool


class Exporter:
    """Writes bundles of one home."""

    def __init__(self, home: Path, registry: Registry, plugins: PluginManager, version: str) -> None:
        self._home = home
        self._version = version
        self._registry = registry
        self._plugins = plugins
        self._artefacts = Artefacts(home, registry, plugins)

    def export(
        self, statepoint: Statepoint, file: Path, key: bytes, *, force: bool, progress: Progress, begin: Progress
    ) -> Exported:
        """Write a bundle of a committed statepoint; the file has its name only when it is whole and durable.

        Args:
            force: replace a file that is there.
            begin: told, before the first byte, how many bytes of content there are.

        Raises:
            BundleError, RestoreError: nothing is left of it.
        """
        record = self._registry.sandbox(statepoint.sandbox_id)
        self._check(statepoint, record)
        sandbox = self._plugins.sandbox(record.spec.backend)
        with ExitStack() as stack, _writing(file, force) as stream:
            reach("export.begun")
            packers = {
                name: TreePacker(_WithoutLabels(tree), partial(objection, name, layers_of(sandbox), trusted=True))
                for name, tree in self._trees(stack, statepoint, record)
            }
            sizes = {name: packer.measure() for name, packer in packers.items()}
            ancestors = self._ancestors(statepoint)
            content = sum(size.bytes for size in sizes.values())
            begin(content)
            writer = BundleWriter(stream, key)
            head = self._head(statepoint, record, sandbox, sizes, len(ancestors))
            writer.record(Kind.HEAD, encode(head))
            for evidence in ancestors:
                writer.record(Kind.LINEAGE, encode(evidence))
            for name, packer in packers.items():
                writer.part(name)
                packer.pack(writer, progress)
            writer.finish()
            self._check(self._registry.statepoint(statepoint.id), record)
            reach("export.written")
        reach("export.committed")
        return Exported(file, statepoint, file.stat().st_size, content, len(ancestors), "images" in sizes)

    def _check(self, statepoint: Statepoint, record: SandboxRecord) -> None:
        """Everything that is to be packed is there, and can be packed."""
        if record.spec.root:
            raise BundleError(
                f"{record.id} stands on the image in {record.spec.root}, which a bundle doesn't hold",
                code="bundle-image",
                state="nothing was exported",
            )
        if statepoint.status is not Status.COMMITTED or statepoint.files is None:
            raise RestoreError(
                f"{statepoint.id} is {statepoint.status}, not committed",
                code="statepoint-not-committed",
                state="nothing was exported",
                remedy="planarian log",
            )
        self._plugins.filesystem(statepoint.files.backend).verify(statepoint.files)
        if statepoint.processes is not None:
            backend = self._plugins.process(statepoint.processes.backend)
            backend.verify(statepoint.processes, self._artefacts.images(statepoint))

    def _trees(self, stack: ExitStack, statepoint: Statepoint, record: SandboxRecord) -> Iterator[tuple[str, FileTree]]:
        """The parts in their order."""
        assert statepoint.files is not None
        backend = self._plugins.filesystem(statepoint.files.backend)
        if not isinstance(backend, OpensTrees):
            raise BundleError(
                f"the filesystem backend {statepoint.files.backend} doesn't let its statepoints be looked into",
                code="bundle-backend",
                state="nothing was exported",
            )
        yield "files", stack.enter_context(backend.open_tree(statepoint.files))
        if record.spec.origin:
            yield "origin", stack.enter_context(DirectoryTree(Path(record.spec.origin)))
        if statepoint.processes is not None:
            yield "images", stack.enter_context(DirectoryTree(self._artefacts.images(statepoint)))

    def _head(
        self,
        statepoint: Statepoint,
        record: SandboxRecord,
        sandbox: SandboxBackend,
        sizes: dict[str, PartSize],
        ancestors: int,
    ) -> BundleHead:
        spec = record.spec
        bundled = BundledSandbox(
            id=record.id,
            branch_id=record.branch_id,
            workspace=spec.workspace,
            backend=spec.backend,
            process=record.process,
            in_place=sandbox.capabilities.in_place,
            name=record.name,
            network=spec.network,
            limits=spec.limits,
            hidden=spec.hidden,
            env=spec.env,
            gaps=record.gaps,
            fences=tuple(self._registry.fences(record.id)),
        )
        return BundleHead(
            planarian=self._version,
            created_at=utc_now(),
            host=this_host(),
            sandbox=bundled,
            statepoint=statepoint,
            parts=sizes,
            outcomes=self._registry.outcomes(statepoint.id),
            lineage=ancestors,
            image_place=self._image_place(statepoint),
        )

    def _image_place(self, statepoint: Statepoint) -> str:
        if statepoint.processes is None:
            return ""
        images = self._artefacts.images(statepoint)
        places = {images.name: "name", str(images.relative_to(self._home)): "path"}
        if statepoint.processes.reference not in places:
            raise BundleError(
                f"the process backend {statepoint.processes.backend} keeps its images in a place of its own",
                code="bundle-backend",
                state="nothing was exported",
            )
        return places[statepoint.processes.reference]

    def _ancestors(self, statepoint: Statepoint) -> list[Evidence]:
        """The lineage above a statepoint, the nearest first, as records without artefacts; to where it is known."""
        found: list[Evidence] = []
        parent = statepoint.parent_id
        while parent is not None and len(found) < MOST_ANCESTORS:
            try:
                above = self._registry.statepoint(parent)
            except LineageError:
                break
            bare = replace(above, status=Status.PRUNED, files=None, processes=None, remote=())
            found.append(Evidence(bare, self._registry.outcomes(above.id)))
            parent = above.parent_id
        return found


class _WithoutLabels:
    """A tree without attributes that mean something on one host alone, such as SELinux's labels."""

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree
        if hasattr(tree, "stretches"):
            self.stretches = tree.stretches

    def entry(self, path: str) -> FileEntry | None:
        found = self._tree.entry(path)
        return _portable(found) if found is not None else None

    def children(self, path: str) -> list[FileEntry]:
        return [_portable(entry) for entry in self._tree.children(path)]

    def read(self, path: str) -> Iterator[bytes]:
        return self._tree.read(path)


_OF_A_HOST = ("security.selinux", "security.ima", "security.evm", "security.apparmor", "security.SMACK64")


def _portable(entry: FileEntry) -> FileEntry:
    if not any(name.startswith("security.") for name in entry.xattrs):
        return entry
    kept = {name: value for name, value in entry.xattrs.items() if not name.startswith(_OF_A_HOST)}
    return replace(entry, xattrs=kept)


@contextmanager
def _writing(file: Path, force: bool) -> Iterator[IO[bytes]]:
    """A new file that gets its name at the end, when it is on the disk; nothing remains of it after an exception.

    Until then it is ``FILE.partial``; one that a killed runtime left there is written anew.
    """
    partial_file = file.with_name(f"{file.name}.partial")
    _check_free(file, force)
    stream = _open_partial(partial_file)
    try:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
        if force:
            os.replace(partial_file, file)
        else:
            _name(partial_file, file)
        sync_directory(file.parent)
    except BaseException as error:
        with suppress(OSError):
            partial_file.unlink()
        if isinstance(error, OSError):
            raise _unwritable(file, error) from error
        raise
    finally:
        with suppress(OSError):  # what could not be written any more was reported
            stream.close()


def _check_free(file: Path, force: bool) -> None:
    if not file.name or file.is_dir():
        raise _unwritable(file, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    if not force and os.path.lexists(file):
        raise BundleError(
            f"{file} is there already",
            code="bundle-exists",
            state="nothing was exported; the file is as it was",
            remedy="choose another name, or replace it: --force",
        )


def _open_partial(path: Path) -> IO[bytes]:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
        except BlockingIOError as error:
            os.close(descriptor)
            raise BundleError(
                f"another export is writing {path}",
                code="bundle-busy",
                state="nothing was exported",
                remedy="wait for it to end, or choose another name",
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        return open(descriptor, "wb", buffering=1024 * 1024)
    except OSError as error:
        raise _unwritable(path, error) from error


def _name(partial_file: Path, file: Path) -> None:
    """Give the file its name, unless somebody else took it meanwhile."""
    try:
        os.link(partial_file, file, follow_symlinks=False)
    except FileExistsError:
        _check_free(file, force=False)
        raise
    except OSError:  # a file system without hard links
        _check_free(file, force=False)
        os.rename(partial_file, file)
    else:
        partial_file.unlink()


def _unwritable(file: Path, error: OSError) -> BundleError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return BundleError(
        f"{file} can't be written: {error.strerror or error}",
        code="bundle-unwritable",
        state="nothing was exported",
        remedy="free some space there, or name a file on another disk" if full else "name a file that you can write",
    )
