"""What a harness gets through the proxy is what it would get from the server itself, message by message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from planarian_core.testing import mcp_servers
from planarian_core.testing.raw_mcp import RawClient

OURS = ("planarian/class", "planarian/reason")
CAPABILITIES = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}}}
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "roots/list": lambda _: {"roots": [{"uri": "file:///nowhere", "name": "nowhere"}]},
    "elicitation/create": lambda _: {"action": "accept", "content": {"yes": True}},
    "sampling/createMessage": lambda _: {
        "role": "assistant", "model": "none", "content": {"type": "text", "text": "sampled"},
    },
}  # fmt: skip


@dataclass
class Server:
    """A server to be asked twice: its command in a folder of its own, and what is asked of it."""

    command: Callable[[Path], list[str]]
    calls: list[tuple[str, dict[str, Any]]]
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    env: Callable[[Path], dict[str, str]] = lambda folder: {}


def _toolbox(folder: Path) -> list[str]:
    config = folder / "tools.yaml"
    config.write_text(
        f"kind: source\nname: db\ntype: sqlite\ndatabase: {folder / 'db.sqlite'}\n---\n"
        "kind: tool\nname: execute_sql\ntype: sqlite-execute-sql\nsource: db\ndescription: SQL\n"
    )
    return mcp_servers.toolbox(config)


def _filesystem(folder: Path) -> list[str]:
    files = folder / "files"
    files.mkdir()
    (files / "a.txt").write_text("one\ntwo\n")
    return mcp_servers.filesystem(files)


FILES = "{folder}/files"
SERVERS = {
    "store": Server(
        lambda folder: mcp_servers.store(folder / "store.sqlite"),
        [
            ("put", {"key": "a", "value": "\u00e9\n\U0001f600"}),
            ("get", {"key": "a"}),
            ("list", {}),
            ("echo", {"value": {"numbers": [1, 1.0, 1.5, 10**20, -0.0, 1e-7, True, None], "text": "\ud800 \x00"}}),
            ("fail", {"message": "asked for"}),
            ("protocol_error", {"message": "asked for"}),
            ("ask", {"message": "really?"}),
            ("nonsense", {}),
            ("put", {"wrong": 1}),
            ("big", {"size": 300_000}),
            ("log", {"text": "a word"}),
            ("grow", {}),
        ],
        [
            ("resources/list", {}),
            ("resources/read", {"uri": "store://about"}),
            ("resources/read", {"uri": "store://nothing"}),
            ("resources/templates/list", {}),
            ("prompts/list", {}),
            ("prompts/get", {"name": "greet", "arguments": {"who": "you"}}),
            ("logging/setLevel", {"level": "info"}),
        ],
    ),
    "everything": Server(
        lambda folder: mcp_servers.everything(),
        [
            ("echo", {"message": "hi"}),
            ("echo", {"wrong": 1}),
            ("nonsense", {}),
            ("get-sum", {"a": 1, "b": 2.5}),
            ("get-sum", {"a": "x", "b": 2}),
            ("get-structured-content", {"location": "Chicago"}),
            ("get-tiny-image", {}),
            ("get-annotated-message", {"messageType": "error", "includeImage": True}),
            ("get-resource-links", {"count": 3}),
            ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
            ("trigger-long-running-operation", {"duration": 0.4, "steps": 4}),
            ("get-roots-list", {}),
            ("trigger-sampling-request", {"prompt": "x", "maxTokens": 10}),
        ],
        [
            ("resources/templates/list", {}),
            ("resources/list", {}),
            ("resources/read", {"uri": "demo://nonsense"}),
            ("prompts/list", {}),
            ("prompts/get", {"name": "simple-prompt"}),
            ("prompts/get", {"name": "args-prompt", "arguments": {"city": "Bern"}}),
            ("prompts/get", {"name": "args-prompt"}),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": "completable-prompt"},
                 "argument": {"name": "department", "value": "S"}},
            ),
            ("logging/setLevel", {"level": "warning"}),
        ],
    ),
    "filesystem": Server(
        _filesystem,
        [
            ("list_allowed_directories", {}),
            ("read_text_file", {"path": f"{FILES}/a.txt"}),
            ("write_file", {"path": f"{FILES}/b.txt", "content": "new"}),
            ("edit_file", {"path": f"{FILES}/a.txt", "edits": [{"oldText": "one", "newText": "1"}]}),
            ("move_file", {"source": f"{FILES}/b.txt", "destination": f"{FILES}/c.txt"}),
            ("list_directory", {"path": FILES}),
            ("directory_tree", {"path": FILES}),
            ("read_text_file", {"path": "/etc/passwd"}),
        ],
    ),
    "memory": Server(
        lambda folder: mcp_servers.memory(),
        [
            ("create_entities", {"entities": [{"name": "a", "entityType": "t", "observations": ["o"]}]}),
            ("add_observations", {"observations": [{"entityName": "a", "contents": ["p"]}]}),
            ("read_graph", {}),
            ("search_nodes", {"query": "a"}),
            ("delete_entities", {"entityNames": ["a"]}),
            ("open_nodes", {"names": []}),
            ("create_entities", {}),
        ],
        env=lambda folder: {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
    ),
    "toolbox": Server(
        _toolbox,
        [
            ("execute_sql", {"sql": "CREATE TABLE t (a INTEGER, b TEXT)"}),
            ("execute_sql", {"sql": "INSERT INTO t VALUES (1, 'x'), (2, NULL)"}),
            ("execute_sql", {"sql": "SELECT * FROM t"}),
            ("execute_sql", {"sql": "SELECT nonsense"}),
            ("execute_sql", {}),
            ("nonsense", {}),
        ],
    ),
}  # fmt: skip


def test_all_servers_are_asked() -> None:
    assert {"store", "everything", "filesystem", "memory", "toolbox"} == set(SERVERS)


@pytest.fixture(
    params=[pytest.param(name, marks=[] if name == "store" else [pytest.mark.needs("npm")]) for name in SERVERS]
)
def pair(request: pytest.FixtureRequest, world: Any) -> Iterator[tuple[Server, list[tuple[RawClient, Path]]]]:
    """A server bare and through the proxy, each in a folder of its own."""
    server = SERVERS[request.param]
    places = [world.folder / "bare", world.folder / "ours"]
    for place in places:
        place.mkdir()
    commands = [server.command(place) for place in places]
    bare = world.client(
        commands[0], env={**world.environment(), **server.env(places[0])}, answers=ANSWERS
    )  # fmt: skip
    world.configure(it={"kind": "mirror", "class": "read-only", "command": commands[1]})
    with (world.home / "planarian.toml").open("a") as file:
        file.write("[services.it.env]\n")
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in server.env(places[1]).items())
    ours = world.proxy("it", answers=ANSWERS)
    yield server, [(bare, places[0]), (ours, places[1])]
    for client in (bare, ours):
        client.close()


def _both(
    sides: list[tuple[RawClient, Path]], ask: Callable[[RawClient, Callable[[Any], Any]], Any]
) -> tuple[str, str]:
    """What both sides answer, as text that tells 1 from 1.0 and true; each folder's name taken out."""

    def one(client: RawClient, place: Path) -> str:
        def fill(value: Any) -> Any:
            return json.loads(json.dumps(value).replace("{folder}", str(place)))

        answer = ask(client, fill)
        return json.dumps(_without_ours(answer), sort_keys=True).replace(str(place), "{folder}")

    first, second = (one(*side) for side in sides)
    return first, second


