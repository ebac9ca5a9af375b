"""Answers ``planarian`` commands from inside while a call runs (the other end is ``request_client.py``).

Requests are files that the sandbox writes: each is opened without following links, bounded, and its claimed pid is
believed only if a process of this sandbox has it and the file belongs to the same user.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
from collections.abc import Callable, Iterator

from planarian_core.errors import SandboxError
from planarian_core.interfaces import AgentReply, AgentRequest, RequestHandler
from planarian_sandbox.inside import Inside, tampering

REQUESTS = "requests"
LISTENING = "listening"
_REQUEST = re.compile(r"([0-9a-zA-Z]{1,32})\.[0-9]{1,10}\.[0-9a-f]{12}\.request")
_CALL = re.compile(r"[0-9a-f]{16}")
_LEADER = re.compile(rb"([0-9]{1,10}) ([0-9]{1,20})\n")
_PID = re.compile(r"[0-9]{1,10}")
_REQUEST_LIMIT = 256 * 1024
_REPLY_LIMIT = 16 * 1024 * 1024
_NAMES = 2000
_ARGUMENTS = 1000
_ANNOUNCEMENTS = 20

Requester = Callable[[int, int], tuple[int, ...] | None]
"""Given the inside pid that a request claims and the user whose file it is: the inside pids of that process and its
ancestors below the init; None when the sandbox has no such process of that user."""


def program(python: str, client: str, place: str) -> bytes:
    """The text of the ``planarian`` command, given inside paths of the interpreter, the client and its place."""
    return f'#!/bin/sh\nexec {shlex.join([python, "-I", "-S", client, place])} "$@"\n'.encode(errors="surrogateescape")


class RequestListener:
    """Serves the requests that belong to one call, and those that belong to no call that is listened to.

    Args:
        place: the directory with :data:`REQUESTS` and :data:`LISTENING`; stays the caller's to close.
        call_id: the call's ID, letters and digits.
        requester: who a request comes from.
        handler: decides the answer.
    """

    def __init__(self, place: Inside, call_id: str, requester: Requester, handler: RequestHandler) -> None:
        self._place = place
        self._call_id = call_id
        self._requester = requester
        self._handler = handler
        self._abandoned: set[str] = set()
        self.ended = False

    def __enter__(self) -> RequestListener:
        with tampering("Requests can't be listened to"), contextlib.ExitStack() as stack:
            self._requests = stack.enter_context(self._place.directory(REQUESTS))
            self._listening = stack.enter_context(self._place.directory(LISTENING))
            self._sweep()
            self._lock = self._announce()
            stack.callback(os.close, self._lock)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack, contextlib.suppress(OSError):
            self._listening.remove(self._call_id)
            self._listening.settle()
            self._requests.settle()

    def _announce(self) -> int:
        """Make this call's file and lock it; again where another call just looked at it, or a process inside was
        faster to lock it.
        """
        for _ in range(_ANNOUNCEMENTS):
            lock = self._listening.create(self._call_id, 0o644)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_nlink:
                    return lock
            os.close(lock)
            with contextlib.suppress(FileNotFoundError):
                self._listening.remove(self._call_id)
        raise SandboxError(
            "Something inside the sandbox keeps the files of its tool calls locked.",
            code="sandbox-hostile",
            state="the command was not run",
            remedy="end what does that, or roll back: planarian rollback",
        )

    def leads(self, pid: int, started: int) -> None:
        """Note the call's first process, a host pid and its start time, for whoever has to end an abandoned call."""
        with contextlib.suppress(OSError):  # no room; the mark in its environment is left
            os.write(self._lock, f"{pid} {started}\n".encode())

    def _sweep(self) -> None:
        """Know the calls whose runtime was killed, and remove what can't be of a call. The files of the former stay
        until the calls have been ended (:func:`abandoned_calls`).
        """
        for name in _unlocked(self._listening):
            if _CALL.fullmatch(name):
                self._abandoned.add(name)
            else:
                with contextlib.suppress(OSError):
                    self._listening.remove(name)

    def look(self) -> bool:
        """Answer what is waiting; True when an answer ends the call."""
        for name in list(self._requests.names(_NAMES)):
            matched = _REQUEST.fullmatch(name)
            if matched is None or not self._is_ours(matched[1]):
                continue
            if self._answer(name):
                self.ended = True
                return True
        return False

    def _is_ours(self, call_id: str) -> bool:
        if call_id == self._call_id:
            return True
        others = set(self._listening.names(_NAMES)) - self._abandoned
        return call_id not in others and min(others, default=self._call_id) == self._call_id

    def _answer(self, name: str) -> bool:
        try:
            content, status = self._requests.read_regular(name, _REQUEST_LIMIT)
            self._requests.remove(name)
        except OSError:  # not a file, too long, gone: nothing that we would answer
            with contextlib.suppress(OSError):
                self._requests.remove(name)
            return False
        fields = [os.fsdecode(part) for part in content.split(b"\0")[: _ARGUMENTS + 1]]
        chain = self._requester(int(fields[0]), status.st_uid) if _PID.fullmatch(fields[0]) else None
        if not chain:
            reply = AgentReply(exit_code=1, stderr="the request does not come from a process of this sandbox\n")
        else:
            reply = self._handler(AgentRequest(argv=tuple(fields[1:]), chain=chain))
            if reply.ends_call:
                return True
        texts = (str(reply.exit_code), reply.stdout, reply.stderr)
        parts = [text.encode("utf-8", "replace").replace(b"\0", b"")[:_REPLY_LIMIT] for text in texts]
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        with tampering("A request can't be answered"):
            self._requests.replace(name.removesuffix("request") + "reply", b"\0".join(parts), 0o600, owner)
        return False


def abandoned_calls(place: Inside) -> set[str]:
    """IDs of the calls whose runtime was killed; a sandbox can add some that never were.

    Only under the sandbox's exclusive lock: a call that just begins has a file before it has its lock.
    """
    with place.directory(LISTENING) as listening:
        return {name for name in _unlocked(listening) if _CALL.fullmatch(name)}


def leaders(place: Inside, calls: set[str]) -> dict[int, int]:
    """Host pids with start times that the calls' files name; a sandbox can write there what it likes."""
    found: dict[int, int] = {}
    with place.directory(LISTENING) as listening:
        for name in calls:
            with contextlib.suppress(OSError):
                matched = _LEADER.fullmatch(listening.read_regular(name, 64)[0])
                if matched is not None:
                    found[int(matched[1])] = int(matched[2])
    return found


def forget_abandoned_calls(place: Inside, calls: set[str]) -> None:
    """Remove the files of those calls, once they have been ended."""
    with place.directory(LISTENING) as listening:
        for name in calls:
            with contextlib.suppress(OSError):
                listening.remove(name)
        listening.settle()


def _unlocked(listening: Inside) -> Iterator[str]:
    """Names of the regular files that nobody holds the lock of."""
    for name in list(listening.names(_NAMES)):
        with contextlib.suppress(OSError):
            descriptor = listening.open_regular(name)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                os.close(descriptor)
            yield name
