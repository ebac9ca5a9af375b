"""What a statepoint holds and, by name, what it doesn't (guarantee 9)."""

from __future__ import annotations

from collections.abc import Sequence

from planarian_core.interfaces import Instant
from planarian_core.model import Artefact, Coverage, Domain, Gap, ProcessInfo, RemotePosition


class Stillness:
    """The instant of a sandbox in which nothing runs."""

    def __init__(self, reason: str) -> None:
        self.artefact: Artefact | None = None
        self.process_list: tuple[ProcessInfo, ...] = ()
        self.gaps: tuple[Gap, ...] = (Gap(Domain.PROCESSES, "all processes", reason),)


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
        words.append(f"{len(processes)} processes by {instant.artefact.backend}")
    words += [f"position {p.position} of {p.service}" for p in remote]
    listed = files.details.get("gaps", []) if files else []
    file_gaps = [Gap(Domain.FILES, str(path), str(reason)) for path, reason in listed]
    return Coverage(tuple(words), (*file_gaps, *instant.gaps, *gaps))
