"""Starting a target server (:class:`planarian_core.interfaces.TargetServer`) as a process that never outlives us."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit, urlunsplit

from planarian_core.errors import RemoteError
from planarian_core.interfaces import TargetServer
from planarian_core.message_lines import TOO_LARGE

_KEPT = 4096
_SHOWN = 400
_SECRET = 6


def guarded_command(server: TargetServer, *, bounded: bool = False) -> list[str]:
    """The argument list that starts a stdio server so that it ends with this process, even one that is killed.

    ``bounded``: lines that are longer than ``max_message`` are taken out on the way, for a reader that holds any line.
    It wants a session of its own (``start_new_session``), as MCP's SDK gives it.

    Raises:
        RemoteError: ``service-unreachable``: there is no such command.
    """
    program, *arguments = server.command
    path = server.env.get("PATH") or os.environ.get("PATH")
    found = shutil.which(str(Path(server.cwd or ".", program)) if os.sep in program else program, path=path)
    if found is None:
        raise RemoteError(
            f"the target server's command {program!r} isn't there",
            code="service-unreachable",
            state="nothing was changed",
            remedy=f"install it, or mend command in planarian.toml (looked for in {path})",
        )
    # As it was written where it is a path, so that it means the same to the server; else what was found.
    guard = Path(__file__).with_name("server_guard.py")
    limit = [f"--limit={server.max_message}"] if bounded else []
    return [sys.executable, "-I", "-S", str(guard), *limit, str(Path(found).absolute()), *arguments]


def shown_name(server: TargetServer) -> str:
    """What people and agents are shown of a server: arguments and addresses may hold secrets."""
    if server.command:
        return Path(server.command[0]).name
    parts = urlsplit(server.url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class LastWords:
    """What a server wrote last on its standard error: bounded, for error messages. ``file`` goes to the server.

    With ``echo`` all of it is passed on to our own standard error. Values of the server's ``env`` are left out.
    """

    def __init__(self, server: TargetServer, *, echo: bool = False) -> None:
        self._secrets = sorted((value for value in server.env.values() if len(value) >= _SECRET), key=len)
        self._kept = b""
        self._echo = echo
        reading, writing = os.pipe()
        self.file: TextIO = os.fdopen(writing, "w")
        self._reading = reading
        self._ended = threading.Event()
        threading.Thread(target=self._read, name="planarian-stderr", daemon=True).start()

    def _read(self) -> None:
        with os.fdopen(self._reading, "rb", buffering=0) as pipe:
            while data := pipe.read(65536):
                self._kept = (self._kept + data)[-_KEPT:]
                if self._echo:
                    with suppress(OSError):
                        os.write(2, data)
        self._ended.set()

    def started(self) -> None:
        """The server has its end of the pipe: let go of ours. Idempotent."""
        self.file.close()

    def text(self, wait: float = 0.2) -> str:
        """The last lines, on one line; empty when it said nothing. Waits a moment for a server that is just ending."""
        self.started()
        self._ended.wait(wait)
        text = self._kept.decode(errors="replace")
        for secret in reversed(self._secrets):
            text = text.replace(secret, "…")
        return " ".join(text.split())[-_SHOWN:]


_NOT_RUN = (-32700, -32600, -32601, -32602)
"""JSON-RPC's errors of requests that weren't carried out: malformed, unknown method, tool or arguments."""
_NO_ANSWER = "Failed to parse JSON response"
"""How the SDK says, under the same codes, that it could not read what came as the answer."""
_OF_RESULT = re.compile(r"output (schema|validation)|structured content", re.IGNORECASE)
"""How SDKs say, under such a code, that a tool was run and its result isn't what it promised."""


def answered_with_error(name: str, code: int, message: str, state: str) -> RemoteError:
    """The error for a JSON-RPC error that a server gave as its answer to a call.

    ``service-error`` where that says that the call wasn't carried out, else ``service-failed``, and ``state`` holds.
    """
    text = f"{name} answered with error {code}: {message}"
    if TOO_LARGE in message:
        return RemoteError(
            f"{name}: {TOO_LARGE}{message.partition(TOO_LARGE)[2]}",
            code="result-too-large",
            state=state,
            remedy="ask for less (a LIMIT, a page, a part); a user can raise max_result in planarian.toml",
        )
    if message.startswith(_NO_ANSWER):
        return RemoteError(text, code="service-failed", state=state, remedy="see the server's own log")
    if code in _NOT_RUN and not _OF_RESULT.search(message):
        return RemoteError(text, code="service-error", state="nothing was changed")
    return RemoteError(text, code="service-failed", state=state, remedy="see the server's own log")
