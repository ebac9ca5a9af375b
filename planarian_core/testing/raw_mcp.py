"""An MCP client for tests on the bare protocol (stdio), so that they see what is really sent, and in which order."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

Message = dict[str, Any]

HELLO: Message = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "1"},
}


class RawClient:
    """A server that is started, and everything that it sends. Answers its requests by ``answers``: method to result."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        answers: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.received: list[Message] = []
        self.stderr = b""
        self._answers = answers or {}
        self._numbers = itertools.count(1)
        self._news = threading.Condition()
        self._ended = False
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    # --- sending ---

    def send(self, **message: Any) -> None:
        self.send_line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def send_line(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def start(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request; its id."""
        number = next(self._numbers)
        self.send(id=number, method=method, params=params or {})
        return number

    def response(self, number: int, timeout: float = 60) -> Message:
        """The response to a request, whole; AssertionError when none comes."""
        return self.wait(lambda message: message.get("id") == number and "method" not in message, timeout)

    def request(self, method: str, params: Mapping[str, Any] | None = None, timeout: float = 60) -> Message:
        return self.response(self.start(method, params), timeout)

    def initialize(self, **hello: Any) -> Message:
        """The handshake; the response."""
        response = self.request("initialize", {**HELLO, **hello})
        self.send(method="notifications/initialized")
        return response

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **params: Any) -> Message:
        """Call a tool; the response."""
        return self.request("tools/call", {"name": tool, "arguments": arguments or {}, **params})

    # --- receiving ---

    def wait(self, wanted: Callable[[Message], bool], timeout: float = 60) -> Message:
        """The first message that is wanted, of those received and to come."""
        deadline = time.monotonic() + timeout
        with self._news:
            while True:
                for message in self.received:
                    if wanted(message):
                        return message
                left = deadline - time.monotonic()
                assert not self._ended, f"the server ended: {self.stderr.decode(errors='replace')}"
                assert left > 0, f"nothing came in {timeout} s: {self.stderr.decode(errors='replace')}"
                self._news.wait(left)

    def notifications(self, method: str) -> list[Message]:
        """Those that came, in order."""
        return [message for message in self.received if message.get("method") == method]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            with self._news:
                self.received.append(message)
                self._news.notify_all()
            if "id" in message and message.get("method") in self._answers:
                answer = self._answers[message["method"]](message.get("params"))
                self.send(id=message["id"], result=answer)
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while data := self.process.stderr.read1(65536):  # type: ignore[attr-defined]  # it is buffered
            self.stderr += data

    # --- the end ---

    def close(self, timeout: float = 20) -> int:
        """Close its input and wait for its end; its exit code. One that doesn't end is killed, and an error."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            code = self.process.wait(timeout)
        finally:
            self.kill()
        return code

    def kill(self) -> None:
        """End it at once. Idempotent."""
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
