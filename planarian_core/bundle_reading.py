"""Import: a bundle becomes a stopped sandbox whose head is the bundle's statepoint, or nothing at all.

The whole bundle is looked through first (:mod:`planarian_core.bundle_checking`). Then it is read again and written,
with the same checks, into places that no sandbox uses yet, under a journal entry; captured by this home's own file
backend; and made known in one commit. A crash before that leaves a journal entry, which :func:`clear` makes undone.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from planarian_core.artefacts import images_of
from planarian_core.bundle_checking import Inspection, inspect, walk
from planarian_core.bundle_extraction import Extraction
from planarian_core.bundle_fitting import Fitted, Fitter, ImportRequest
from planarian_core.bundle_format import BundleError, BundleReader, damaged
from planarian_core.bundle_key import find_key
from planarian_core.bundle_packing import Progress
from planarian_core.bundle_records import BundleHead
from planarian_core.bundle_unpacking import Nowhere, TreeSink
from planarian_core.codec import decode, encode
from planarian_core.config import Config
from planarian_core.errors import ConfigurationError, SandboxError
from planarian_core.faults import reach
from planarian_core.interfaces import Collects, SandboxBackend, TakesLayers
from planarian_core.model import Domain, Gap, SandboxRecord, Statepoint, new_id
from planarian_core.registry import Operation
from planarian_core.sandbox_manager import SandboxManager, layer_of


@dataclass(frozen=True)
class Imported:
    """What an import made, or would make. ``gaps``: what of the bundle did not come along, or not as it was."""

    record: SandboxRecord
    statepoint: Statepoint
    authentic: bool
    ancestors: int
    gaps: tuple[Gap, ...]


class Importer:
    """Takes bundles into one home."""

    def __init__(self, sandboxes: SandboxManager, config: Config) -> None:
        self._home = sandboxes.home
        self._registry = sandboxes.registry
        self._plugins = sandboxes.plugins
        self._sandboxes = sandboxes
        self._fitter = Fitter(sandboxes, config)

    def check(self, file: Path, request: ImportRequest, progress: Progress) -> Imported:
        """What :meth:`run` would do, found out without writing anything.

        Raises:
            BundleError: why it can't be done.
        """
        with _opened(file) as stream:
            found, fitted = self._looked_through(stream, request, progress)
        return _report(found, fitted, fitted.statepoint, fitted.record, fitted.gaps)

    def run(self, file: Path, request: ImportRequest, progress: Progress) -> Imported:
        """Import a bundle.

        Raises:
            BundleError: nothing was imported.
        """
        with _opened(file) as stream:
            found, fitted = self._looked_through(stream, request, progress)
            with self._alone(fitted.record.id):
                self._check_free(fitted)
                return self._import(stream, found, fitted, progress)

    def _looked_through(
        self, stream: IO[bytes], request: ImportRequest, progress: Progress
    ) -> tuple[Inspection, Fitted]:
        found = inspect(stream, find_key(self._home, request.key_file), self._backend, self._home, progress)
        fitted = self._fitter.fit(found, request)
        self._check_free(fitted)
        return found, fitted

    def _backend(self, name: str) -> SandboxBackend | None:
        return self._plugins.sandbox(name) if name in self._plugins.names("sandbox") else None

    # --- ids ---

    @contextmanager
    def _alone(self, sandbox_id: str) -> Iterator[None]:
        lock = self._sandboxes.lock(sandbox_id)
        try:
            held = lock.acquire(exclusive=True, timeout=0)
        except SandboxError as error:
            raise BundleError(
                f"{sandbox_id} is being imported already, or is in use",
                code="bundle-busy",
                state="nothing was imported",
                remedy="wait for that to end",
            ) from error
        with held:
            yield

    def _check_free(self, fitted: Fitted) -> None:
        """Nothing of the home has one of the ids."""
        every = (*fitted.lineage, fitted.evidence)
        wanted = {
            "sandboxes": [fitted.record.id],
            "branches": [fitted.branch.id],
            "statepoints": [evidence.statepoint.id for evidence in every],
            "outcomes": [outcome.id for evidence in every for outcome in evidence.outcomes],
        }
        there = self._registry.known(wanted)
        if not there and self._registry.operations(fitted.record.id):
            raise BundleError(
                f"an import of {fitted.record.id} was cut off",
                code="bundle-unfinished",
                state="nothing of it is in use",
                remedy="planarian recover, then import it again",
            )
        if there:
            more = f" and {len(there) - 3} more" if len(there) > 3 else ""
            raise BundleError(
                f"what the bundle holds is in this home already: {', '.join(there[:3])}{more}",
                code="bundle-known",
                state="nothing was imported",
                remedy="use what is there (planarian list), or import it once more under fresh ids: --again",
            )

    # --- writing ---

    def _import(self, stream: IO[bytes], found: Inspection, fitted: Fitted, progress: Progress) -> Imported:
        record, statepoint = fitted.record, fitted.statepoint
        operation = Operation(new_id("op"), "import", record.id, statepoint.id, details={"record": encode(record)})
        self._registry.begin(operation)
        try:
            reach("import.begun")
            lost = self._unpack(stream, found, fitted, progress)
            reach("import.unpacked")
            record, statepoint = self._capture(fitted, lost)
            reach("import.captured")
            evidence = replace(fitted.evidence, statepoint=statepoint)
            self._registry.adopt(record, fitted.branch, (*fitted.lineage, evidence), fitted.fences, operation)
        except BaseException as error:
            clear(self._sandboxes, operation)
            if isinstance(error, OSError):
                raise _unwritable(error) from error
            raise
        reach("import.committed")
        return _report(found, fitted, statepoint, record, (*fitted.gaps, *lost))

    def _unpack(self, stream: IO[bytes], found: Inspection, fitted: Fitted, progress: Progress) -> tuple[Gap, ...]:
        """Write the parts; what could not be set of files, as gaps."""
        record = fitted.record
        self._sandboxes.folder(record.id).mkdir(mode=0o700, parents=True)
        self._plugins.filesystem(record.filesystem).create(layer_of(record.spec))
        places = {"files": Path(record.spec.layer)}
        if "origin" in found.head.parts and record.spec.origin:
            places["origin"] = _made(Path(record.spec.origin))
        if fitted.processes is not None:
            places["images"] = _made(images_of(self._home, fitted.statepoint.id))
        maker = (found.head.host.uid, found.head.host.gid)
        with ExitStack() as stack:
            sinks: dict[str, Extraction] = {}

            def sink(name: str, head: BundleHead) -> TreeSink:
                if name not in places:
                    return Nowhere()
                sinks[name] = stack.enter_context(Extraction(places[name], maker))
                return sinks[name]

            reader = BundleReader(stream)
            if reader.digest != found.digest:
                raise damaged("it was changed while it was read")
            walk(reader, self._backend, sink, progress)
            lost = sum((one.lost for one in sinks.values()), Counter[str]())
        for place in places.values():
            _sync(place)
        return tuple(Gap(Domain.FILES, f"{count} files", reason) for reason, count in sorted(lost.items()))

    def _capture(self, fitted: Fitted, lost: tuple[Gap, ...]) -> tuple[SandboxRecord, Statepoint]:
        """The layer made this host's and captured; the images verified."""
        record, statepoint = fitted.record, fitted.statepoint
        backend = self._plugins.sandbox(record.spec.backend)
        if isinstance(backend, TakesLayers):
            record = replace(record, spec=backend.take_over(record.spec, trusted=fitted.trusted))
        files = self._plugins.filesystem(record.filesystem).capture(layer_of(record.spec), statepoint.id)
        if fitted.processes is not None:
            images = images_of(self._home, statepoint.id)
            self._plugins.process(fitted.processes.backend).verify(fitted.processes, images)
        words = (f"files by {files.backend}", *statepoint.coverage.captured)
        coverage = replace(statepoint.coverage, captured=words, missing=(*statepoint.coverage.missing, *lost))
        return record, replace(statepoint, files=files, coverage=coverage)


