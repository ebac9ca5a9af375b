"""The host's side of a call: handing a command to the sandbox's init and following it to its end.

What passes between the two lies in memory files (``memfd``), so that a call by itself leaves no trace in the layer, and
an image of the processes can be taken while it runs. The host believes nothing that it reads there. All that it opens
inside it opens through :class:`Inside`. The pid that the child claims comes from the kernel and is checked to be in the
sandbox.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import secrets
import select
import socket
import stat
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from planarian_core.errors import SandboxError
from planarian_core.interfaces import OutputSink
from planarian_core.model import LiveSandbox
from planarian_sandbox import cgroups
from planarian_sandbox.agent import LOST, WHOLE
from planarian_sandbox.identity import GONE, GONE_REMEDY, end_below, exited, kill, pid_namespace
from planarian_sandbox.inside import Inside, tampering
from planarian_sandbox.layout import CALLS, RUNTIME
from planarian_sandbox.output import OutputFile
from planarian_sandbox.request_listener import LISTENING

LARGE = 1024 * 1024
"""Bytes of input beyond which it lies in a file of the layer: memory files are part of every image."""
HANDSHAKE = 20.0
"""Seconds within which the init has to answer."""
_OOM_SCORE = b"300"
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class Frame:
    """What the init is asked to do, in inside paths."""

    argv: Sequence[str]
    env: dict[str, str]
    cwd: str
    detach: bool = False
    stdout_path: str = ""
    stderr_path: str = ""

    def encode(self) -> bytes:
        """The frame on the wire; no string holds a NUL (:func:`check_command`)."""
        fields = ["detach" if self.detach else "call", self.cwd, self.stdout_path, self.stderr_path]
        fields += [str(len(self.argv)), *self.argv, *(f"{name}={value}" for name, value in self.env.items())]
        body = b"\0".join(os.fsencode(text) for text in fields)
        return struct.pack(">I", len(body)) + body


@dataclass
class Call:
    """One command in a sandbox, from the handshake to its result."""

    live: LiveSandbox
    init: int
    """A pidfd of the sandbox's init."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    pid: int = 0
    pidfd: int = -1
    group: str = ""
    """Its control group, once it is in one of its own."""
    outputs: tuple[OutputFile, ...] = ()
    _made: str = ""
    _result: int = -1
    _calls: Inside | None = None
    _input: str = ""

    def __enter__(self) -> Call:
        with tampering("The sandbox can't be reached"), Inside.of_init(self.live.init_pid) as root:
            self._check_init()
            self._calls = root.directory(CALLS.lstrip("/"))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._calls is None:
            return
        try:
            if kind is not None and self.pidfd >= 0 and not exited(self.pidfd) and not exited(self.init):
                self.end()
        finally:
            self._release(self._calls)

    def _release(self, calls: Inside) -> None:
        background = False
        if self._made:
            try:
                os.rmdir(self._made)
            except OSError:  # background processes are in it; it goes when the sandbox stops
                background = True
        # A large input that is still open keeps its name: an image can't hold large nameless files.
        if self._input and not background:
            with contextlib.suppress(OSError):
                calls.remove(self._input)
                calls.settle()
        descriptors = [output.descriptor for output in self.outputs]
        for descriptor in (self._result, self.pidfd, *descriptors):
            if descriptor >= 0:
                os.close(descriptor)
        calls.__exit__()

    def _check_init(self) -> None:
        """After something was opened by the init's pid: that it was the init's."""
        if exited(self.init):
            raise SandboxError(GONE, code="sandbox-gone", state="nothing runs in it", remedy=GONE_REMEDY)

    def begin(self, frame: Frame, stdin: bytes = b"", limit: int = 0, sink: OutputSink | None = None) -> None:
        """Start the command; ``limit`` bytes of each output are kept, all goes to ``sink``.

        SandboxError when the init can't: then nothing of it runs.
        """
        encoded = frame.encode()
        handed: list[int] = []
        try:
            if not frame.detach:
                self._result = _memory_file("result")
                for name in ("stdout", "stderr"):
                    self.outputs += (OutputFile(_memory_file(name), name, limit, sink),)
                handed += [self._result, *(_appending(output.descriptor) for output in self.outputs)]
            if stdin:
                handed.append(self._input_file(stdin))
            self._handshake(frame, encoded, handed)
        finally:
            for descriptor in handed:
                if descriptor != self._result:
                    os.close(descriptor)

    def _input_file(self, content: bytes) -> int:
        """What the command reads."""
        if len(content) <= LARGE:
            return _memory_file("stdin", content)
        assert self._calls is not None
        name = f"{self.id}.stdin"
        with tampering("The files of a call can't be made"):
            descriptor = self._calls.create(name, 0o600, content)
        self._input = name
        return descriptor

    def _handshake(self, frame: Frame, encoded: bytes, handed: list[int]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(HANDSHAKE)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            try:
                self._connect(connection)
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handed))] if handed else []
                sent = connection.sendmsg([encoded], rights)
                if sent < len(encoded):  # sending nothing fails as well, where a refusal is there already
                    connection.sendall(encoded[sent:])
                self._make_group()  # while the init forks
                answer, claimed = _receive_with_pid(connection)
            except OSError as error:
                self._check_init()
                raise SandboxError(
                    f"The sandbox's init does not answer: {error}.",
                    code="sandbox-silent",
                    remedy="stop and start the sandbox, or roll back to a statepoint",
                ) from error
            if answer[:1] != b"P":
                raise _refusal(answer, frame)
            self._adopt(claimed)
            connection.sendall(b"g")
            if frame.detach:
                self._detached(connection)

    def _connect(self, connection: socket.socket) -> None:
        assert self._calls is not None
        descriptor = os.open("agent.sock", os.O_PATH | os.O_NOFOLLOW, dir_fd=self._calls.descriptor)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise OSError(f"{CALLS}/agent.sock is not a socket")
            connection.connect(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)

    def _make_group(self) -> None:
        above = cgroups.unified(self.live.cgroups)
        if above:
            try:
                self._made = cgroups.make_for_call(above, self.id)
            except OSError as error:
                message = f"The call's control group can't be made: {error}."
                raise SandboxError(message, code="sandbox-cgroup") from error

    def _adopt(self, claimed: int) -> None:
        """Take hold of the child: a pidfd, proof that it is in the sandbox, a control group of its own."""
        try:
            self.pidfd = os.pidfd_open(claimed)
        except OSError as error:
            raise SandboxError("The command's process is gone before it began.", code="sandbox-silent") from error
        namespace = pid_namespace(self.live.init_pid)
        if claimed == self.live.init_pid or namespace is None or pid_namespace(claimed) != namespace:
            raise SandboxError(
                "The process that answered is not in the sandbox.",
                code="sandbox-foreign",
                remedy="stop the sandbox: its init was tampered with",
            )
        self.pid = claimed
        self._go_first()
        if not self._made:
            return
        try:
            cgroups.enter(self._made, claimed)
        except OSError as error:
            raise SandboxError(f"The call's control group can't be joined: {error}.", code="sandbox-cgroup") from error
        self.group = self._made
        if exited(self.pidfd):
            raise SandboxError("The command's process ended before it began.", code="sandbox-silent")

    def _go_first(self) -> None:
        """When memory runs out the command goes, not the init. Its own /proc is read-only, so that is done here."""
        with contextlib.suppress(OSError):  # it has ended, or is to go before others already
            descriptor = os.open(f"/proc/{self.pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            try:
                if not exited(self.pidfd):  # so what was opened is its own
                    os.write(descriptor, _OOM_SCORE)
            finally:
                os.close(descriptor)

    def _detached(self, connection: socket.socket) -> None:
        answer = connection.recv(4096)
        if answer[:1] == b"X":
            code, _, message = answer[1:].decode("utf-8", "replace").partition(" ")
            raise DetachFailed(int(code) if code.isdigit() else 126, message)
        if answer:
            raise _refusal(answer, None)

    def wait(self, timeout: float | None, look: Callable[[], bool] | None) -> int | None:
        """Follow the command to its end; its exit code, or None when it ran out of time or ``look`` asked to end it.

        ``look`` is called about every 20 ms. The tree has been ended when this returns None; leaving the call by an
        exception ends it too.
        """
        started = time.monotonic()
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.register(self.init, select.POLLIN)
        pause = 5.0
        while True:
            remaining = None if timeout is None else started + timeout - time.monotonic()
            if remaining is not None and remaining <= 0:
                self.end()
                self._finish()
                return None
            ready = dict(poll.poll(pause if remaining is None else min(pause, max(remaining * 1000, 1))))
            if self.init in ready:
                self._check_init()
            busy = [output.pump() for output in self.outputs]
            if self.pidfd in ready:
                return self._outcome()
            if look is not None and look():
                self.end()
                self._finish()
                return None
            pause = 2.0 if any(busy) else 20.0

    def _outcome(self) -> int:
        """The exit code that the init reports once all output is in the files."""
        deadline = time.monotonic() + HANDSHAKE
        pause = 0.0001
        while (report := self._report()) is None:
            self._check_init()
            if time.monotonic() > deadline:
                raise SandboxError(
                    "The sandbox's init did not report how the command ended.",
                    code="sandbox-silent",
                    state="the command has ended; what it changed remains",
                    remedy="check the free space; stop and start the sandbox",
                )
            for output in self.outputs:
                output.pump()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)
        self._finish()
        code, state = report
        if not 0 <= code <= 255:
            raise SandboxError("The sandbox's init reports nonsense.", code="sandbox-tampered")
        if state != "whole":
            raise SandboxError(
                f"Output of the command was lost because it could not be written; it ended with {code}.",
                code="sandbox-output",
                state="the command has ended; what it changed remains",
                remedy="free space on the disk of the Planarian home",
            )
        return code

    def _report(self) -> tuple[int, str] | None:
        """What the init says of the end: exit code and whether the output is whole. None while it says nothing."""
        text = os.pread(self._result, 64, 0)
        if text.endswith(b"\n"):
            code, _, state = text.decode("ascii", "replace").strip().partition(" ")
            return (int(code) if code.isdigit() else -1), state
        size = os.fstat(self._result).st_size
        if size >= WHOLE and not text.strip(b"\0"):  # no room on the disk for words
            return (size - LOST, "lost") if size >= LOST else (size - WHOLE, "whole")
        return (-1, "") if len(text) >= 64 else None

    def _finish(self) -> None:
        for output in self.outputs:
            output.finish()

    def end(self) -> None:
        """End the call's whole tree, its output complete in the files then. SandboxError when it can't be ended."""
        if self.group:
            cgroups.kill(self.group)
            gone = exited(self.pidfd, 10.0)
        else:
            namespace = pid_namespace(self.live.init_pid)
            gone = namespace is None or exited(self.pidfd) or end_below(self.pid, namespace)
        if not gone:
            # It forks faster than we can end it: the sandbox as a whole is the only handle that is left.
            kill(self.init)
            raise SandboxError(
                "The command could not be ended, so the whole sandbox was.",
                code="sandbox-runaway",
                state="nothing runs in the sandbox",
                remedy=GONE_REMEDY,
            )
        deadline = time.monotonic() + 5.0
        while self._result >= 0 and self._report() is None and time.monotonic() < deadline and not exited(self.init):
            time.sleep(0.0005)


