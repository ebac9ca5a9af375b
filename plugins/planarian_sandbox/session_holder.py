"""Keeps one persistent bash for a session; runs inside the sandbox (or on the host, for ``directory``).

Stand-alone, standard library only: ``python3 -I -S session_holder.py DIR``. The working directory and environment it
is started with are those of the session's shell. All traffic goes through files in DIR, which lies inside the sandbox:
no descriptor leads outside, so an image of the processes can be taken at any time, also in the middle of a command.

Protocol (host side: ``session_client.py``). ID is ``[A-Za-z0-9_-]{1,64}``, new for each command.

1. The caller makes ``ID.sh`` (shell text) and empty ``ID.out``, ``ID.err``; optionally ``ID.in`` (standard input, else
   ``/dev/null``), then writes the line ``run ID`` to the FIFO ``ctl``. Opening ``ctl`` with ``O_WRONLY|O_NONBLOCK``
   gives ENXIO or ENOENT when no holder lives: start one; ``ctl`` appears (by rename) when it is ready.
2. While the command runs, ``busy`` holds its ID. Further ``run`` lines wait their turn.
3. ``ID.rc`` appears by rename when the command has ended: ``CODE STATE`` and a newline. STATE is ``alive`` (the shell
   goes on), ``ended`` (the command ended the shell: exit, exec, set -e) or ``killed`` (only killing the shell ended
   the command). After the last two the next command gets a fresh shell.
4. ``interrupt ID`` ends the command with everything it started (setsid and nohup children too): first by SIGINT, as
   Ctrl-C does, then its processes are killed, at last the shell. ``ID.rc`` then appears as in 3. Background
   processes of earlier commands live on. An ID that isn't running is ignored.

The caller removes its files. Output runs through FIFOs that the holder empties into ``ID.out`` and ``ID.err``: unlike
a file, ``>/dev/stderr`` can't empty them. What background processes write after their command has ended is dropped.

How it holds: bash is interactive (``-i``) with a pty as its controlling terminal, so
that Ctrl-C returns to the top level, but reads its input from a pipe. Each command is one line that evaluates the text
with redirected output, and one that makes a file whose *name* carries the status: a null command with a redirection,
which no function, alias or option of the session can change. What is written to the terminal itself is dropped.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import functools
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

GRACE = 0.4
"""Seconds that each step of an interrupt is given before the next."""
SLOWEST_POLL = 0.25
"""Seconds between looks for a result, at most, when no prompt announced it."""
_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_PR_SET_CHILD_SUBREAPER = 36


def quote(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


# --- processes ----------------------------------------------------------------------------------------------------


def descendants(root: int) -> set[tuple[int, str]]:
    """All processes below ``root``: pid and start time (empty where there is no /proc)."""
    listed = os.path.exists(f"/proc/self/task/{root}/children")
    below = _listed_children if listed else functools.partial(_children_among, _parents())
    found: set[int] = set()
    waiting = [root]
    while waiting:
        fresh = set(below(waiting.pop())) - found
        found |= fresh
        waiting.extend(fresh)
    return {(pid, _started(pid)) for pid in found}


def _listed_children(pid: int) -> list[int]:
    """The children of all threads of a process, as the kernel lists them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as stream:
                found.extend(map(int, stream.read().split()))
    return found


