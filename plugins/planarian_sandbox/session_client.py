"""The host's side of :mod:`planarian_sandbox.session_holder`: runs one command in a session's shell.

What the holder's directory contains is untrusted: it is reached only through :class:`Inside`, and reads are bounded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from planarian_core.errors import SandboxError
from planarian_core.interfaces import OutputSink
from planarian_core.model import Command, CommandResult
from planarian_sandbox.inside import Inside, open_below
from planarian_sandbox.output import OutputFile

START_TIME = 15.0
"""Seconds that a new holder has to come up."""
ENDING_TIME = 10.0
"""Seconds that a holder has to end a command before it counts as lost."""
_REPLY = re.compile(rb"(\d{1,3}) (alive|ended|killed)\n")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SESSIONS = 200
_OURS = re.compile(r"[A-Za-z0-9_-]{1,64}\.(sh|in|out|err|1|2|rc|rc\.new|code\..{1,20})")


class SessionClient:
    """One session, by its directory.

    Args:
        directory: the holder's directory as the host reaches it; stays the caller's to close.
        launch: starts a holder on that directory, detached; the client waits until it answers.
        lock: host path of a file that callers of this session take turns with; outside the sandbox.
        end: ends the session with everything in it, for when its holder no longer answers.
    """

    def __init__(self, directory: Inside, launch: Callable[[], None], lock: str, end: Callable[[], None]) -> None:
        self._directory = directory
        self._launch = launch
        self._lock = lock
        self._end = end

    def run(
        self,
        command: Command,
        sink: OutputSink | None = None,
        look: Callable[[], bool] | None = None,
        call: str = "",
    ) -> CommandResult:
        """Run ``command.argv[0]`` as shell input to its end; one caller at a time, the others wait.

        ``command.env`` is exported into the shell and stays; ``cwd`` and ``clear_env`` only matter to ``launch``.

        Args:
            look: called at every look; returning True ends the command as a timeout does (exit code 137).
            call: the command's ID (and its processes' ``PLANARIAN_CALL``); made up when empty.

        Raises:
            SandboxError: the session is busy for longer than the timeout, its holder does not come up or is lost,
                or its directory can't be written. The command's processes are gone.
        """
        started = time.monotonic()
        with self._turn(command.timeout):
            self._reach_holder()
            self._clear()
            name = call or secrets.token_hex(8)
            try:
                return self._call(name, command, sink, look, started)
            except BaseException:
                self._abandon(name, time.monotonic() + ENDING_TIME)
                raise
            finally:
                self._clear()

    # --- taking turns, reaching the holder --------------------------------------------------------------------------

    @contextmanager
    def _turn(self, timeout: float | None) -> Iterator[None]:
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if deadline is not None and time.monotonic() > deadline:
                        raise SandboxError(
                            "another command of this session is still running",
                            code="session-busy",
                            state="the command did not run",
                            remedy="wait for it, or use another session",
                        ) from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)

    def _reach_holder(self) -> None:
        """Make sure that a holder answers and is idle; one left busy by a caller that died is interrupted."""
        if not self._tell("", b"\n"):
            self._launch()
            deadline = time.monotonic() + START_TIME
            while not self._tell("", b"\n"):
                gone = os.fstat(self._directory.descriptor).st_nlink == 0
                if gone or time.monotonic() > deadline:
                    why = ": its directory was removed" if gone else ""
                    raise SandboxError(f"the session's shell does not start{why}", code="session-start")
                time.sleep(0.005)
        deadline = time.monotonic() + ENDING_TIME
        while (left := self._read("busy", 100)) is not None:
            self._tell("interrupt", left.strip())
            if time.monotonic() > deadline:
                self._lost("the session's shell does not end an earlier command")
            time.sleep(0.02)

    def _tell(self, verb: str, argument: bytes) -> bool:
        """Write a line to the holder; False when there is none."""
        try:
            control = open_below(self._directory.descriptor, "ctl", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT, errno.ELOOP, errno.EISDIR):
                return False
            raise
        try:
            if not stat.S_ISFIFO(os.fstat(control).st_mode):
                return False
            os.write(control, verb.encode() + b" " + argument[:100] + b"\n" if verb else b"\n")
        except (BrokenPipeError, BlockingIOError):
            return False
        finally:
            os.close(control)
        return True

    # --- one command ------------------------------------------------------------------------------------------------

    def _call(
        self, name: str, command: Command, sink: OutputSink | None, look: Callable[[], bool] | None, started: float
    ) -> CommandResult:
        with contextlib.ExitStack() as stack:
            outputs = []
            for stream, suffix in (("stdout", ".out"), ("stderr", ".err")):
                descriptor = self._create(name + suffix)
                stack.callback(os.close, descriptor)
                outputs.append(OutputFile(descriptor, stream, command.output_limit, sink))
            if command.stdin:
                os.close(self._create(name + ".in", command.stdin))
            os.close(self._create(name + ".sh", shell_text(command)))
            if not self._tell("run", name.encode()):
                self._lost("the session's shell is gone")
            code, state, why = self._wait(name, command, outputs, look, started)
            for output in outputs:
                output.finish()
            out, err = (output.kept.text() for output in outputs)
            if state == "killed":
                err += "[planarian: the session's shell had to be killed; the next command starts a fresh one]\n"
            return CommandResult(
                exit_code={"timeout": 124, "look": 137}.get(why, code),
                stdout=out,
                stderr=err,
                duration=time.monotonic() - started,
                timed_out=why == "timeout",
                truncated=any(output.kept.truncated for output in outputs),
            )

    def _wait(
        self,
        name: str,
        command: Command,
        outputs: list[OutputFile],
        look: Callable[[], bool] | None,
        started: float,
    ) -> tuple[int, str, str]:
        """Until the reply is there; returns exit code, state, and why the command was ended early, if so."""
        deadline = None if command.timeout is None else started + command.timeout
        pause, seen, why = 0.0005, time.monotonic(), ""
        while True:
            moved = [output.pump() for output in outputs]
            reply = self._read(name + ".rc", 100)
            if reply is not None:
                match = _REPLY.fullmatch(reply)
                if match is None:
                    self._lost("the session's shell gave an unreadable answer")
                return int(match[1]), match[2].decode(), why
            now = time.monotonic()
            if not why:
                why = "timeout" if deadline is not None and now > deadline else ""
                why = why or ("look" if look is not None and look() else "")
                if why:
                    self._tell("interrupt", name.encode())
                    deadline = now + ENDING_TIME
            elif deadline is not None and now > deadline:
                self._end()
                return 137, "killed", why
            if now - seen > 1:
                seen = now
                if not self._tell("", b"") and self._read(name + ".rc", 100) is None:
                    self._lost("the session's shell is gone")
            pause = 0.0005 if any(moved) else min(pause * 1.5, 0.02)
            time.sleep(pause)

    def end_left(self, calls: Collection[str], deadline: float) -> None:
        """End the command that runs now when it is one of ``calls``: its caller was killed. The session lives on, but
        is ended when the command hasn't by ``deadline``.
        """
        name = (self._read("busy", 100) or b"").decode("ascii", "replace").rstrip("\n")
        if name in calls:
            self._abandon(name, deadline)
            self._clear()

    def _abandon(self, name: str, deadline: float) -> None:
        """The caller gives up: the command must not run on."""
        with contextlib.suppress(OSError):
            self._tell("interrupt", name.encode())
            while self._read("busy", 100) == name.encode() + b"\n":
                if time.monotonic() > deadline or not self._tell("", b""):
                    self._end()
                    return
                time.sleep(0.01)

    def _lost(self, message: str) -> NoReturn:
        self._end()
        raise SandboxError(
            message,
            code="session-lost",
            state="the session and its processes were ended",
            remedy="run the command again: it starts a fresh session",
        )

    # --- files ------------------------------------------------------------------------------------------------------

    def _create(self, name: str, content: bytes | None = None) -> int:
        try:
            return self._directory.create(name, 0o600, content)
        except OSError as error:
            raise SandboxError(
                f"the command can't be handed to the session: {error.strerror}", code="session-directory"
            ) from error

    def _read(self, name: str, limit: int) -> bytes | None:
        """The beginning of a regular file; None when it isn't there or is anything else."""
        try:
            descriptor = self._directory.open_regular(name)
        except OSError:
            return None
        try:
            return os.read(descriptor, limit)
        finally:
            os.close(descriptor)

    def _clear(self) -> None:
        """Remove the files of commands; whoever still writes to them keeps what it has open."""
        with contextlib.suppress(OSError):
            for name in filter(_OURS.fullmatch, list(self._directory.names(1000))):
                with contextlib.suppress(OSError):
                    self._directory.remove(name)


def end_left_in_sessions(sessions: Inside, calls: Collection[str], end: Callable[[str], None]) -> None:
    """End what runs of ``calls`` in the sessions below the directory ``sessions``; ``end`` ends a session by name."""
    deadline = time.monotonic() + ENDING_TIME
    for name in filter(_SESSION.fullmatch, list(sessions.names(_SESSIONS))):
        with contextlib.suppress(OSError), sessions.directory(name) as directory:
            client = SessionClient(directory, launch=lambda: None, lock="", end=partial(end, name))
            client.end_left(calls, deadline)


def shell_text(command: Command) -> bytes:
    """The command's shell input, its environment exported before it."""
    for key in command.env:
        if not _VARIABLE.fullmatch(key):
            raise SandboxError(f"{key!r} can't be the name of a shell variable", code="session-variable")
    exports = "".join(f"export {key}='" + value.replace("'", "'\\''") + "'; " for key, value in command.env.items())
    return (exports + command.argv[0]).encode("utf-8", "surrogateescape")
