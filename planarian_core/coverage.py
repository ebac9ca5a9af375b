"""What a statepoint holds and, by name, what it doesn't (guarantee 9)."""

from __future__ import annotations

from collections.abc import Sequence

from planarian_core.interfaces import Instant
from planarian_core.model import Artefact, Coverage, Domain, Gap, ProcessInfo, RemotePosition, Statepoint


def coverage(
    files: Artefact | None,
    instant: Instant,
    processes: Sequence[ProcessInfo],
    remote: Sequence[RemotePosition],
    gaps: Sequence[Gap],
) -> Coverage:
    """The coverage of a capture; ``gaps`` are those that neither the files nor the processes know of."""
    words = [f"files by {files.backend}"] if files else []
    if instant.artefact:
        words += [f"{len(processes)} processes by {instant.artefact.backend}", *instant.notes]
    words += [f"position {p.position} of {p.service}" for p in remote]
    return Coverage(tuple(words), (*_file_gaps(files), *instant.gaps, *gaps))


def shared(
    head: Statepoint, files: Artefact | None, remote: Sequence[RemotePosition], standing: Sequence[Gap]
) -> Coverage:
    """The coverage of a statepoint whose processes are the head's, and whose files are (or else were captured)."""
    words = []
    if files:
        words.append(f"files by {files.backend}" + (f", unchanged since {head.id}" if files is head.files else ""))
    if head.processes:
        words.append(f"{len(head.process_list)} processes by {head.processes.backend}, unmoved since {head.id}")
    words += [f"position {p.position} of {p.service}" for p in remote]
    processes = [gap for gap in head.coverage.missing if gap.domain is Domain.PROCESSES and gap not in standing]
    return Coverage(tuple(words), (*_file_gaps(files), *processes, *standing))


def _file_gaps(files: Artefact | None) -> list[Gap]:
    listed = files.details.get("gaps", []) if files else []
    return [Gap(Domain.FILES, str(path), str(reason)) for path, reason in listed]
