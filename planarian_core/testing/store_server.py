"""An MCP server for tests: a key-value store in a SQLite file, and tools for everything that can go wrong.

Stand-alone, and written on the bare protocol (stdio), so that it shows what an SDK would hide::

    python store_server.py DATABASE [--stubborn] [--modern]

``--stubborn`` ignores SIGTERM and the end of its input; ``--modern`` speaks the era of 2026 alone. The table ``events``
of the database records what happened.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

PAGE = 5
MODERN = "2026-07-28"
ENVELOPE = "io.modelcontextprotocol/"
TEXT = {"type": "string"}
NUMBER = {"type": "number"}


def _tool(name: str, required: dict[str, Any], optional: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}
    return {"name": name, "description": f"{name} of the store", "inputSchema": schema, **more}


TOOLS = [
    _tool("get", {"key": TEXT}, annotations={"readOnlyHint": True, "title": "Get", "vendorHint": "kept"}),
    _tool("put", {"key": TEXT, "value": TEXT}, annotations={"destructiveHint": True}, _meta={"store/version": 3}),
    _tool("delete", {"key": TEXT}),
    _tool("list", {}, annotations={"readOnlyHint": True}),
    _tool("notify", {"text": TEXT}),
    _tool("echo", {"value": {}}, outputSchema={"type": "object", "properties": {"value": {}}}),
    _tool("big", {"size": NUMBER}),
    _tool("slow", {"seconds": NUMBER}, {"steps": NUMBER, "key": TEXT, "value": TEXT}),
    _tool("fail", {"message": TEXT}),
    _tool("protocol_error", {"message": TEXT}),
    _tool("die", {}, {"key": TEXT, "value": TEXT}),
    _tool("ask", {"message": TEXT}),
    _tool("log", {"text": TEXT}),
    _tool("grow", {}),
    _tool("environment", {"name": TEXT}),
]
RESOURCES = [{"uri": "store://about", "name": "about", "mimeType": "text/plain"}]
PROMPTS = [{"name": "greet", "description": "a greeting", "arguments": [{"name": "who", "required": True}]}]

Result = dict[str, Any]


class ProtocolError(Exception):
    """A JSON-RPC error: code, message, data."""


class Store:
    """The server: one thread reads, each call has its own."""

    def __init__(self, database: str, modern: bool) -> None:
        self._database = database
        self._modern = modern
        self._writing = threading.Lock()
        self._cancelled: dict[Any, threading.Event] = {}
        self._answers: dict[Any, tuple[threading.Event, list[Any]]] = {}
        self._grown = 0
        with self._connect() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS pairs (key TEXT PRIMARY KEY, value TEXT)")
            connection.execute("CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, what TEXT)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._database, timeout=30, isolation_level=None)

    def event(self, what: str) -> None:
        with self._connect() as connection:
            connection.execute("INSERT INTO events (what) VALUES (?)", (what,))

    def send(self, **message: Any) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        with self._writing:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    # --- messages ---

    def serve(self) -> None:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            method, number = message.get("method"), message.get("id")
            if method is None:
                event, answer = self._answers.pop(number)
                answer.append(message)
                event.set()
            elif method == "notifications/cancelled":
                found = self._cancelled.get(message["params"]["requestId"])
                if found is not None:
                    found.set()
            elif number is not None:
                self._cancelled[number] = threading.Event()
                threading.Thread(target=self._answer, args=(number, method, message.get("params") or {})).start()

    def _answer(self, number: Any, method: str, params: dict[str, Any]) -> None:
        try:
            handler = getattr(self, "on_" + method.replace("/", "_"), None)
            if handler is None:
                raise ProtocolError(-32601, "Method not found", method)
            if self._modern:
                self._check_envelope(method, params)
            result = handler(number, params)
            if self._modern and result is not None:
                result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **result}
        except ProtocolError as error:
            code, text, data = error.args
            self.send(id=number, error={"code": code, "message": text, **({} if data is None else {"data": data})})
        else:
            if result is not None:
                self.send(id=number, result=result)
        finally:
            self._cancelled.pop(number, None)

    def _check_envelope(self, method: str, params: dict[str, Any]) -> None:
        if method == "initialize":
            data = {"supported": [MODERN], "requested": params["protocolVersion"]}
            raise ProtocolError(-32022, "Unsupported protocol version", data)
        meta = params.get("_meta") or {}
        if meta.get(f"{ENVELOPE}protocolVersion") != MODERN or f"{ENVELOPE}clientCapabilities" not in meta:
            raise ProtocolError(-32602, "no envelope", sorted(meta))

    def on_server_discover(self, number: Any, params: dict[str, Any]) -> Result:
        info = {"name": "store", "version": "1.2.3", "title": "A store"}
        return {
            "supportedVersions": [MODERN],
            "capabilities": {"tools": {}},
            "instructions": "Put and get.",
            "_meta": {f"{ENVELOPE}serverInfo": info},
        }

    def on_initialize(self, number: Any, params: dict[str, Any]) -> Result:
        capabilities = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}, "logging": {}}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": capabilities,
            "serverInfo": {"name": "store", "version": "1.2.3", "title": "A store"},
            "instructions": "Put and get.",
        }

    def on_ping(self, number: Any, params: dict[str, Any]) -> Result:
        return {}

    def on_logging_setLevel(self, number: Any, params: dict[str, Any]) -> Result:  # noqa: N802  # the method's name
        self.event(f"level {params['level']}")
        return {}

    def on_tools_list(self, number: Any, params: dict[str, Any]) -> Result:
        tools = [*TOOLS, *(_tool(f"grown_{count}", {}) for count in range(self._grown))]
        start = int(params.get("cursor") or 0)
        more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(tools) else {}
        return {"tools": tools[start : start + PAGE], **more}

    def on_resources_list(self, number: Any, params: dict[str, Any]) -> Result:
        return {"resources": RESOURCES}

    def on_resources_read(self, number: Any, params: dict[str, Any]) -> Result:
        if params["uri"] != "store://about":
            raise ProtocolError(-32002, "Resource not found", {"uri": params["uri"]})
        return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": "a store"}]}

    def on_prompts_list(self, number: Any, params: dict[str, Any]) -> Result:
        return {"prompts": PROMPTS}

    def on_prompts_get(self, number: Any, params: dict[str, Any]) -> Result:
        text = f"Hello, {params['arguments']['who']}"
        return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}

    def on_tools_call(self, number: Any, params: dict[str, Any]) -> Result | None:
        name = params["name"]
        if self._modern and name == "ask":
            return self._ask_first(params)
        tool: Callable[..., Any] | None = getattr(self, f"tool_{name}", None)
        if tool is None:
            raise ProtocolError(-32602, f"Unknown tool: {name}", None)
        try:
            answer = tool(number, params.get("_meta") or {}, **(params.get("arguments") or {}))
        except TypeError as error:
            raise ProtocolError(-32602, f"Invalid arguments: {error}", {"tool": name}) from error
        if answer is None or isinstance(answer, dict):
            return answer
        return {"content": [{"type": "text", "text": answer}], "isError": False}

    # --- tools ---

    def tool_get(self, number: Any, meta: Any, key: str) -> Result:
        rows = self._connect().execute("SELECT value FROM pairs WHERE key = ?", (key,)).fetchall()
        value = rows[0][0] if rows else None
        text = {"type": "text", "text": json.dumps(value), "_meta": {"store/key": key}}
        return {"content": [text], "structuredContent": {"value": value}, "isError": False, "_meta": {"store/read": 1}}

    def tool_put(self, number: Any, meta: Any, key: str, value: str) -> str:
        self._write(key, value)
        return f"put {key}"

    def tool_delete(self, number: Any, meta: Any, key: str) -> str:
        self._write(key, None)
        return f"deleted {key}"

    def _write(self, key: str, value: str | None) -> None:
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if value is None:
                connection.execute("DELETE FROM pairs WHERE key = ?", (key,))
            else:
                connection.execute("INSERT OR REPLACE INTO pairs VALUES (?, ?)", (key, value))
            connection.execute("INSERT INTO events (what) VALUES (?)", (f"write {key}={value}",))
            connection.execute("COMMIT")

    def tool_list(self, number: Any, meta: Any) -> str:
        return json.dumps(dict(self._connect().execute("SELECT key, value FROM pairs ORDER BY key").fetchall()))

    def tool_notify(self, number: Any, meta: Any, text: str) -> str:
        self.event(f"notify {text}")
        return "notified"

    def tool_echo(self, number: Any, meta: Any, value: Any) -> Result:
        shown = {key: given for key, given in meta.items() if key != "progressToken" and ENVELOPE not in key}
        content = [{"type": "text", "text": json.dumps(value)}]
        return {"content": content, "structuredContent": {"value": value, "meta": shown}, "isError": False}

    def tool_big(self, number: Any, meta: Any, size: int) -> str:
        return "x" * int(size)

    def tool_slow(self, number: Any, meta: Any, seconds: float, steps: int = 1, key: str = "", value: str = "") -> Any:
        if key:
            self._write(key, value)
        self.event("slow begun")
        cancelled = self._cancelled[number]
        for step in range(int(steps)):
            if cancelled.wait(seconds / int(steps)):
                self.event("slow cancelled")
                return None
            if "progressToken" in meta:
                progress = {"progress": step + 1, "total": steps, "message": f"step {step + 1}"}
                self.send(method="notifications/progress", params={"progressToken": meta["progressToken"], **progress})
        self.event("slow done")
        return "slept"

    def tool_fail(self, number: Any, meta: Any, message: str) -> Result:
        return {"content": [{"type": "text", "text": message}], "isError": True, "_meta": {"store/failed": True}}

    def tool_protocol_error(self, number: Any, meta: Any, message: str) -> None:
        raise ProtocolError(-32099, message, {"why": "asked for"})

    def tool_die(self, number: Any, meta: Any, key: str = "", value: str = "") -> None:
        if key:
            self._write(key, value)
        os._exit(3)

    def tool_ask(self, number: Any, meta: Any, message: str) -> str:
        event, answer = threading.Event(), []  # type: tuple[threading.Event, list[Any]]
        asked = f"ask-{number}"
        self._answers[asked] = (event, answer)
        schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
        self.send(id=asked, method="elicitation/create", params={"message": message, "requestedSchema": schema})
        event.wait(60)
        return json.dumps(answer[0].get("result") or answer[0].get("error"))

    def _ask_first(self, params: dict[str, Any]) -> Result:
        """As servers of 2026 ask: by a result that wants the call again, with the answer."""
        if params.get("requestState") == "asked":
            text = json.dumps(params["inputResponses"]["question"])
            return {"content": [{"type": "text", "text": text}], "isError": False}
        schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
        asked = {"message": params["arguments"]["message"], "requestedSchema": schema}
        question = {"method": "elicitation/create", "params": asked}
        return {"resultType": "input_required", "inputRequests": {"question": question}, "requestState": "asked"}

    def tool_log(self, number: Any, meta: Any, text: str) -> str:
        self.send(method="notifications/message", params={"level": "warning", "logger": "store", "data": text})
        return "logged"

    def tool_grow(self, number: Any, meta: Any) -> str:
        self._grown += 1
        self.send(method="notifications/tools/list_changed")
        return "grown"

    def tool_environment(self, number: Any, meta: Any, name: str) -> str:
        return os.environ.get(name, "")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--modern", action="store_true")
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    store = Store(options.database, options.modern)
    store.event(f"started {os.getpid()}")
    store.serve()
    while options.stubborn:
        time.sleep(3600)
    os._exit(0)  # whatever threads still do


if __name__ == "__main__":
    main()
