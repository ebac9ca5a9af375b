"""Runs one command of a ``directory`` sandbox: starts it, follows it, ends its tree when its time is up."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from planarian_core.errors import SandboxError
from planarian_core.interfaces import OutputSink
from planarian_core.model import Command, CommandResult
from planarian_sandbox.collect import Collector
from planarian_sandbox.directory_run import RunFolder
from planarian_sandbox.directory_tasks import Tasks, end
from planarian_sandbox.output import PIECE

# Waits until it is in its control groups, then becomes the command. The text is constant: nothing is put into it.
_GATE = 'read -r go || exit 125; input=$1; shift; exec "$@" <"$input"'
# The gate's shell makes PWD up; a command that is to have none must not see it.
_GATE_WITHOUT_PWD = f"unset PWD OLDPWD; {_GATE}"
_REST = 16
"""Pieces that are read after a command has ended: more than a pipe holds, so a background writer can't keep us."""


class NotRunnable(Exception):
    """There is no such program, or it can't be executed: the command's own failure, as a shell reports it."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message


def start(
    tasks: Tasks,
    argv: Sequence[str],
    environment: Mapping[str, str],
    directory: str,
    files: tuple[str, int, int],
    call: str,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, within the sandbox's bounds before its first instruction.

    Args:
        files: path of its input; descriptors of its output and errors.

    Raises:
        NotRunnable: the program is missing or can't be executed.
        SandboxError: the host can't start processes now.
    """
    _check_program(argv, environment, directory)
    source, output, errors = files
    gate_text = _GATE if "PWD" in environment else _GATE_WITHOUT_PWD
    gated = ["/bin/sh", "-c", gate_text, "sh", source, *argv] if tasks.exact else list(argv)
    with contextlib.ExitStack() as stack:
        given: int = subprocess.PIPE if tasks.exact else os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        if not tasks.exact:
            stack.callback(os.close, given)
        try:
            process = subprocess.Popen(
                gated, stdin=given, stdout=output, stderr=errors, cwd=directory, env=environment, start_new_session=True
            )
        except OSError as error:
            if error.errno in (errno.ENOEXEC, errno.EACCES, errno.E2BIG, errno.ENOENT):
                raise NotRunnable(126, f"{argv[0]}: {error.strerror}") from error
            raise SandboxError(f"the command can't be started: {error.strerror}", code="sandbox-start") from error
    try:
        tasks.enter(call, process.pid)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), process.stdin as gate:
                gate.write(b"go\n")
    except BaseException as error:
        process.kill()
        process.wait()
        if isinstance(error, OSError):
            raise SandboxError(f"the control group can't be joined: {error}", code="sandbox-cgroup") from error
        raise
    return process


def _check_program(argv: Sequence[str], environment: Mapping[str, str], directory: str) -> None:
    if not argv[0]:
        raise NotRunnable(127, "the command's name is empty")
    if "/" not in argv[0]:
        if shutil.which(argv[0], path=environment.get("PATH", os.defpath)) is None:
            raise NotRunnable(127, f"{argv[0]}: command not found")
        return
    path = os.path.join(directory, argv[0])
    if not os.path.exists(path):
        raise NotRunnable(127, f"{argv[0]}: no such file")
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise NotRunnable(126, f"{argv[0]}: permission denied")


def reap(process: subprocess.Popen[bytes]) -> None:
    """Leave a process to itself; no zombie remains of it while this runtime lives."""
    threading.Thread(target=process.wait, daemon=True, name=f"planarian-reap-{process.pid}").start()


def launch(tasks: Tasks, run: RunFolder, command: Command, call: str) -> None:
    """Start a detached command; its output is appended to the files that it names."""
    directory = run.directory(command)
    with contextlib.ExitStack() as stack:
        outputs = []
        for path in (command.stdout_path, command.stderr_path):
            outputs.append(_appending(os.path.join(run.spec.workspace, path) if path else os.devnull))
            stack.callback(os.close, outputs[-1])
        source = os.devnull
        if command.stdin:
            os.close(run.create(f"{call}.in", command.stdin))
            source = str(run.calls / f"{call}.in")
        files = (source, outputs[0], outputs[1])
        reap(start(tasks, command.argv, run.environment(command, call), directory, files, call))


