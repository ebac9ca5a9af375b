"""A small fake of Neon's HTTP API (version 2), made from its documentation: branches with rows in dictionaries.

It is not Neon: it answers as the documentation says (restore moves the children, a branch with children can't be
deleted, names are unique, operations take a while), and fails on request. ``rows`` stand for a database's content.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEY, PROJECT = "napi_secret", "quiet-river-1"


@dataclass
class FakeBranch:
    """``log`` is the branch's history: the rows behind each log sequence number."""

    id: str
    name: str
    parent: str = ""
    lsn: int = 16
    log: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    parent_lsn: int = 0
    endpoint: bool = False
    polls: int = 0

    @property
    def rows(self) -> dict[str, str]:
        return self.log[-1][1]


class FakeNeon:
    """The server; use it as a context. ``fail`` is asked before each request and may answer instead."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.branches: dict[str, FakeBranch] = {}
        self.requests: list[tuple[str, str]] = []
        self.fail: Callable[[str, str], tuple[int, dict[str, str]] | None] = lambda method, path: None
        self.lose: Callable[[str, str], bool] = lambda method, path: False
        self._made = 0
        main = self._new("main", log=[(16, {})])
        main.endpoint = True
        neon = self

        class Handler(_Handler):
            fake = neon

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> FakeNeon:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/api/v2"

    # --- what databases do ---

    def named(self, name: str) -> FakeBranch:
        return next(branch for branch in self.branches.values() if branch.name == name)

    def names(self) -> list[str]:
        return sorted(branch.name for branch in self.branches.values())

    def write(self, name: str, key: str, value: str) -> None:
        """A transaction on a branch."""
        with self.lock:
            branch = self.named(name)
            branch.lsn += 8
            branch.log.append((branch.lsn, {**branch.rows, key: value}))

    def lsn_of(self, uri: str) -> str:
        """What ``pg_current_wal_flush_lsn()`` says there."""
        host = urlsplit(uri).hostname
        assert host is not None
        with self.lock:
            return _text(self.branches[host.removeprefix("ep-")].lsn)

    # --- what the API does ---

    def _new(self, name: str, *, log: list[tuple[int, dict[str, str]]], parent: str = "") -> FakeBranch:
        self._made += 1
        made = FakeBranch(f"br-{self._made:04}", name, parent, lsn=log[-1][0], log=log)
        self.branches[made.id] = made
        return made

    def create(self, body: dict[str, Any]) -> tuple[int, Any]:
        wanted = body.get("branch", {})
        name = wanted["name"]
        if name in self.names():
            return 409, _error("branch already exists")
        parent = self.branches.get(wanted.get("parent_id") or self.named("main").id)
        if parent is None:
            return 404, _error("parent branch not found")
        at = _number(wanted["parent_lsn"]) if "parent_lsn" in wanted else parent.lsn
        if at > parent.lsn:
            return 400, _error("parent_lsn is ahead of the branch")
        made = self._new(name, log=[entry for entry in parent.log if entry[0] <= at], parent=parent.id)
        made.parent_lsn = at
        made.endpoint = bool(body.get("endpoints"))
        return 201, {"branch": self.shown(made), "operations": [self._operation(made, "create_branch")]}

    def restore(self, branch_id: str, body: dict[str, Any]) -> tuple[int, Any]:
        branch, source = self.branches[branch_id], self.branches.get(body["source_branch_id"])
        children = [other for other in self.branches.values() if other.parent == branch_id]
        if source is None:
            return 404, _error("source branch not found")
        name = body.get("preserve_under_name", "")
        if children and not name:
            return 400, _error("preserve_under_name is required: the branch has children")
        if name in self.names():
            return 409, _error("branch already exists")
        log = list(source.log)
        kept = self._new(name, log=branch.log, parent=branch.parent)
        kept.lsn = branch.lsn
        for child in children:
            child.parent = kept.id
        branch.log, branch.lsn, branch.parent = log, log[-1][0], source.id
        return 200, {"branch": self.shown(branch), "operations": [self._operation(branch, "restore_branch")]}

    def delete(self, branch_id: str) -> tuple[int, Any]:
        if branch_id not in self.branches:
            return 404, _error("branch not found")
        if any(other.parent == branch_id for other in self.branches.values()):
            return 422, _error("branch has children")
        gone = self.branches.pop(branch_id)
        return 200, {"branch": self.shown(gone), "operations": []}

    def shown(self, branch: FakeBranch) -> dict[str, Any]:
        shown = {"id": branch.id, "project_id": PROJECT, "name": branch.name, "current_state": "ready"}
        if branch.parent:
            shown |= {"parent_id": branch.parent, "parent_lsn": _text(branch.parent_lsn)}
        return shown

    def _operation(self, branch: FakeBranch, action: str) -> dict[str, str]:
        branch.polls = 1
        return {"id": f"op-{branch.id}", "action": action, "status": "running"}

    def operation(self, branch_id: str) -> dict[str, str]:
        branch = self.branches[branch_id]
        branch.polls -= 1
        status = "running" if branch.polls >= 0 else "finished"
        return {"id": f"op-{branch_id}", "action": "apply", "status": status}


class _Handler(BaseHTTPRequestHandler):
    fake: FakeNeon

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = url.path.removeprefix(f"/api/v2/projects/{PROJECT}")
        with self.fake.lock:
            self.fake.requests.append((self.command, path))
            early = self.fake.fail(self.command, path)
            if self.headers.get("Authorization") != f"Bearer {KEY}":
                early = (401, {})
            if early is not None:
                self._answer(early[0], _error(f"refused with {early[0]}"), early[1])
                return
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            status, answer = self._route(path, query, json.loads(body or b"{}"))
            if self.fake.lose(self.command, path):
                self.close_connection = True
                self.connection.close()
                return
        self._answer(status, answer, {})

    def _route(self, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        fake, method = self.fake, self.command
        if path == "/branches" and method == "GET":
            found = [fake.shown(b) for b in fake.branches.values() if query["search"] in b.name]
            start, size = int(query.get("cursor", 0)), int(query["limit"])
            page = found[start : start + size]
            return 200, {"branches": page, "pagination": {"next": str(start + size)} if page else {}}
        if path == "/branches":
            return fake.create(body)
        if path == "/endpoints":
            fake.branches[body["endpoint"]["branch_id"]].endpoint = True
            return 201, {"endpoint": {}, "operations": []}
        if path == "/connection_uri":
            branch = fake.branches[query["branch_id"]]
            if not branch.endpoint:
                return 404, _error("no endpoint")
            return 200, {"uri": f"postgresql://{query['role_name']}:hush@ep-{branch.id}/{query['database_name']}"}
        if match := re.fullmatch(r"/operations/op-(br-\d+)", path):
            return 200, {"operation": fake.operation(match[1])}
        match = re.fullmatch(r"/branches/(br-[\w-]+)(/\w+)?", path)
        if match is None or (match[1] not in fake.branches and method != "DELETE"):
            return 404, _error("not found")
        if method == "DELETE":
            return fake.delete(match[1])
        if match[2] == "/restore":
            return fake.restore(match[1], body)
        if match[2] == "/endpoints":
            return 200, {"endpoints": [{"type": "read_write"}] if fake.branches[match[1]].endpoint else []}
        return 200, {"branch": fake.shown(fake.branches[match[1]])}

    def _answer(self, status: int, answer: Any, headers: dict[str, str]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _error(message: str) -> dict[str, str]:
    return {"request_id": "r", "code": "", "message": message}


def _text(lsn: int) -> str:
    return f"0/{lsn:X}"


def _number(lsn: str) -> int:
    return int(lsn.split("/")[1], 16)