def _memory_file(name: str, content: bytes = b"") -> int:
    """A new file in memory, open for reading and writing. With content nobody can change it any more."""
    descriptor = -1
    try:
        descriptor = os.memfd_create(f"planarian-{name}", os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if content else 0))
        if content:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.lseek(descriptor, 0, os.SEEK_SET)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise SandboxError(
            f"A call's files can't be made: {error}.",
            code="sandbox-memory",
            state="nothing was run",
            remedy="free some memory, or raise the limit on open files (ulimit -n)",
        ) from error
    return descriptor


def _appending(descriptor: int) -> int:
    """A second description of a memory file, for the init to append to."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


def forget_calls(init_pid: int) -> None:
    """Remove the files of calls that nobody follows any more; those of a running call can go too, being open."""
    with contextlib.suppress(OSError), Inside.of_init(init_pid) as root:
        for place in (CALLS, f"{RUNTIME}/{LISTENING}"):
            with root.directory(place.lstrip("/")) as directory:
                for name in list(directory.names(10_000)):
                    if name != "agent.sock" and not name.endswith(".stdin"):
                        directory.remove(name)
                directory.settle()


class DetachFailed(Exception):
    """A detached command could not be executed: its exit code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def _refusal(answer: bytes, frame: Frame | None) -> SandboxError:
    text = answer[1:].decode("utf-8", "replace")[:500] or "no reason given"
    where = f" in {frame.cwd}" if frame is not None else ""
    return SandboxError(
        f"The sandbox can't run the command{where}: {text}.",
        code="sandbox-refused",
        state="nothing was run",
    )


def _receive_with_pid(connection: socket.socket) -> tuple[bytes, int]:
    """The first answer, and the host pid of the process that sent it, as the kernel attests."""
    answer, extra, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(12))
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= 12:
            return answer, int(struct.unpack("3i", data[:12])[0])
    if answer:
        return answer, 0
    raise OSError("the connection was closed")