def _without_ours(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_without_ours(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    found = {key: _without_ours(value) for key, value in answer.items() if key not in OURS}
    if not found.get("_meta", True):
        del found["_meta"]
    return found


@pytest.mark.parametrize("pair", ["store"], indirect=True)
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_greetings_of_all_versions(pair: tuple[Server, list[tuple[RawClient, Path]]], version: str) -> None:
    _, sides = pair
    responses = [client.initialize(protocolVersion=version) for client, _ in sides]
    assert responses[0] == responses[1]
    assert responses[0]["result"]["protocolVersion"] == version


def test_everything_that_is_asked(pair: tuple[Server, list[tuple[RawClient, Path]]]) -> None:
    server, sides = pair
    greetings = [client.initialize(capabilities=CAPABILITIES) for client, _ in sides]
    for greeting in greetings:  # tasks would run on their own, after the call: the proxy offers none
        greeting["result"]["capabilities"].pop("tasks", None)
    assert greetings[0] == greetings[1]
    bare, ours = _both(sides, lambda client, _: _pages(client, "tools/list", "tools"))
    assert bare == ours
    assert len(json.loads(bare)) > 0
    for tool, arguments in server.calls:
        meta = {"progressToken": f"token of {tool}", "example/kept": 7}

        def ask(client: RawClient, fill: Callable[[Any], Any], tool: str = tool, meta: Any = meta) -> Any:
            return client.call(tool, fill(arguments), _meta=meta)  # noqa: B023  # called at once

        bare, ours = _both(sides, ask)
        assert bare == ours, tool
    for method, params in server.requests:
        bare, ours = _both(sides, lambda client, _: client.request(method, params))  # noqa: B023  # called at once
        assert bare == ours, method
    for method in ("notifications/progress", "notifications/message", "notifications/tools/list_changed"):
        bare, ours = _both(sides, lambda client, _: client.notifications(method))  # noqa: B023  # called at once
        assert bare == ours


def _pages(client: RawClient, method: str, items: str) -> list[Any]:
    """All pages of a list, with their cursors."""
    pages = [client.request(method)]
    while "nextCursor" in pages[-1]["result"]:
        pages.append(client.request(method, {"cursor": pages[-1]["result"]["nextCursor"]}))
    return pages
