"""A model that says what a script says, behind the HTTP interfaces that harnesses speak: Anthropic's Messages,
OpenAI's Responses and Chat Completions, streamed or not.

The script sees what a model sees: the tools that the harness offers, and the results of the calls made so far.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Data = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call that the model asks for; harnesses tell calls apart by ``id``."""

    tool: str
    arguments: Data
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(8)}")


@dataclass(frozen=True)
class Seen:
    """What a request shows the model: offered tools by name (the schema of their arguments), results so far as text."""

    tools: Mapping[str, Data]
    results: tuple[str, ...]
    system: str
    raw: Data = field(repr=False)

    def named(self, tool: str) -> str:
        """The harness's name for one of our tools; it puts the server's name before it."""
        ours = [name for name in self.tools if name.startswith("mcp_") and name.endswith(f"planarian_{tool}")]
        ours = ours or [name for name in self.tools if name == f"mcp__planarian__{tool}"]
        assert len(ours) == 1, f"the harness offers {sorted(self.tools)}"
        return ours[0]


Script = Callable[[Seen], Call | str]
"""Decides from what is seen: the next call, or the last word."""


@contextmanager
def serving(script: Script) -> Iterator[Model]:
    """The model at ``url``, on a port of its own."""
    model = Model(script)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(model))
    model.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Model:
    """The script, and what it has seen; ``problems`` are exceptions of the script, which end the harness's run."""

    def __init__(self, script: Script) -> None:
        self.url = ""
        self.seen: list[Seen] = []
        self.problems: list[BaseException] = []
        self._script = script

    def answer(self, seen: Seen) -> Call | str:
        """The next call or word. A request without tools (a title for the conversation, say) isn't the agent's."""
        if not seen.tools:
            return "planarian"
        self.seen.append(seen)
        try:
            return self._script(seen)
        except Exception as problem:
            self.problems.append(problem)
            return f"the script failed: {problem!r}"


def _handler(model: Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            face = next((face for end, face in _FACES.items() if path.endswith(end)), None)
            if face is None:
                self._send(
                    404, "application/json", b'{"error": {"type": "not_found_error", "message": "no such page"}}'
                )
                return
            request = json.loads(raw)
            see, say, stream = face
            message = say(model.answer(see(request)))
            if request.get("stream"):
                self._send(200, "text/event-stream", b"".join(stream(message)))
            else:
                self._send(200, "application/json", json.dumps(message).encode())

        def do_GET(self) -> None:
            self._send(404, "application/json", b'{"error": {"type": "not_found_error", "message": "no such page"}}')

        do_HEAD = do_GET  # noqa: N815  # the name that http.server calls

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on standard error."""

    return Handler


def _event(data: Data, *, named: bool = True) -> bytes:
    name = f"event: {data['type']}\n" if named else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


def _text(content: object) -> str:
    """The text of a content that is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(block["text"] for block in content if isinstance(block, dict) and "text" in block)
    return json.dumps(content)


# --- Anthropic's Messages ---


def _messages_seen(request: Data) -> Seen:
    tools = {tool["name"]: tool.get("input_schema", {}) for tool in request.get("tools", [])}
    blocks = [block for message in request["messages"] for block in message["content"] if isinstance(block, dict)]
    results = tuple(_text(block.get("content", "")) for block in blocks if block.get("type") == "tool_result")
    return Seen(tools, results, _text(request.get("system", "")), request)


def _messages_said(answer: Call | str) -> Data:
    if isinstance(answer, Call):
        block = {"type": "tool_use", "id": answer.id, "name": answer.tool, "input": answer.arguments}
    else:
        block = {"type": "text", "text": answer}
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": [block],
        "stop_reason": "tool_use" if isinstance(answer, Call) else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip


def _messages_stream(message: Data) -> Iterator[bytes]:
    block = message["content"][0]
    yield _event({"type": "message_start", "message": {**message, "content": [], "stop_reason": None}})
    if block["type"] == "tool_use":
        start, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
    yield _event({"type": "content_block_start", "index": 0, "content_block": start})
    yield _event({"type": "content_block_delta", "index": 0, "delta": delta})
    yield _event({"type": "content_block_stop", "index": 0})
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 1}})
    yield _event({"type": "message_stop"})


# --- OpenAI's Responses ---


def _responses_seen(request: Data) -> Seen:
    tools: dict[str, Data] = {}
    for tool in request.get("tools", []):
        if tool["type"] == "namespace":
            tools |= {f"{tool['name']}__{one['name']}": one.get("parameters", {}) for one in tool["tools"]}
        else:
            tools[tool.get("name", tool["type"])] = tool.get("parameters", {})
    outputs = [item for item in request["input"] if item.get("type") == "function_call_output"]
    return Seen(tools, tuple(_text(item["output"]) for item in outputs), request.get("instructions") or "", request)


def _responses_said(answer: Call | str) -> Data:
    if isinstance(answer, Call):
        space, _, name = answer.tool.rpartition("__")
        item: Data = {
            "type": "function_call", "id": f"fc_{answer.id}", "call_id": answer.id, "name": name or answer.tool,
            "arguments": json.dumps(answer.arguments), "status": "completed",
        }  # fmt: skip
        if space:
            item["namespace"] = space
    else:
        content = [{"type": "output_text", "text": answer, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": content, "status": "completed"}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": usage}


def _responses_stream(response: Data) -> Iterator[bytes]:
    item = response["output"][0]
    yield _event({"type": "response.created", "response": {**response, "status": "in_progress", "output": []}})
    yield _event({"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}})
    yield _event({"type": "response.output_item.done", "output_index": 0, "item": item})
    yield _event({"type": "response.completed", "response": response})


# --- OpenAI's Chat Completions ---


def _chat_seen(request: Data) -> Seen:
    tools = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in request.get("tools") or []}
    results = tuple(_text(message["content"]) for message in request["messages"] if message["role"] == "tool")
    system = "\n".join(_text(m["content"]) for m in request["messages"] if m["role"] in ("system", "developer"))
    return Seen(tools, results, system, request)


def _chat_said(answer: Call | str) -> Data:
    if isinstance(answer, Call):
        function = {"name": answer.tool, "arguments": json.dumps(answer.arguments)}
        message: Data = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"id": answer.id, "type": "function", "function": function}]
    else:
        message = {"role": "assistant", "content": answer}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if isinstance(answer, Call) else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "c_1", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice], "usage": usage
    }  # fmt: skip


def _chat_stream(completion: Data) -> Iterator[bytes]:
    choice = completion["choices"][0]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": 0, **call} for call in delta["tool_calls"]]
    chunk = {**completion, "object": "chat.completion.chunk"}
    yield _event({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, named=False)
    ending = [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]
    yield _event({**chunk, "choices": ending}, named=False)
    yield b"data: [DONE]\n\n"


_FACES: dict[str, tuple[Callable[[Data], Seen], Callable[[Call | str], Data], Callable[[Data], Iterator[bytes]]]] = {
    "/v1/messages": (_messages_seen, _messages_said, _messages_stream),
    "/responses": (_responses_seen, _responses_said, _responses_stream),
    "/chat/completions": (_chat_seen, _chat_said, _chat_stream),
}