def _appending(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise SandboxError(f"{path} can't take the output: {error.strerror}", code="sandbox-output") from error
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind) and path != os.devnull:
        os.close(descriptor)
        raise SandboxError(f"{path} can't take the output: it is no regular file", code="sandbox-output")
    os.set_blocking(descriptor, True)
    return descriptor


class _Stream:
    """One output of a command, through a pipe: unlike a file, ``>/dev/stdout`` can't empty it."""

    def __init__(self, name: str, limit: int, sink: OutputSink | None) -> None:
        self.name = name
        self.kept = Collector(limit)
        self._sink = sink
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.ended = False

    def pump(self, pieces: int) -> bool:
        """Take in up to so many pieces; True when there was something."""
        moved = False
        for _ in range(pieces):
            try:
                piece = os.read(self.reader, PIECE)
            except BlockingIOError:
                break
            if not piece:
                self.ended = True
                break
            moved = True
            self.kept.feed(piece)
            if self._sink is not None:
                self._sink(self.name, piece)
        return moved

    def hand_over(self) -> None:
        """Whoever still writes must not find the pipe broken: a process of its own reads on and drops it."""
        if not self.ended:
            os.set_blocking(self.reader, True)
            with open(os.devnull, "wb") as nowhere:
                reap(
                    subprocess.Popen(["cat"], stdin=self.reader, stdout=nowhere, stderr=nowhere, start_new_session=True)
                )

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        os.close(self.reader)


def run_command(
    tasks: Tasks, run: RunFolder, command: Command, call: str, sink: OutputSink | None, look: Callable[[], bool] | None
) -> CommandResult:
    """Run a command to its end; ``look`` is called every few milliseconds and ends it by returning True."""
    started = time.monotonic()
    directory = run.directory(command)
    with contextlib.ExitStack() as stack:
        streams = []
        for name in ("stdout", "stderr"):
            streams.append(_Stream(name, command.output_limit, sink))
            stack.callback(streams[-1].close)
        source = os.devnull
        if command.stdin:
            source = str(run.calls / f"{call}.in")
            os.close(run.create(f"{call}.in", command.stdin))
            stack.callback(os.unlink, source)
        files = (source, streams[0].writer, streams[1].writer)
        process = start(tasks, command.argv, run.environment(command, call), directory, files, call)
        try:
            for stream in streams:
                stream.close_writer()
            why = _follow(process, streams, None if command.timeout is None else started + command.timeout, look)
            if why:
                _end_call(tasks, process, call)
            for stream in streams:
                stream.pump(_REST)
                stream.hand_over()
        except BaseException:
            _end_call(tasks, process, call)
            raise
        code = process.returncode
        return CommandResult(
            exit_code=124 if why == "timeout" else 128 - code if code < 0 else code,
            stdout=streams[0].kept.text(),
            stderr=streams[1].kept.text(),
            duration=time.monotonic() - started,
            timed_out=why == "timeout",
            truncated=any(stream.kept.truncated for stream in streams),
        )


def _follow(
    process: subprocess.Popen[bytes],
    streams: Sequence[_Stream],
    deadline: float | None,
    look: Callable[[], bool] | None,
) -> str:
    """Until the process has ended (an empty string), its time is up (``timeout``) or it is to end (``look``)."""
    pause = 0.0005
    while process.poll() is None:
        moved = [stream.pump(4) for stream in streams]
        if look is not None and look():
            return "look"
        if deadline is not None and time.monotonic() > deadline:
            return "timeout"
        pause = 0.0005 if any(moved) else min(pause * 1.3, 0.01)
        open_ends = [stream.reader for stream in streams if not stream.ended]
        if open_ends:
            select.select(open_ends, [], [], pause)
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pause)
    return ""


def _end_call(tasks: Tasks, process: subprocess.Popen[bytes], call: str) -> None:
    """End the whole tree; the command itself in any case, even where its mark can't be read."""
    try:
        end(lambda: tasks.of_calls(call))
    finally:
        process.kill()
        process.wait()
