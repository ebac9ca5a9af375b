"""The host's side of :mod:`planarian_sandbox.agent_client`: finds and answers requests from inside a sandbox.

The directory is untrusted: reached by descriptor, no link followed, reads bounded, anything unreadable dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planarian_core.interfaces import AgentReply, AgentRequest, RequestHandler

_LARGEST = 64 * 1024
_NAME = re.compile(r"([A-Za-z0-9_-]{1,64})\.([0-9a-f]{12})\.req")
NOBODY = AgentReply(exit_code=69, stderr="planarian: nobody listens to requests of this call\n")


@dataclass(frozen=True)
class _Pending:
    base: str
    argv: tuple[str, ...]
    pid: int


class RequestServer:
    """Answers the requests of one call.

    Args:
        directory: descriptor of the requests directory; stays the caller's to close.
        call: the call's ID; requests that name no call are taken too.
        chain: turns the inside pid that a request claims into the inside pids of it and its ancestors below init;
            empty when it is none of the sandbox's.
        handler: decides the answer; without one every request is told that nobody listens.
    """

    def __init__(
        self, directory: int, call: str, chain: Callable[[int], tuple[int, ...]], handler: RequestHandler | None
    ) -> None:
        self._directory = directory
        self._calls = (call, "any")
        self._chain = chain
        self._handler = handler

    def serve(self) -> bool:
        """Answer what has come in; True when the call is to be ended."""
        for pending in self._take():
            reply = NOBODY
            if self._handler is not None:
                reply = self._handler(AgentRequest(pending.argv, self._chain(pending.pid)))
            if reply.ends_call:
                return True
            self._answer(pending.base, reply)
        return False

    def _take(self) -> Iterator[_Pending]:
        with os.scandir(self._directory) as entries:
            names = [entry.name for _, entry in zip(range(1000), entries, strict=False)]
        for name in names:
            match = _NAME.fullmatch(name)
            if match is None or match[1] not in self._calls:
                continue
            base = name.removesuffix(".req")
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                # the rename is the claim: one taker
                os.rename(name, base + ".taken", src_dir_fd=self._directory, dst_dir_fd=self._directory)
                request = json.loads(self._read(base + ".taken"))
                argv = tuple(item for item in request["argv"] if isinstance(item, str))
                yield _Pending(base, argv, int(request["pid"]))

    def _read(self, name: str) -> bytes:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=self._directory)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""
            return os.read(descriptor, _LARGEST)
        finally:
            os.close(descriptor)

    def _answer(self, base: str, reply: AgentReply) -> None:
        """A full disk or a vanished directory leaves the request unanswered: that is the sandbox's own doing."""
        data = json.dumps({"exit_code": reply.exit_code, "stdout": reply.stdout, "stderr": reply.stderr})
        temporary = f"{base}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            with open(os.open(temporary, flags, 0o644, dir_fd=self._directory), "w", encoding="utf-8") as stream:
                stream.write(data)
            os.rename(temporary, base + ".reply", src_dir_fd=self._directory, dst_dir_fd=self._directory)
