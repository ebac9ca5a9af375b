"""The process backend ``respawn``: no memory, but what ran at the statepoint is started again after a rollback.

For each process it records argument list, directory, environment and output files, in ``respawn.json`` beside the
statepoint's images: mode 0600, as an environment may hold secrets, and kept out of the registry for the same reason.
What can't be started again is said by name, with the reason.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from planarian_core.errors import CaptureError, RestoreError
from planarian_core.interfaces import (
    Availability,
    Instant,
    ProcessCapabilities,
    RunningSandbox,
    SandboxCapabilities,
)
from planarian_core.model import Artefact, Command, Domain, Gap, ProcessInfo, SandboxSpec
from planarian_process.freeze import standstill, thaw
from planarian_process.observe import Seen, observe
from planarian_process.programs import Programs
from planarian_process.sessions import own_processes, session_gaps
from planarian_process.stillness import DETAIL, baseline, halt, still

_FILE = "respawn.json"
_VERSION = 1
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "busybox"})


class RespawnBackend:
    """See the module. ``artefact.details["commands"]`` lists every process with its inside pid and, as ``parent``,
    the pid of the recorded process that it hangs below (0: none), but without its environment.
    """

    name = "respawn"
    capabilities = ProcessCapabilities(memory=False, restarts=True)

    def __init__(self, home: Path) -> None:
        self._home = home

    def probe(self) -> Availability:
        return Availability(True, "processes lose their memory: they are started again")

    def serves(self, spec: SandboxSpec, sandbox: SandboxCapabilities) -> Availability:
        return Availability(True)

    @contextmanager
    def instant(self, sandbox: RunningSandbox, images: Path) -> Iterator[Instant]:
        result = Instant()
        with ExitStack() as stack:
            with standstill(sandbox, self._home) as pids:
                seen, halted = observe(pids), halt(sandbox)
                programs = stack.enter_context(Programs(seen))
                yield result
            ours = own_processes(seen, sandbox) | frozenset(sandbox.in_flight)
            entries = _entries(seen, ours, programs)
        result.process_list = process_list(seen, ours)
        result.gaps = tuple(_gap(entry) for entry in entries) + session_gaps(seen, sandbox)
        size = _write(images, {"version": _VERSION, "processes": entries})
        shown = [{key: value for key, value in entry.items() if key != "environment"} for entry in entries]
        reference = images.relative_to(self._home) if images.is_relative_to(self._home) else images
        details = {"commands": shown, DETAIL: baseline(sandbox, halted)}
        result.artefact = Artefact(Domain.PROCESSES, self.name, str(reference), size, size, details)

    def still(self, sandbox: RunningSandbox, artefact: Artefact) -> bool:
        """Whether nothing has run since the capture; see :mod:`planarian_process.stillness`."""
        return still(sandbox, artefact)

    def verify(self, artefact: Artefact, images: Path) -> None:
        _load(images)

    def discard(self, images: Path) -> None:
        (images / _FILE).unlink(missing_ok=True)

    def thaw(self, sandbox: RunningSandbox) -> None:
        thaw(sandbox, self._home)

    def commands(self, artefact: Artefact) -> tuple[Command, ...]:
        """The topmost processes, oldest first: what ran below them is theirs to start."""
        entries = _load(self._home / artefact.reference)
        found = []
        for entry in entries:
            if entry["parent"] or entry["reason"]:
                continue
            found.append(
                Command(
                    argv=tuple(entry["argv"]),
                    cwd=entry["cwd"],
                    env=entry["environment"],
                    clear_env=True,
                    detach=True,
                    stdout_path=entry["stdout"],
                    stderr_path=entry["stderr"],
                )
            )
        return tuple(found)


def process_list(seen: Sequence[Seen], ours: frozenset[int]) -> tuple[ProcessInfo, ...]:
    """What ran, apart from what belongs to Planarian itself."""
    return tuple(
        ProcessInfo(process.pid, tuple(map(_printable, process.argv)), _printable(process.cwd), process.state)
        for process in seen
        if process.pid not in ours
    )


def _entries(seen: Sequence[Seen], ours: frozenset[int], programs: Programs) -> list[dict[str, Any]]:
    """What is recorded of each process that isn't Planarian's own, oldest first."""
    above = {0, *ours}
    entries = []
    readers: dict[str, set[int]] = {}
    for process in seen:
        for link in process.reads:
            readers.setdefault(link, set()).add(0 if process.pid in ours else process.pid)
    for process in seen:
        if process.pid not in ours:
            parent = 0 if process.parent in above else process.parent
            entries.append(_entry(process, parent, readers, programs))
            if not parent and _is_shell_part(process):
                above.add(process.pid)  # what runs below it is topmost in its stead
    return entries


def _is_shell_part(process: Seen) -> bool:
    """Whether it is what a shell forked for ``(…) &`` or ``a && b &``: its argument list is the whole script's."""
    shell = os.path.basename(process.argv[0]).lstrip("-") in _SHELLS if process.argv else False
    return shell and (process.forked or (sys.platform != "linux" and "-c" in process.argv[1:3]))


