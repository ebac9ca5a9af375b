"""Requests to a server behind pipes: made from any thread, each answered where the answer's line comes in. Through a
session of the SDK a call that a thread makes would take two turns of the event loop more, and several tasks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any

from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse

from planarian_mcp import wire
from planarian_mcp.wire import LineWriter, Raw


class Lost(Exception):
    """The connection ended before the answer came."""

    def __init__(self) -> None:
        super().__init__("the connection was lost")


class PipeRequests:
    """What is asked through a writer; whoever reads hands all messages to :meth:`take`, and tells the end."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._numbers = itertools.count(1)
        self._open: dict[Any, Future[Raw]] = {}
        self._lock = threading.Lock()
        self._over = False

    def send(self, method: str, params: Mapping[str, Any]) -> Future[Raw]:
        """Ask. The future has the result, or raises MCPError (the server's own error) or :class:`Lost`; one that is
        cancelled is cancelled there too.
        """
        number = next(self._numbers)
        future: Future[Raw] = Future()
        with self._lock:
            if self._over:
                future.set_exception(Lost())
                return future
            self._open[number] = future
        self._writer.write(wire.line(method, params, id=number))
        future.add_done_callback(partial(self._done, number, method))
        return future

    def _done(self, number: int, method: str, future: Future[Raw]) -> None:
        with self._lock:
            self._open.pop(number, None)
        if future.cancelled() and method != "initialize":  # which may not be cancelled
            why = {"requestId": number, "reason": "it is not waited for any more"}
            self._writer.write(wire.line("notifications/cancelled", why))

    def take(self, message: SessionMessage) -> bool:
        """Whether a message is the answer to a request of ours; it is settled then."""
        answer = message.message
        if not isinstance(answer, JSONRPCResponse | JSONRPCError) or answer.id is None:
            return False
        future = self._open.get(coerce_request_id(answer.id))
        if future is None:
            return False
        with suppress(InvalidStateError):  # cancelled a moment ago
            if isinstance(answer, JSONRPCResponse):
                future.set_result(answer.result)
            else:
                error = answer.error
                future.set_exception(MCPError(code=error.code, message=error.message, data=error.data))
        return True

    def end(self) -> None:
        """No answer will come any more."""
        with self._lock:
            self._over = True
            left = list(self._open.values())
        for future in left:
            with suppress(InvalidStateError):
                future.set_exception(Lost())
