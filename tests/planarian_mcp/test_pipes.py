"""Requests and messages through real pipes, from several threads at once."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import JSONRPCNotification

from planarian_mcp import wire
from planarian_mcp.pipe_requests import Lost, PipeRequests
from planarian_mcp.wire import LineReader, LineWriter


@contextmanager
def server_side(reading: int, writing: int) -> Iterator[tuple[Any, Any]]:
    with os.fdopen(reading, "rb") as received, os.fdopen(writing, "wb", buffering=0) as sent:
        yield received, sent


def test_messages_of_many_threads_stay_whole_behind_a_slow_reader() -> None:
    """Far more than a pipe holds, so that most of it is written by the event loop."""
    reading, writing = os.pipe()
    threads, each, size = 4, 20, 100_000

    async def main() -> list[dict[str, Any]]:
        writer = LineWriter(writing)

        def write(name: int) -> None:
            for number in range(each):
                params = {"thread": name, "number": number, "text": "x" * size}
                writer.write(wire.dump(JSONRPCNotification(jsonrpc="2.0", method="m", params=params)))

        writers = [threading.Thread(target=write, args=(name,)) for name in range(threads)]
        for thread in writers:
            thread.start()
        with os.fdopen(reading, "rb") as pipe:
            lines = await asyncio.to_thread(lambda: [pipe.readline() for _ in range(threads * each)])
        for thread in writers:
            thread.join()
        writer.close()
        return [json.loads(line)["params"] for line in lines]

    found = asyncio.run(main())
    assert all(len(params["text"]) == size for params in found)
    for name in range(threads):
        assert [params["number"] for params in found if params["thread"] == name] == list(range(each))


def test_answers_find_their_requests_whatever_their_order() -> None:
    to_us, to_server = os.pipe(), os.pipe()

    async def main() -> None:
        writer = LineWriter(to_server[1])
        requests = PipeRequests(writer)
        reader = LineReader(take=requests.take, ended=requests.end)
        await asyncio.get_running_loop().connect_read_pipe(lambda: reader, os.fdopen(to_us[0], "rb", buffering=0))
        with server_side(to_server[0], to_us[1]) as (received, sent):
            good, bad, cancelled, never = (requests.send("ask", {"n": n}) for n in range(4))
            asked = [json.loads(received.readline()) for _ in range(4)]
            cancelled.cancel()
            told = json.loads(received.readline())
            assert told["method"] == "notifications/cancelled"
            assert told["params"]["requestId"] == asked[2]["id"]
            error = {"code": -7, "message": "no", "data": {"why": 1}}
            answers = [
                {"id": asked[2]["id"], "result": {"too": "late"}},
                {"id": asked[1]["id"], "error": error},
                {"id": str(asked[0]["id"]), "result": {"n": 0}},  # some servers make texts of numbers
                {"id": 1000, "result": {"of": "nothing"}},
            ]
            sent.write(b"".join(json.dumps({"jsonrpc": "2.0", **answer}).encode() + b"\n" for answer in answers))
            assert await asyncio.wrap_future(good) == {"n": 0}
            with pytest.raises(MCPError) as raised:
                await asyncio.wrap_future(bad)
            assert raised.value.error.model_dump() == error
            with pytest.raises(CancelledError):
                cancelled.result()
            assert not never.done()
        with pytest.raises(Lost):
            await asyncio.wrap_future(never)
        with pytest.raises(Lost):
            await asyncio.wrap_future(requests.send("ask", {}))
        writer.close()

    asyncio.run(main())


def test_a_session_gets_what_nobody_took_and_the_end() -> None:
    reading, writing = os.pipe()
    count = 5000  # more than are held at once

    async def main() -> tuple[int, list[str]]:
        reader = LineReader(take=lambda message: getattr(message.message, "method", "") == "taken")
        await asyncio.get_running_loop().connect_read_pipe(lambda: reader, os.fdopen(reading, "rb", buffering=0))

        def write() -> None:
            with os.fdopen(writing, "wb") as pipe:
                for number in range(count):
                    for method in ("taken", f"left {number}"):
                        pipe.write(json.dumps({"jsonrpc": "2.0", "method": method}).encode() + b"\n")

        thread = threading.Thread(target=write)
        thread.start()
        await asyncio.sleep(0.2)  # nobody reads yet
        held = len(reader._held)
        found = [message.message.method async for message in reader]  # type: ignore[union-attr]
        thread.join()
        return held, found

    held, found = asyncio.run(main())
    assert found == [f"left {number}" for number in range(count)]
    assert held < count