def _entry(process: Seen, parent: int, readers: Mapping[str, set[int]], programs: Programs) -> dict[str, Any]:
    argv = process.argv
    if process.uid != os.geteuid():
        argv = ("setpriv", f"--reuid={process.uid}", f"--regid={process.gid}", "--clear-groups", "--", *argv)
    stdout, stderr = (
        "" if 0 in readers.get(link, ()) or programs.deleted(process, f"fd/{number}", link) else _output_file(link)
        for number, link in enumerate(process.outputs, 1)
    )
    return {
        "pid": process.pid,
        "parent": parent,
        "argv": list(argv),
        "title": list(process.argv),
        "cwd": process.cwd,
        "environment": {name: value for name, value in process.environment if not name.startswith("PLANARIAN_")},
        "stdout": stdout,
        "stderr": stderr,
        "reason": _why_not(process, readers, programs),
    }


def _why_not(process: Seen, readers: Mapping[str, set[int]], programs: Programs) -> str:
    """Why a process can't be started again; empty when it can. ``readers``: who reads what in the
    sandbox, 0 standing for Planarian's own processes."""
    if process.unknown:
        return f"it could not be looked at ({process.unknown})"
    if not process.argv or not process.argv[0]:
        return "its argument list is empty"
    if " " in process.argv[0] and not any(process.argv[1:]):
        return "it wrote a title over its argument list"
    if _is_shell_part(process):
        return "it is a part of a shell's script; what ran below it is looked at by itself"
    if process.root not in ("", "/"):
        return "it runs in a root directory of its own"
    if programs.deleted(process, "exe", process.executable):
        return "its program was deleted"
    if programs.deleted(process, "cwd", process.cwd):
        return "its working directory was deleted"
    if process.inputs.startswith(("pipe:", "socket:")):
        return "its input comes from another process"
    if process.inputs.startswith("/") and not process.inputs.startswith("/dev/"):
        return f"it reads from a file ({_printable(process.inputs)})"
    pipes = [link for link in process.outputs if link.startswith("pipe:")]
    if any(readers.get(link, set()) - {0, process.pid} for link in pipes) or any(
        link.startswith("socket:") for link in process.outputs
    ):
        return "its output goes to another process"
    if not programs.named(process):
        return f"its name isn't its program ({_printable(process.executable)})"
    return ""


def _output_file(link: str) -> str:
    """The regular file behind an output descriptor; empty for anything else (``/dev/null`` then), as the pipe of a
    call that has ended.
    """
    return link if link.startswith("/") and not link.startswith(("/dev/", "/memfd:")) else ""


def _gap(entry: Mapping[str, Any]) -> Gap:
    if entry["parent"]:
        what = f"memory lost; it is left to its parent {entry['parent']} to start it again"
    elif entry["reason"]:
        what = f"memory lost; will not be started again: {entry['reason']}"
    else:
        what = "memory lost; will be started again"
    return Gap(Domain.PROCESSES, describe(entry["pid"], entry["title"]), what)


def describe(pid: int, argv: Sequence[str]) -> str:
    """A process in a line of bounded length, for people."""
    words = " ".join(_printable(" ".join(argv)).split()) or "?"
    return f"{pid} {words[:100]}{'…' if len(words) > 100 else ''}"


def _printable(text: str) -> str:
    """Without control characters and undecodable bytes: what the sandbox wrote must not steer a terminal."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)


def _write(images: Path, data: Mapping[str, Any]) -> int:
    """Durable when it returns; the size in bytes."""
    content = json.dumps(data).encode()
    try:
        descriptor = os.open(images / _FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        folder = os.open(images, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise CaptureError(
            f"what runs can't be written down: {error}", state="nothing was captured; the sandbox goes on running"
        ) from error
    return len(content)


def _load(images: Path) -> list[dict[str, Any]]:
    try:
        data = json.loads((images / _FILE).read_bytes())
        entries: list[dict[str, Any]] = data["processes"]
        version = data["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RestoreError(
            f"the list of what ran is missing or damaged: {error}",
            code="restore-processes",
            state="nothing was changed",
            remedy="roll back with --files-only",
        ) from error
    if version != _VERSION:
        raise RestoreError("the list of what ran was written by a newer version", code="restore-version")
    return entries
