"""Versions of a Neon database: a branch with a compute for each sandbox, and one without for each version.

A version is the id of a branch that nobody writes to, made at the log sequence number (LSN) at which the sandbox's
branch stood. So it is exact, has a name that no restore changes, and outlives the project's history window.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from planarian_core.errors import CaptureError, CompensationError, PlanarianError, RemoteError
from planarian_remote.branching.neon_api import NeonApi, NeonError, children_first
from planarian_remote.branching.versions import branch_name

_INSTANT = 10.0
"""Seconds that making a version may take, the sandbox standing still."""


def flushed_lsn(uri: str) -> str:
    """Where the write-ahead log of a database is durable up to: behind every commit that was acknowledged."""
    try:
        import psycopg
    except ImportError as error:
        raise RemoteError(
            "versions on Neon need psycopg", code="extra-missing", remedy="pip install 'planarian[sql]'"
        ) from error
    try:
        with psycopg.connect(uri, connect_timeout=int(_INSTANT), autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    except psycopg.Error as error:
        raise NeonError(f"the database did not say where its log is: {error}") from error
    assert row is not None
    return str(row[0])


@dataclass(frozen=True)
class NeonVersions:
    """The versions of one project. ``base``: the name of the branch that sandboxes start from; empty for the
    project's default. ``lsn_of`` asks a database, by its connection URI, for its LSN.
    """

    service: str
    api: NeonApi
    database: str
    role: str
    base: str = ""
    lsn_of: Callable[[str], str] = flushed_lsn

    def commit(self, sandbox_id: str) -> str:
        """A branch at the LSN where the sandbox's branch is; the one that is there already at that LSN."""
        quick = replace(self, api=replace(self.api, patience=_INSTANT))
        with self._explained(CaptureError, "no version could be made"):
            return quick._commit(sandbox_id)

    def _commit(self, sandbox_id: str) -> str:
        own = self._of(sandbox_id)
        branch = self._ready(sandbox_id, own)
        lsn = self.lsn_of(self.api.connection_uri(branch["id"], self.database, self.role))
        for there in own:
            if there.get("parent_id") == branch["id"] and there.get("parent_lsn") == lsn:
                return str(there["id"])
        made = self.api.create(_fresh(sandbox_id, "version"), parent=branch["id"], lsn=lsn)
        return str(made["id"])

    def check(self, sandbox_id: str, version: str) -> None:
        """CompensationError unless Neon can be asked, and has the version."""
        with self._explained(CompensationError, f"{sandbox_id} can't go to version {version}"):
            self.api.branch(version)

    def reset(self, sandbox_id: str, version: str) -> None:
        """The sandbox's branch as the version is. Its address stays; connections to it are cut. What it held until now
        stays as a branch, which holds the versions made from it.
        """
        with self._explained(CompensationError, f"{sandbox_id} could not be brought to version {version}"):
            branch = self._branch(self._of(sandbox_id), sandbox_id)
            if branch is None:
                self.branch(sandbox_id, "", version)
                return
            self.take_over(sandbox_id, version)
            self.api.restore(str(branch["id"]), version, _fresh(sandbox_id, "left"))

    def take_over(self, sandbox_id: str, version: str) -> None:
        """Keep another sandbox's version (a fork's): Neon deletes no branch that has a child. Idempotent by name."""
        with self._explained(CompensationError, f"{sandbox_id} could not take version {version} over"):
            if not str(self.api.branch(version)["name"]).startswith(f"{branch_name(sandbox_id)}-"):
                self.api.create(f"{branch_name(sandbox_id)}-holds-{version}", parent=version)

    def branch(self, sandbox_id: str, source_id: str, version: str) -> None:
        """The branch of a fork, with a compute of its own. Idempotent by name."""
        what = f"the branch of {sandbox_id} could not be made from version {version}"
        with self._explained(CompensationError, what):
            made = self.api.create(branch_name(sandbox_id), parent=version, endpoint=True)
            if made.get("parent_id") != version:
                raise NeonError(f"there is a branch {made['name']} that was not made from it", 409)
            self.api.ensure_endpoint(str(made["id"]))

    def keep(self, sandbox_id: str, versions: Sequence[str]) -> None:
        """Delete the version branches that no statepoint holds, and what was kept for their sake."""
        with self._explained(CompensationError, f"old versions of {sandbox_id} could not be deleted"):
            needed = {branch_name(sandbox_id), *(f"{branch_name(sandbox_id)}-holds-{version}" for version in versions)}
            own = self._of(sandbox_id)
            self._delete([b for b in own if b["id"] not in versions and b["name"] not in needed])

    def drop(self, sandbox_id: str) -> None:
        """Delete the sandbox's branches, as far as no fork stands on them."""
        with self._explained(CompensationError, f"the branches of {sandbox_id} could not be deleted"):
            self._delete(self._of(sandbox_id))

    def _delete(self, branches: Sequence[dict[str, Any]]) -> None:
        for branch in children_first(branches):
            self.api.delete(str(branch["id"]))

    # --- the sandbox's branch ---

    def uri(self, sandbox_id: str) -> str:
        """Where the sandbox's branch is reached, password included; the branch is made if this is its first use."""
        with self._explained(RemoteError, "the branch can't be reached"):
            branch = self._ready(sandbox_id, self._of(sandbox_id))
            self.api.ensure_endpoint(str(branch["id"]))
            return self.api.connection_uri(str(branch["id"]), self.database, self.role)

    def _of(self, sandbox_id: str) -> list[dict[str, Any]]:
        """All branches of a sandbox: its own, versions, and what resets left."""
        name = branch_name(sandbox_id)
        return [b for b in self.api.branches(name) if b["name"] == name or str(b["name"]).startswith(f"{name}-")]

    def _branch(self, own: Sequence[dict[str, Any]], sandbox_id: str) -> dict[str, Any] | None:
        return next((branch for branch in own if branch["name"] == branch_name(sandbox_id)), None)

    def _ready(self, sandbox_id: str, own: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The sandbox's branch; made from the base only where the sandbox never was here."""
        branch = self._branch(own, sandbox_id)
        if branch is not None:
            return branch
        if own:
            raise RemoteError(
                f"{self.service}: somebody removed the branch {branch_name(sandbox_id)}",
                code="branch-missing",
                state="nothing was changed",
                remedy="roll the sandbox back to a statepoint: that makes the branch again",
            )
        parent = ""
        if self.base:
            found = [branch for branch in self.api.branches(self.base) if branch["name"] == self.base]
            if not found:
                raise NeonError(f"the base branch {self.base!r} does not exist", 404)
            parent = str(found[0]["id"])
        return self.api.create(branch_name(sandbox_id), parent=parent, endpoint=True)

    @contextmanager
    def _explained(self, error_class: type[PlanarianError], what: str) -> Iterator[None]:
        try:
            yield
        except NeonError as error:
            code, remedy = _advice(error)
            raise error_class(
                f"{self.service}: {what}: {error}", code=code, state="no row was lost", remedy=remedy
            ) from error
        except RemoteError as error:
            if isinstance(error, error_class):
                raise
            raise error_class(error.message, code=error.code, state=error.state, remedy=error.remedy) from error


def _fresh(sandbox_id: str, what: str) -> str:
    """A name that no other request gives."""
    return f"{branch_name(sandbox_id)}-{what}-{os.urandom(6).hex()}"


def _advice(error: NeonError) -> tuple[str, str]:
    if error.status in (401, 403):
        return "service-denied", "see that api_key is a key of this project: neon.com, Account settings, API keys"
    if error.status == 404:
        return "undo-data-missing", "see in Neon's console which branches there are; choose another statepoint"
    if error.status in (423, 429):
        return "service-busy", "wait until Neon's running operations have ended, then try again"
    return "service-unreachable", "see that Neon can be reached, then try again"
