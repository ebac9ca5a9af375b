"""The environments that nanobot's sessions work in: a sandbox each, whose calls take turns and leave statepoints."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import re
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from planarian_core import Planarian, Sandbox
from planarian_core.context import one_line, restore_context
from planarian_core.coroutines import in_thread
from planarian_core.errors import ConfigurationError, LineageError, PlanarianError
from planarian_core.model import Statepoint
from planarian_nanobot.settings import Settings

_NAME_CHARACTERS = re.compile(r"[^a-zA-Z0-9.]+")


class Environments:
    """An environment for each session, or one for all.

    Args:
        planarian: an open runtime, which stays the caller's to close. With None one is opened when it is needed, and
            closed when the process ends.
        workspace: the directory that new sandboxes stand on.
        settings: further fields of :class:`planarian_nanobot.Settings`.
    """

    def __init__(self, planarian: Planarian | None, workspace: str | Path = "", **settings: Any) -> None:
        try:
            self.settings = Settings(workspace=str(workspace), **settings)
        except ValidationError as error:
            raise ConfigurationError(str(error), code="nanobot-config", remedy="docs/nanobot.md lists them") from error
        self._planarian = planarian
        self._environments: dict[str, Environment] = {}
        self._guard = threading.Lock()

    @classmethod
    @cache
    def of(cls, settings: Settings, workspace: str) -> Environments:
        """What the tools of this process share that have the same settings.

        Args:
            workspace: nanobot's, for settings that name none.
        """
        given = settings.model_dump(exclude={"workspace"})
        return cls(None, settings.workspace or workspace, **given)

    @property
    def planarian(self) -> Planarian:
        """The runtime.

        Raises:
            PlanarianError: it can't be opened.
        """
        with self._guard:
            if self._planarian is None:
                self._planarian = Planarian.open(self.settings.home or None)
                atexit.register(self._planarian.close)
            return self._planarian

    def of_session(self, key: str | None) -> Environment:
        """The environment of a session of nanobot; calls without one share one."""
        name = _name(key) if self.settings.per_session else "nanobot"
        with self._guard:
            return self._environments.setdefault(name, Environment(self, name))


def _name(key: str | None) -> str:
    """A session's sandbox in words, and one of its own whatever characters the key has."""
    key = key or "default"
    words = _NAME_CHARACTERS.sub("-", key).strip("-.")[:40]
    return f"nanobot-{words}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


class Environment:
    """One sandbox, found by its name or made when it is first needed. All that it does is done in a turn of its own."""

    def __init__(self, environments: Environments, name: str) -> None:
        self._environments = environments
        self.name = name
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._current: Sandbox | None = None
        self._head = ""
        self._pending: Future[Statepoint | None] | None = None
        self._notes: list[str] = []

    @property
    def planarian(self) -> Planarian:
        return self._environments.planarian

    def known(self) -> bool:
        """Whether it was entered in this process, or is there from an earlier one."""
        return self._current is not None or self._found() is not None

    # --- turns ---

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Sandbox]:
        """Have the sandbox, running, alone among the tasks of this event loop. What is to be told is in the notes then.

        Raises:
            PlanarianError: it can't be found, made or picked up.
        """
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            await self._settle()
            sandbox = await in_thread(self._enter)
            try:
                yield sandbox
            finally:
                await in_thread(self._look)

    @asynccontextmanager
    async def call(self, description: str) -> AsyncIterator[Sandbox]:
        """A call's turn, after which a statepoint is taken if the policy says so; its capture overlaps what comes next.
        A call that is cancelled leaves none.
        """
        async with self.turn() as sandbox:
            try:
                yield sandbox
            except Exception:
                await self._take(sandbox, "tool-call", description)
                raise
            await self._take(sandbox, "tool-call", description)

    async def milestone(self, trigger: str, description: str) -> None:
        """A statepoint outside of a call, if the policy says so: its failure is a note."""
        async with self.turn() as sandbox:
            await self._take(sandbox, trigger, description)

    async def _take(self, sandbox: Sandbox, trigger: str, description: str) -> None:
        def take() -> Future[Statepoint | None]:
            said = one_line(description, 300)
            return self.planarian.snapshot_by_policy(sandbox, trigger, description=said, wait=False)

        try:
            self._pending = await in_thread(take)
        except PlanarianError as error:
            self._notes.append(f"No statepoint was taken after this call: {error}")

    async def settle(self) -> None:
        """Wait for the statepoint that is being taken; its failure is a note."""
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            await self._settle()

    async def _settle(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            try:
                await in_thread(pending.result)
            except PlanarianError as error:
                self._notes.append(f"No statepoint was taken after an earlier call: {error}")

    def take_notes(self) -> str:
        """What the agent was not told yet: a restore by somebody else, a failed statepoint. It counts as told then."""
        notes, self._notes = self._notes, []
        return "\n\n".join(notes)

    # --- the sandbox ---

    def _enter(self) -> Sandbox:
        found = self._found()
        if found is None and self._current is not None:
            self._notes.append("The environment was removed since. This is a new one, on the workspace as it is now.")
            self._head = ""
        self._current = found or self._made()
        planarian = self.planarian
        if not planarian.sandboxes.running(self._current.record):
            restored = planarian.attach(self._current)
            if restored is not None:
                self._notes.append(restored.to_markdown())
                self._head = ""
        self._notice_moves(self._current)
        return self._current

    def _found(self) -> Sandbox | None:
        # Not a fork that an agent has given this name.
        same = [r for r in self.planarian.registry.sandboxes() if r.name == self.name and not r.made_by]
        return self.planarian.sandbox(same[-1].id) if same else None

    def _made(self) -> Sandbox:
        settings = self._environments.settings
        if not settings.workspace:
            raise ConfigurationError("there is no workspace", remedy="name one: Environments(planarian, workspace=...)")
        chosen = {key: getattr(settings, key) for key in ("sandbox", "filesystem", "process", "network", "policy")}
        return self.planarian.create_sandbox(settings.workspace, name=self.name, **chosen)

    def _notice_moves(self, sandbox: Sandbox) -> None:
        """A rollback by somebody else (a user, by the command line) is told as if the agent had made it."""
        registry = self.planarian.registry
        head = registry.branch(sandbox.id).head or ""
        seen, at = self._head, registry.find(head)
        while seen and at is not None and at.id != seen:
            at = registry.find(at.parent_id or "")
        moved_to = registry.find(head)
        if seen and at is None and moved_to is not None:
            context = restore_context(registry, "rollback", sandbox.id, moved_to, files=(None, ()))
            self._notes.append(context.to_markdown())
        self._head = head

    def _look(self) -> None:
        """After a turn: where it went in the turn, whoever works in it knows."""
        if self._current is not None:
            try:
                self._head = self.planarian.registry.branch(self._current.id).head or ""
            except LineageError:
                self._head = ""
