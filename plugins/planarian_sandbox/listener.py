"""Answers ``planarian`` commands from inside while a call runs (the other end is ``inside_client.py``).

Requests are files that the sandbox writes: each is opened without following links, bounded, and its claimed pid is
believed only if a process of this sandbox has it and the file belongs to the same user.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re

from planarian_core.interfaces import AgentReply, AgentRequest, RequestHandler
from planarian_core.model import LiveSandbox
from planarian_sandbox.identity import inside_pid, namespace_pids, parent_pid
from planarian_sandbox.inside import Inside, tampering
from planarian_sandbox.layout import LISTENING, REQUESTS

_REQUEST = re.compile(r"([0-9a-zA-Z]{1,32})\.[0-9]{1,10}\.[0-9a-f]{12}\.request")
_REQUEST_LIMIT = 256 * 1024
_REPLY_LIMIT = 16 * 1024 * 1024
_NAMES = 2000
_ARGUMENTS = 1000


class Listener:
    """Serves the requests that belong to one call, and those that belong to no call that is listened to."""

    def __init__(self, live: LiveSandbox, call_id: str, handler: RequestHandler) -> None:
        self._live = live
        self._call_id = call_id
        self._handler = handler
        self.ended = False

    def __enter__(self) -> Listener:
        with tampering("Requests can't be listened to"), contextlib.ExitStack() as stack:
            root = stack.enter_context(Inside.of_init(self._live.init_pid))
            self._requests = stack.enter_context(root.directory(REQUESTS.lstrip("/")))
            self._listening = stack.enter_context(root.directory(LISTENING.lstrip("/")))
            self._sweep()
            stack.callback(os.close, self._announce())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack, contextlib.suppress(OSError):
            self._listening.remove(self._call_id)

    def _announce(self) -> int:
        """Make this call's file and lock it; again where another call swept it in between."""
        while True:
            lock = self._listening.create(self._call_id, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return lock
            os.close(lock)

    def _sweep(self) -> None:
        """Remove the files of calls whose runtime was killed: nobody holds their lock."""
        for name in list(self._listening.names(_NAMES)):
            with contextlib.suppress(OSError):
                descriptor = self._listening.open_regular(name)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._listening.remove(name)
                finally:
                    os.close(descriptor)

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
        others = set(self._listening.names(_NAMES))
        return call_id not in others and min(others, default=self._call_id) == self._call_id

    def _answer(self, name: str) -> bool:
        try:
            content, status = self._requests.read_regular(name, _REQUEST_LIMIT)
        except OSError:  # not a file, too long, gone: nothing that we would answer
            with contextlib.suppress(OSError):
                self._requests.remove(name)
            return False
        self._requests.remove(name)
        fields = [os.fsdecode(part) for part in content.split(b"\0")[: _ARGUMENTS + 1]]
        chain = self._chain(fields[0], status.st_uid)
        if chain is None:
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

    def _chain(self, claimed: str, user: int) -> tuple[int, ...] | None:
        """Inside pids of the requesting process and its ancestors below the init; None when there is no such one."""
        if not claimed.isascii() or not claimed.isdigit():
            return None
        for pid in namespace_pids(self._live.init_pid)[1:]:
            if inside_pid(pid) != int(claimed) or _user(pid) != user:
                continue
            chain: list[int] = []
            current: int | None = pid
            while current is not None and current != self._live.init_pid and len(chain) < 10_000:
                inside = inside_pid(current)
                if inside is None:
                    return None
                chain.append(inside)
                current = parent_pid(current)
            return tuple(chain) if current == self._live.init_pid else None
        return None


def _user(pid: int) -> int | None:
    """The file system user id of a process."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return int(line.split()[4])
    except OSError:
        return None
    return None
