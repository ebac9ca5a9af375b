"""The init of a sandbox: reaps orphans and runs commands. Stand-alone, run inside as ``python3 -I -S agent.py``.

It imports as little as it can, because its memory is part of every image. A call comes over a Unix socket as a frame
(four bytes of length, fields separated by NUL) with descriptors: the result file, the output files, the input file.
The forked child says ``P`` (its credentials tell the host its pid), waits for ``g``, and only then becomes the
command; the connection is closed before that, so that an image never holds it. Output runs through pipes that end
here and is copied into the output files, which the host reads and empties; after the call what background processes
still write is thrown away, and their pipes stay open.
"""

# ruff: noqa: SIM105, S606  # contextlib and typing would cost memory; argument lists are what exec takes
from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C part of signal, without its enumerations
import _socket
import errno
import os
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

CALLS = "/run/planarian/calls"
SOCKET = CALLS + "/agent.sock"
FRAME_LIMIT = 8 * 1024 * 1024
WINDOW = 16 * 1024 * 1024
"""Bytes that may lie unread in an output file; beyond, the command waits for the host to read on."""
CHUNK = 64 * 1024
WHOLE, LOST = 1024, 2048
"""Sizes of a result file that add to the exit code, where there was no room for words."""
CHILD_SUBREAPER = 36


class Pump:
    """One output stream of a call: from a pipe into the host's file, or into nothing once the call has ended."""

    def __init__(self, pipe: int, target: int) -> None:
        self.pipe = pipe
        self.target = target
        self.lost = False

    def full(self) -> bool:
        return self.target >= 0 and os.fstat(self.target).st_blocks * 512 > WINDOW

    def move(self) -> int:
        """Copy one piece; the number of bytes, 0 at the end of the stream, -1 when there is nothing now."""
        try:
            piece = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return -1
        if piece and self.target >= 0:
            self.write(piece)
        return len(piece)

    def write(self, piece: bytes) -> None:
        try:
            done = os.write(self.target, piece)
            while done < len(piece):
                done += os.write(self.target, piece[done:])
        except OSError:
            self.lost = True

    def drain(self) -> bool:
        """Copy what was written before now; False when the stream is at its end."""
        for _ in range(32):  # a pipe holds less than 32 pieces, so a background writer can't keep us here
            moved = self.move()
            if moved <= 0:
                return moved < 0
        return True

    def forget_target(self) -> None:
        if self.target >= 0:
            os.close(self.target)
            self.target = -1


class Agent:
    def __init__(self, subreaper: bool) -> None:
        self.jobs: dict[int, tuple[int, tuple[Pump, ...]]] = {}
        self.pumps: dict[int, Pump] = {}
        self.libc: ctypes.CDLL | None = None
        if subreaper:
            import ctypes

            self.libc = ctypes.CDLL(None)
        self.wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # for an init that means: ignored
        self.listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            os.unlink(SOCKET)
        except FileNotFoundError:
            pass
        os.umask(0o077)
        self.listener.bind(SOCKET)
        os.umask(0o022)
        self.listener.listen(64)

    def serve(self) -> None:
        while True:
            for descriptor in self.wait():
                if descriptor == self.wakeup:
                    os.read(self.wakeup, 4096)
                elif descriptor == self.listener.fileno():
                    self.accept()
                elif descriptor in self.pumps and self.pumps[descriptor].move() == 0:
                    self.close_pump(descriptor)
            self.reap()

    def wait(self) -> list[int]:
        """Descriptors with something to do. A stream whose file is full is looked at again a little later."""
        poll = select.poll()
        poll.register(self.wakeup, select.POLLIN)
        poll.register(self.listener.fileno(), select.POLLIN)
        timeout = -1
        for descriptor, pump in self.pumps.items():
            if pump.full():
                timeout = 5
            else:
                poll.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poll.poll(timeout)]

    def close_pump(self, descriptor: int) -> None:
        self.pumps.pop(descriptor).forget_target()
        os.close(descriptor)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.jobs:
                self.finish(*self.jobs.pop(pid), exit_code(status))

    def finish(self, result: int, pumps: tuple[Pump, ...], code: int) -> None:
        """The command has ended: its output is complete in the files before the result says so."""
        for pump in pumps:
            if pump.pipe in self.pumps and not pump.drain():
                self.close_pump(pump.pipe)
            pump.forget_target()
        lost = any(pump.lost for pump in pumps)
        try:
            os.write(result, f"{code} {'lost' if lost else 'whole'}\n".encode())
        except OSError:  # the disk is full; a file's size can be told without a block
            os.ftruncate(result, (LOST if lost else WHOLE) + code)
        os.close(result)

    def accept(self) -> None:
        try:
            descriptor, _ = self.listener._accept()  # type: ignore[attr-defined]  # its C part
        except OSError:
            return
        connection = _socket.socket(fileno=descriptor)
        connection.settimeout(5)
        handed: list[int] = []
        try:
            fields = receive(connection, handed)
            self.begin(connection, fields, handed)
        except (OSError, ValueError, IndexError) as error:
            try:
                connection.send(f"F{error}".encode(errors="replace"))
            except OSError:
                pass
        finally:
            connection.close()
            for descriptor in handed:
                os.close(descriptor)

    def begin(self, connection: _socket.socket, fields: list[bytes], handed: list[int]) -> None:
        """Fork the child of a call. Of ``handed`` what the call keeps is taken out."""
        detach = fields[0] == b"detach"
        result, out, err = (-1, -1, -1) if detach else handed[:3]
        standard_input = handed[0 if detach else 3] if len(handed) > (0 if detach else 3) else -1
        pipes: list[int] = [] if detach else [*os.pipe(), *os.pipe()]
        for descriptor in pipes:
            os.fchmod(descriptor, 0o666)  # so that another user's command can open /dev/stdout
        try:
            pid = os.fork()
        except OSError:
            for descriptor in pipes:
                os.close(descriptor)
            raise
        if pid == 0:
            child(connection, fields, standard_input, (pipes[1], pipes[3]) if pipes else None, self.libc)
        if not detach:
            os.close(pipes[1])
            os.close(pipes[3])
            pumps = (Pump(pipes[0], out), Pump(pipes[2], err))
            for pump in pumps:
                os.set_blocking(pump.pipe, False)
                self.pumps[pump.pipe] = pump
            self.jobs[pid] = (result, pumps)
            del handed[:3]