def clear(sandboxes: SandboxManager, operation: Operation) -> None:
    """Remove what an import that was not committed has written, and its journal entry. Idempotent."""
    record = decode(SandboxRecord, operation.details["record"])
    filesystem = sandboxes.plugins.filesystem(record.filesystem)
    filesystem.discard(operation.statepoint_id)
    shutil.rmtree(images_of(sandboxes.home, operation.statepoint_id).parent, ignore_errors=True)
    sandboxes.destroy(record, operation)
    if isinstance(filesystem, Collects):
        filesystem.collect()


def _report(
    found: Inspection, fitted: Fitted, statepoint: Statepoint, record: SandboxRecord, gaps: tuple[Gap, ...]
) -> Imported:
    return Imported(record, statepoint, found.authentic, len(fitted.lineage), (*fitted.fences, *gaps))


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """A regular file, to read; no fifo or device that would never end."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unreadable(file, "it is no regular file")
    with open(descriptor, "rb", buffering=1024 * 1024) as stream:
        yield stream


def _unreadable(file: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the bundle {file} can't be read: {why}", code="bundle-unreadable", remedy="name a file that you can read"
    )


def _made(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True)
    return path


def _sync(directory: Path) -> None:
    """Write back all that was written to where a directory is; returns when it is on the disk."""
    subprocess.run(["sync", "--file-system", str(directory)], capture_output=True, check=True)


def _unwritable(error: OSError) -> BundleError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return BundleError(
        f"the bundle can't be written into the home: {error.strerror or error}",
        code="bundle-unwritable",
        state="nothing was imported",
        remedy="free some space, or set PLANARIAN_HOME to a larger disk" if full else "planarian doctor",
    )
