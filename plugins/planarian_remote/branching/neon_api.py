"""Neon's HTTP API, version 2, as far as branches need it (https://neon.com/docs/reference/api).

What Neon answers is plain data and is read as such. A request that Neon refused for the moment (locked by a running
operation, too many requests) had no effect and is sent again; of one whose answer was lost nobody knows, and whoever
sent it looks by name whether it happened.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from typing import IO, Any

_LATER = (423, 429, 503)
"""Locked by a running operation; too many requests; unavailable: to be sent again."""
_ENDED = ("finished", "skipped")
_FAILED = ("failed", "cancelled", "error")
_MAX_ANSWER = 16 * 1024 * 1024
_POLL = 0.5
_PAGE = 100


class NeonError(Exception):
    """A request that did not go well. ``status``: HTTP's, 0 where no answer came."""

    def __init__(self, message: str, status: int = 0, *, after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.after = after

    @property
    def unknown(self) -> bool:
        """Whether it may have had its effect all the same."""
        return self.status == 0 or (self.status >= 500 and self.status not in _LATER)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The key goes to the configured address alone."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


@dataclass(frozen=True)
class NeonApi:
    """One project. ``patience``: the seconds that a request or an operation may take, with all that is sent again."""

    address: str
    key: str = field(repr=False)
    project: str
    patience: float = 60.0
    request_timeout: float = 20.0

    # --- branches ---

    def branches(self, prefix: str) -> list[dict[str, Any]]:
        """The branches whose names begin with ``prefix``."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            query = {"search": prefix, "limit": str(_PAGE), **({"cursor": cursor} if cursor else {})}
            answer = self.send("GET", "/branches", query=query)
            page = answer.get("branches", [])
            found += [branch for branch in page if str(branch["name"]).startswith(prefix)]
            cursor = str(answer.get("pagination", {}).get("next", ""))
            if not cursor or len(page) < _PAGE:
                return found

    def branch(self, branch_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.send("GET", f"/branches/{_quoted(branch_id)}")["branch"]
        return answer

    def create(self, name: str, *, parent: str = "", lsn: str = "", endpoint: bool = False) -> dict[str, Any]:
        """A branch of that name, ready; one that is there already is taken, also when the answer was lost."""
        body: dict[str, Any] = {"branch": {"name": name}}
        if parent:
            body["branch"]["parent_id"] = parent
        if lsn:
            body["branch"]["parent_lsn"] = lsn
        if endpoint:
            body["endpoints"] = [{"type": "read_write"}]
        try:
            answer = self.send("POST", "/branches", body)
        except NeonError as error:
            there = self._named(name) if error.unknown or error.status == 409 else None
            if there is None:
                raise
            self.settle(str(there["id"]))
            return there
        self.wait(answer)
        made: dict[str, Any] = answer["branch"]
        return made

    def _named(self, name: str) -> dict[str, Any] | None:
        return next((branch for branch in self.branches(name) if branch["name"] == name), None)

    def restore(self, branch_id: str, source_id: str, preserve: str) -> None:
        """Bring a branch to the head of another; its state until now, and its children, go to a new branch of the name
        ``preserve``.
        """
        body = {"source_branch_id": source_id, "preserve_under_name": preserve}
        try:
            answer = self.send("POST", f"/branches/{_quoted(branch_id)}/restore", body)
        except NeonError as error:
            # The name is this request's own: where it is there, the restore has begun.
            if not (error.unknown or error.status == 409) or self._named(preserve) is None:
                raise
            self.settle(branch_id)
            return
        self.wait(answer)

    def delete(self, branch_id: str) -> bool:
        """Remove a branch; False where Neon keeps it, because it has children."""
        try:
            self.wait(self.send("DELETE", f"/branches/{_quoted(branch_id)}"))
        except NeonError as error:
            if error.status == 404:
                return True
            if error.status in (400, 409, 412, 422):
                return False
            raise
        return True

    def ensure_endpoint(self, branch_id: str) -> None:
        """See that a branch has a compute endpoint that writes; the creation of one may have been cut off."""
        answer = self.send("GET", f"/branches/{_quoted(branch_id)}/endpoints")
        if not any(endpoint["type"] == "read_write" for endpoint in answer.get("endpoints", [])):
            self.wait(self.send("POST", "/endpoints", {"endpoint": {"branch_id": branch_id, "type": "read_write"}}))

    def connection_uri(self, branch_id: str, database: str, role: str) -> str:
        query = {"branch_id": branch_id, "database_name": database, "role_name": role, "pooled": "false"}
        return str(self.send("GET", "/connection_uri", query=query)["uri"])

    # --- operations ---

    def wait(self, answer: Mapping[str, Any]) -> None:
        """Until the operations that an answer names have ended.

        Raises:
            NeonError: one failed, or took too long.
        """
        deadline = time.monotonic() + self.patience
        for operation in answer.get("operations", []):
            while (status := operation["status"]) not in _ENDED:
                if status in _FAILED:
                    raise NeonError(f"Neon's operation {operation['action']} {status}: {operation.get('error', '')}")
                if time.monotonic() > deadline:
                    raise NeonError(f"Neon's operation {operation['action']} took more than {self.patience:g} s")
                time.sleep(_POLL)
                operation = self.send("GET", f"/operations/{_quoted(operation['id'])}")["operation"]

    def settle(self, branch_id: str) -> None:
        """Until a branch is ready."""
        deadline = time.monotonic() + self.patience
        while (branch := self.branch(branch_id)).get("current_state") != "ready" or branch.get("pending_state"):
            if time.monotonic() > deadline:
                raise NeonError(f"the branch {branch['name']} was not ready after {self.patience:g} s")
            time.sleep(_POLL)

    # --- requests ---

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """One request on the project, sent again while Neon says that it can't be served now."""
        deadline = time.monotonic() + self.patience
        pause = _POLL
        while True:
            try:
                return self._once(method, path, body, query)
            except NeonError as error:
                again = error.status in _LATER or (error.unknown and method in ("GET", "DELETE"))
                wait = pause if error.after is None else error.after
                if not again or time.monotonic() + wait > deadline:
                    raise
                time.sleep(wait)
                pause = min(pause * 2, 8.0)

    def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None
    ) -> dict[str, Any]:
        url = f"{self.address}/projects/{_quoted(self.project)}{path}"
        if query:
            url += f"?{urllib.parse.urlencode(query)}"
        headers = {"Authorization": f"Bearer {self.key}", "Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  # see `address_of`
        opener = urllib.request.build_opener(_NoRedirects)
        try:
            with opener.open(request, timeout=self.request_timeout) as response:
                return _parsed(response.read(_MAX_ANSWER))
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error) from error
        except (OSError, HTTPException) as error:
            raise NeonError(f"{method} {path}: {error}") from error


def address_of(address: str) -> str:
    """The address without a slash at its end; ValueError unless it is https, or on this machine."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")):
        raise ValueError(address)
    return address.rstrip("/")


def children_first(branches: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Branches in an order in which they can be deleted."""
    left = {str(branch["id"]): branch for branch in branches}
    ordered: list[Mapping[str, Any]] = []
    while left:
        parents = {branch.get("parent_id") for branch in left.values()}
        leaves = [branch_id for branch_id in left if branch_id not in parents] or list(left)
        ordered += [left.pop(branch_id) for branch_id in leaves]
    return ordered


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data or b"{}")
    except ValueError as error:
        raise NeonError("Neon's answer is no JSON") from error
    if not isinstance(answer, dict):
        raise NeonError("Neon's answer is no JSON object")
    return answer


def _refusal(error: urllib.error.HTTPError) -> NeonError:
    """Neon's own words, where there are any."""
    text = error.read(4096).decode(errors="replace")
    try:
        text = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        text = text[:200] or error.reason
    after = error.headers.get("Retry-After", "")
    return NeonError(f"HTTP {error.code}: {text}", error.code, after=float(after) if after.isdecimal() else None)


def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")