def _parents() -> list[tuple[int, int]]:
    """Every process with its parent, where the kernel doesn't list children (macOS, some kernels)."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, timeout=10, check=False)
    pairs = (line.split()[:2] for line in listing.stdout.splitlines())
    return [(int(pid), int(parent)) for pid, parent in pairs]


def _children_among(parents: list[tuple[int, int]], pid: int) -> list[int]:
    return [child for child, parent in parents if parent == pid]


def _started(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def marked_otherwise(pid: int, call: str) -> bool:
    """Whether the process says that it belongs to another command of the session (an earlier one's child)."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            variables = stream.read(1 << 20).split(b"\0")
    except OSError:
        return False
    marks = [item for item in variables if item.startswith(b"PLANARIAN_CALL=")]
    return bool(marks) and marks[0] != b"PLANARIAN_CALL=" + call.encode()


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def collect_orphans() -> None:
    """Become the parent of whatever double-forks in the session, so that nothing leaves its tree (Linux only)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# --- the shell ----------------------------------------------------------------------------------------------------


class Shell:
    """A bash on a pty of its own, fed through a pipe."""

    def __init__(self) -> None:
        source, self.feed = os.pipe()
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            self._become_bash(source)
        os.close(source)

    @staticmethod
    def _become_bash(source: int) -> None:
        """In the child; never returns."""
        try:
            os.dup2(source, 0)
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            environment = dict(os.environ, PS1="$ ", PS2="", TERM="dumb", PLANARIAN_CALL="none")
            for name in ("PROMPT_COMMAND", "HISTFILE", "BASH_ENV", "ENV", "TMOUT"):
                environment.pop(name, None)
            arguments = ["bash", "--noprofile", "--norc", "--noediting", "+H", "-i"]
            with contextlib.suppress(OSError):
                os.execve("/bin/bash", arguments, environment)  # noqa: S606 - a shell is what is wanted
            os.execvpe("bash", arguments, environment)  # noqa: S606 - the same
        finally:
            os._exit(127)

    def write(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.feed, line.encode("utf-8", "surrogateescape") + b"\n")

    def has_read_all(self) -> bool:
        count = array.array("i", [0])
        fcntl.ioctl(self.feed, termios.FIONREAD, count)
        return count[0] == 0

    def interrupt(self) -> None:
        """What Ctrl-C does, whatever the terminal's settings."""
        foreground = array.array("i", [0])
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.terminal, termios.TIOCGPGRP, foreground)
            if foreground[0] > 0 and foreground[0] != self.pid:
                os.killpg(foreground[0], signal.SIGINT)
        send(self.pid, signal.SIGINT)

    def close(self) -> None:
        os.close(self.terminal)
        os.close(self.feed)


class Pump:
    """Moves what is written into a FIFO to a file, until :meth:`finish`, and from then on to nowhere."""

    def __init__(self, fifo: str, target: str) -> None:
        self.fifo = fifo
        os.mkfifo(fifo, 0o600)
        # our own writer keeps the FIFO from ending before the shell has opened it
        self.reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.writer = os.open(fifo, os.O_WRONLY | os.O_CLOEXEC)
        self.target = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def move(self) -> bool:
        """Move what is there, at most as much as a pipe holds; False when everybody has closed it."""
        for _ in range(16):
            try:
                piece = os.read(self.reader, 65536)
            except BlockingIOError:
                return True
            if not piece:
                return False
            while piece and self.target >= 0:
                try:
                    piece = piece[os.write(self.target, piece) :]
                except OSError:  # a full disk: the rest is lost, as it would be for any program
                    break
        return True

    def finish(self) -> bool:
        """The command has ended: deliver what it wrote. True when somebody may still write."""
        os.close(self.writer)
        left = self.move()
        os.close(self.target)
        self.target = -1
        with contextlib.suppress(OSError):
            os.unlink(self.fifo)
        if not left:
            os.close(self.reader)
        return left


class Call:
    """A command that runs."""

    def __init__(self, name: str, before: set[tuple[int, str]], pumps: list[Pump]) -> None:
        self.name = name
        self.before = before
        self.pumps = pumps
        self.pause = 0.01
        self.step = 0
        self.deadline = 0.0
        self.killed = False


# --- the holder ---------------------------------------------------------------------------------------------------