def exit_code(status: int) -> int:
    """As a shell tells it. Python before 3.9 may be the sandbox's, so nothing newer is used here."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def receive(connection: _socket.socket, handed: list[int]) -> list[bytes]:
    """One frame: its fields; the descriptors that came with it are put into ``handed``."""
    head, extra, _, _ = connection.recvmsg(4, 1024, _socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in extra:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            count = len(data) // 4
            handed.extend(int.from_bytes(data[i * 4 : i * 4 + 4], sys.byteorder) for i in range(count))
    while len(head) < 4:
        head += more(connection, 4 - len(head))
    length = int.from_bytes(head, "big")
    if length > FRAME_LIMIT:
        raise ValueError("the call is too long")
    body = bytearray()
    while len(body) < length:
        body += more(connection, min(length - len(body), 1 << 20))
    return bytes(body).split(b"\0")


def more(connection: _socket.socket, count: int) -> bytes:
    piece = connection.recv(count)
    if not piece:
        raise ValueError("the call was cut short")
    return piece


def child(
    connection: _socket.socket,
    fields: list[bytes],
    standard_input: int,
    outputs: tuple[int, int] | None,
    libc: ctypes.CDLL | None,
) -> None:
    """In the forked child, never to return: handshake, descriptors, exec.

    Fields: mode, cwd, stdout, stderr, count of arguments, arguments, environment.
    """
    try:
        _signal.set_wakeup_fd(-1)
        for number in (_signal.SIGCHLD, _signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)
        prepare(connection, fields, standard_input, outputs)
        if libc is not None and fields[0] != b"detach":
            supervise(libc, connection)
        os.setsid()
        connection.settimeout(None)
        execute(connection, fields)
    except BaseException as error:
        try:
            connection.send(f"E{error}".encode(errors="replace"))
        except OSError:
            pass
    os._exit(126)


def prepare(
    connection: _socket.socket, fields: list[bytes], standard_input: int, outputs: tuple[int, int] | None
) -> None:
    """Everything that can fail before the command runs, then the handshake."""
    os.chdir(fields[1])
    if outputs is None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        outputs = (os.open(fields[2] or b"/dev/null", flags, 0o666), os.open(fields[3] or b"/dev/null", flags, 0o666))
    if standard_input < 0:
        standard_input = os.open("/dev/null", os.O_RDONLY)
    connection.settimeout(30)
    connection.send(b"P")
    if connection.recv(1) != b"g":
        os._exit(126)
    # Moved up first, so that none of them is overwritten while the others are put in place.
    moved = [os.dup(descriptor) for descriptor in (standard_input, *outputs)]
    for number, descriptor in enumerate(moved):
        os.dup2(descriptor, number)
    kept = connection.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, 1 << 20)


def supervise(libc: ctypes.CDLL, connection: _socket.socket) -> None:
    """Without control groups: stay above the command, so that all it starts stays below this process until its end."""
    libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    pid = os.fork()
    if pid == 0:
        return
    connection.close()
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            os._exit(exit_code(status))


def execute(connection: _socket.socket, fields: list[bytes]) -> None:
    """Never returns: become the command. A detached call's connection lives until exec, to tell of its failure."""
    count = int(fields[4])
    argv = fields[5 : 5 + count]
    env = dict(pair.split(b"=", 1) for pair in fields[5 + count :] if pair)
    if fields[0] != b"detach":
        connection.close()
    try:
        os.execve(find(argv[0], env), argv, env)
    except OSError as error:
        name = os.fsdecode(argv[0])
        message = f"planarian: {name}: {error.strerror}\n"
        code = 127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126
        if fields[0] == b"detach":
            connection.send(f"X{code} {message}".encode(errors="replace"))
        else:
            os.write(2, message.encode(errors="replace"))
        os._exit(code)


def find(name: bytes, env: dict[bytes, bytes]) -> bytes:
    """The program that a name stands for. Looked up by stat, for a failed exec takes far longer."""
    if b"/" in name:
        return name
    for directory in env.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        path = (directory or b".") + b"/" + name
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(errno.ENOENT, "not found")


if __name__ == "__main__":
    Agent("subreaper" in sys.argv[1:]).serve()