class Holder:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.shell: Shell | None = None
        self.status = 0
        self.call: Call | None = None
        self.waiting: list[str] = []
        self.background: list[Pump] = []
        self.replies: dict[str, str] = {}
        self.partial = b""
        self.wake, wake_writer = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        self._take_over()
        self.control = self._make_control()

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _take_over(self) -> None:
        """Be the only holder here: one whose FIFO was lost can't be reached any more and is ended."""
        self.lock = os.open(self.path("holder"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        for _ in range(100):
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                predecessor = os.pread(self.lock, 20, 0).strip()
                if predecessor.isdigit() and int(predecessor) > 1:
                    send(int(predecessor), signal.SIGKILL)
                time.sleep(0.02)
        else:
            raise SystemExit("another holder does not give way")
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, b"%d\n" % os.getpid(), 0)

    def _make_control(self) -> int:
        """The FIFO appears under its name when it is open, so whoever finds it can use it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("busy"))
        fresh = self.path("ctl.new")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
        os.mkfifo(fresh, 0o600)
        control = os.open(fresh, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.rename(fresh, self.path("ctl"))
        return control

    def serve(self) -> None:
        while True:
            watched = [self.control, self.wake]
            if self.shell is not None:
                watched.append(self.shell.terminal)
            pumps = [*self.background, *(self.call.pumps if self.call else ())]
            watched += [pump.reader for pump in pumps]
            ready, _, _ = select.select(watched, [], [], self._pause())
            if self.control in ready:
                self._read_control()
            if self.wake in ready:
                os.read(self.wake, 4096)
            if self.shell is not None and self.shell.terminal in ready:
                with contextlib.suppress(OSError):  # EIO: nobody has the terminal open
                    os.read(self.shell.terminal, 65536)
            for pump in pumps:
                if pump.reader in ready and not pump.move() and pump in self.background:
                    os.close(pump.reader)
                    self.background.remove(pump)
            self._reap()
            self._look_for_result()
            self._press()
            self._deliver()
            self._begin_next()

    def _pause(self) -> float | None:
        """How long to sleep. While nothing runs there is no timer at all: an idle session's threads never run."""
        if self.call is None:
            return SLOWEST_POLL if self.replies else None
        self.call.pause = min(self.call.pause * 2, SLOWEST_POLL)
        return self.call.pause

    def _read_control(self) -> None:
        data = self.partial + os.read(self.control, 65536)
        *lines, self.partial = data.split(b"\n")
        self.partial = self.partial[-200:]
        for line in lines:
            verb, _, name = line.partition(b" ")
            if not _ID.fullmatch(name):
                continue
            if verb == b"run":
                self.waiting.append(name.decode())
            elif verb == b"interrupt":
                self._interrupt(name.decode())

    def _interrupt(self, name: str) -> None:
        if name in self.waiting:
            self.waiting.remove(name)
            self.replies[name] = "130 alive"
        elif self.call is not None and self.call.name == name and self.call.step == 0:
            self.call.step = 1
            self.call.deadline = 0.0

    # a command's course

    def _begin_next(self) -> None:
        if self.call is not None or not self.waiting:
            return
        name = self.waiting.pop(0)
        if self.shell is None:
            self.status = 0
            self.shell = Shell()
        base = self.path(name)
        try:
            pumps = [Pump(base + ".1", base + ".out"), Pump(base + ".2", base + ".err")]
        except OSError:  # its files are gone, or the disk is full
            self.replies[name] = "126 alive"
            return
        self.call = Call(name, descendants(os.getpid()), pumps)
        self._write_file("busy", name)
        send(self.shell.pid, signal.SIGCONT)  # an earlier command may have suspended it
        source = quote(base + ".in") if os.path.exists(base + ".in") else "/dev/null"
        # $? of the command before; in a list with && it is exempt from set -e and the ERR trap
        before = f"'(exit {self.status}) && : ;'" if self.status else ""
        self.shell.write(f"PLANARIAN_CALL={name}")
        self.shell.write(
            f'\\eval {before}"$(<{quote(base + ".sh")})" <{source} >>{quote(base + ".1")} 2>>{quote(base + ".2")}'
        )
        self.shell.write("PLANARIAN_STATUS=$?")
        self._ask_for_status()

    def _ask_for_status(self) -> None:
        if self.shell is not None and self.call is not None:
            self.shell.write(f'>|{quote(self.path(self.call.name) + ".code.")}"$PLANARIAN_STATUS"')

    def _look_for_result(self) -> None:
        if self.call is None:
            return
        prefix = self.call.name + ".code."
        try:
            found = [name for name in os.listdir(self.directory) if name.startswith(prefix)]
        except OSError:
            found = []
        if found:
            code = found[0][len(prefix) :]
            with contextlib.suppress(OSError):
                os.unlink(self.path(found[0]))
            self.status = int(code) if code.isdigit() else 1
            self._end_call(self.status, "alive")
        elif self.shell is not None and self.call.pause >= SLOWEST_POLL and self.shell.has_read_all():
            self.call.pause = SLOWEST_POLL / 2
            self._ask_for_status()  # the file could not be made (disk full): again, until it can

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.shell is not None and pid == self.shell.pid:
                self._shell_ended(os.waitstatus_to_exitcode(status))

    def _shell_ended(self, code: int) -> None:
        self._look_for_result()
        if self.shell is not None:
            self.shell.close()
            self.shell = None
        if self.call is not None:
            self._end_call(code if code >= 0 else 128 - code, "killed" if self.call.killed else "ended")

    def _end_call(self, code: int, state: str) -> None:
        call, self.call = self.call, None
        if call is None:
            return
        if call.step:
            self._kill_tree(call)
        self.background += [pump for pump in call.pumps if pump.finish()]
        self.replies[call.name] = f"{code} {state}"
        with contextlib.suppress(OSError):
            os.unlink(self.path("busy"))

    def _press(self) -> None:
        """Take the next step of an interrupt when its time has come."""
        call = self.call
        if call is None or not call.step or self.shell is None or time.monotonic() < call.deadline:
            return
        if call.step == 1:
            self.shell.interrupt()
        elif call.step == 2:
            self._kill_tree(call)
            self.shell.interrupt()
        else:
            call.killed = True
            send(self.shell.pid, signal.SIGKILL)
            self._kill_tree(call)
        call.step += 1
        call.pause = 0.01
        call.deadline = time.monotonic() + GRACE

    def _kill_tree(self, call: Call) -> None:
        """Kill everything that the command started. Stopped first, so that nothing forks away meanwhile.

        The shell stands still too, so that it sees its children killed rather than stopped.
        """
        stopped: set[int] = set()
        if self.shell is not None:
            send(self.shell.pid, signal.SIGSTOP)
        for _ in range(100):
            fresh = {
                pid
                for pid, _ in descendants(os.getpid()) - call.before
                if pid not in stopped and not marked_otherwise(pid, call.name)
            }
            if not fresh:
                break
            for pid in fresh:
                send(pid, signal.SIGSTOP)
            stopped |= fresh
        for pid in stopped:
            send(pid, signal.SIGKILL)
        if self.shell is not None:
            send(self.shell.pid, signal.SIGCONT)

    def _deliver(self) -> None:
        for name, text in list(self.replies.items()):
            if self._write_file(name + ".rc", text):
                del self.replies[name]

    def _write_file(self, name: str, text: str) -> bool:
        """Write by rename; False when it can't be done now."""
        try:
            with open(self.path(name + ".new"), "w", encoding="ascii") as stream:
                stream.write(text + "\n")
            os.rename(self.path(name + ".new"), self.path(name))
        except OSError:
            return False
        return True


def main() -> None:
    """Leave the starter's session and descriptors, then serve until killed."""
    if os.getpid() != os.getsid(0):
        with contextlib.suppress(PermissionError):
            os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, 65536)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    collect_orphans()
    Holder(os.path.abspath(sys.argv[1])).serve()


if __name__ == "__main__":
    main()
