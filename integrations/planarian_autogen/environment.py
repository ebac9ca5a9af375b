"""The environment that a team works in: one sandbox, whose calls take turns and leave statepoints behind."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from planarian_autogen.marks import Mark
from planarian_autogen.settings import EnvironmentSettings
from planarian_autogen.turns import turn
from planarian_core import Planarian, Sandbox
from planarian_core.coroutines import in_thread, run_command
from planarian_core.errors import ConfigurationError, LineageError, PlanarianError
from planarian_core.model import CommandResult, RestoreContext, Statepoint

_living: weakref.WeakValueDictionary[str, Environment] = weakref.WeakValueDictionary()


class Environment:
    """One sandbox for a team, found or made when it is first needed.

    Args:
        planarian: an open runtime; it stays the caller's to close.
        workspace: the directory that a new sandbox stands on.
        attach: a sandbox to go on with instead.
        settings: further fields of :class:`EnvironmentSettings`.
    """

    def __init__(
        self, planarian: Planarian, workspace: str | Path = "", *, attach: Sandbox | str = "", **settings: Any
    ) -> None:
        if not attach and not settings.get("name"):
            settings["name"] = f"agents-{secrets.token_hex(4)}"
        found = attach if isinstance(attach, Sandbox) or not attach else planarian.sandbox(attach)
        place = str(Path(workspace).absolute()) if workspace else ""
        try:
            self.settings = EnvironmentSettings(
                str(planarian.home), place, attach=found.id if isinstance(found, Sandbox) else "", **settings
            )
        except TypeError as error:
            raise ConfigurationError(f"environment: {error}") from error
        self.planarian = planarian
        self._guard = threading.Lock()
        self._current: Sandbox | None = None
        self._origin = ""
        self._expected: Mark | None = None
        self._pending: Future[Statepoint | None] | None = None
        self._context = ""
        _living[self.settings.key] = self

    @classmethod
    def of(cls, settings: EnvironmentSettings) -> Environment:
        """The environment that settings describe: one of this process that is in use, or a new one with a runtime of
        its own, which is closed when nobody has the environment any more.
        """
        found = _living.get(settings.key)
        if found is not None:
            return found
        planarian = Planarian.open(settings.home)
        try:
            given = {field: getattr(settings, field) for field in _OTHERS}
            made = cls(planarian, settings.workspace, attach=settings.attach, **given)
        except BaseException:
            planarian.close()
            raise
        weakref.finalize(made, planarian.close)
        return made

    # --- the sandbox ---

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, for tools of one's own; within a call it is always there.

        Raises:
            ConfigurationError: it isn't made yet.
        """
        if self._current is None:
            raise ConfigurationError(
                "the environment isn't entered yet", code="no-environment", remedy="await environment.start()"
            )
        return self._current

    async def start(self) -> Sandbox:
        """Find or make the sandbox, and let one that doesn't run (stopped, or the host was restarted) run again."""
        async with self.turn() as sandbox:
            return sandbox

    def _enter(self) -> Sandbox:
        """The sandbox, where it is expected to be: for whoever has the turn."""
        expected = self._expected
        if expected is not None:
            if not self._is_at(expected):
                self._restore(expected)
            self._expected = None
        return self._bind()

    def _bind(self) -> Sandbox:
        with self._guard:
            if self._current is None:
                self._current = self._found() or self._made()
            self._revive(self._current)
            if not self._origin:
                found = "as the team found it"
                self._origin = self.planarian.snapshot(self._current, description=found, automatic=True).id
            return self._current

    def _found(self) -> Sandbox | None:
        if self.settings.attach:
            return self.planarian.sandbox(self.settings.attach)
        same = [record for record in self.planarian.registry.sandboxes() if record.name == self.settings.name]
        return self.planarian.sandbox(same[-1].id) if same else None

    def _made(self) -> Sandbox:
        wanted = {field: getattr(self.settings, field) for field in _CHOICES}
        return self.planarian.create_sandbox(self.settings.workspace, name=self.settings.name, **wanted)

    def _revive(self, sandbox: Sandbox) -> RestoreContext | None:
        if self.planarian.sandboxes.running(sandbox.record):
            return None
        restored = self.planarian.attach(sandbox)
        if restored is not None:
            self._context = restored.to_markdown()
        return restored

    # --- calls ---

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """A turn (see :meth:`turn`) in which the sandbox need not be there yet: for loading a state."""
        async with turn(self.settings.key):
            yield

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Sandbox]:
        """Have the environment alone, among the tasks of this event loop. A turn within a turn is part of it."""
        async with self.alone():
            yield await in_thread(self._enter)

    @asynccontextmanager
    async def call(self, description: str) -> AsyncIterator[list[str]]:
        """A tool call's turn, after which a statepoint is taken if the policy says so; its capture overlaps what comes
        next. A call that is cancelled leaves none.

        Yields:
            What whoever called must be told with the result: complete when the turn is over.
        """
        async with self.turn():
            notes = await self._waiting()
            try:
                yield notes
            except Exception:
                await self._take(description, notes)
                raise
            await self._take(description, notes)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float | None = None,
        output_limit: int = 1024 * 1024,
    ) -> CommandResult:
        """Run a command in the sandbox: :meth:`planarian_core.Sandbox.run`. Cancelled, it ends, with all it started."""
        async with self.turn() as sandbox:
            return await run_command(
                sandbox, command, cwd=cwd, env=env, stdin=stdin, timeout=timeout, output_limit=output_limit
            )

    async def _take(self, description: str, notes: list[str]) -> None:
        if not self.settings.snapshot:
            return

        def take() -> Future[Statepoint | None]:
            return self.planarian.snapshot_by_policy(self.sandbox, description=description, wait=False)

        try:
            self._pending = await in_thread(take)
        except PlanarianError as error:
            notes.append(f"No statepoint was taken after this call: {error}")

    async def _waiting(self) -> list[str]:
        """What is to be told: how the last statepoint failed, and what a restore has changed."""
        notes = [self.take_context()]
        pending, self._pending = self._pending, None
        if pending is not None:
            try:
                await in_thread(pending.result)
            except PlanarianError as error:
                notes.append(f"No statepoint was taken after the call before this one: {error}")
        return [note for note in notes if note]

    def take_context(self) -> str:
        """The restore context of a load that nobody was told of yet, as Markdown; from now on it counts as told."""
        context, self._context = self._context, ""
        return context

    async def settle(self) -> None:
        """Wait for the statepoint that is being taken.

        Raises:
            CaptureError: there is none; the sandbox runs on.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            await in_thread(pending.result)

    # --- going back ---

    async def save(self, description: str = "a state was saved", *, files_only: bool = False) -> Mark:
        """Take a statepoint for a state that is being saved."""
        async with self.turn() as sandbox:

            def take() -> Statepoint:
                return self.planarian.snapshot(sandbox, description=description, files_only=files_only)

            return Mark(sandbox=sandbox.id, statepoint=(await in_thread(take)).id)

    async def restore(self, mark: Mark) -> RestoreContext | None:
        """Bring the environment to a statepoint, or go on in a fork of it (``on_load``). What that has changed waits to
        be told with the next call's result, or by whoever takes it (:meth:`take_context`).

        An environment that wasn't entered yet goes on in the mark's sandbox.

        Returns:
            None when it is proven that nothing has changed since, and nothing was done.

        Raises:
            LineageError: there is no such statepoint (any more), or it is of another sandbox. Nothing was changed.
            RestoreError, CompensationError: the error's ``state`` says where the environment is.
        """
        async with self.alone():
            restored = await in_thread(partial(self._restore, mark))
            self._expected = None
            return restored

    def expect(self, mark: Mark | None) -> None:
        """Where the environment has to be when the next turn begins: it is brought there then, unless it is there. With
        None it stays where it is. For frameworks that don't say whether what they read will be gone on with.
        """
        self._expected = mark

    def _is_at(self, mark: Mark) -> bool:
        """Whether the mark's sandbox is the environment's, and no call was made in it since."""
        if self._current is None or self._current.id != mark["sandbox"]:
            return False
        head = self.planarian.registry.branch(self._current.id).head
        return head == mark["statepoint"] and self.planarian.calls.count(self._current.id) == 0

    async def reset(self) -> None:
        """Bring the environment back to how it was found. A safety statepoint keeps what it is now."""
        async with self.turn() as sandbox:
            await in_thread(partial(self.planarian.rollback, sandbox, self._origin))

    def _restore(self, mark: Mark) -> RestoreContext | None:
        with self._guard:
            if self.settings.on_load == "fork":
                source = self.planarian.sandbox(mark["sandbox"])
                restored: RestoreContext | None
                self._current, restored = self.planarian.fork_with_context(mark["statepoint"], of=source)
            else:
                sandbox = self._current or self.planarian.sandbox(mark["sandbox"])
                self._check_own(sandbox, mark)
                restored = self._rolled_back(sandbox, mark["statepoint"])
                self._current = sandbox
            self._origin = self._origin or mark["statepoint"]
            self._context = restored.to_markdown() if restored else self._context
            return restored

    def _rolled_back(self, sandbox: Sandbox, statepoint: str) -> RestoreContext | None:
        revived = self._revive(sandbox)
        if revived is not None and revived.statepoint.id == statepoint:
            return revived
        with self.planarian.sandboxes.hold(sandbox.id, exclusive=True):
            head = self.planarian.registry.branch(sandbox.id).head
            if head == statepoint and self.planarian.statepoints.unchanged(sandbox.record):
                return None
        return self.planarian.rollback(sandbox, statepoint)

    def _check_own(self, sandbox: Sandbox, mark: Mark) -> None:
        try:
            self.planarian.resolve(sandbox, mark["statepoint"])
        except LineageError as error:
            if error.code != "statepoint-foreign":
                raise
            raise LineageError(
                f"the state belongs to sandbox {mark['sandbox']}, and this environment works in {sandbox.id}",
                code="state-foreign",
                state="nothing was changed",
                remedy=f"Environment(planarian, attach={mark['sandbox']!r}), or on_load='fork'",
            ) from error


_CHOICES = ("sandbox", "filesystem", "process", "network", "policy")
_OTHERS = (*_CHOICES, "name", "on_load", "snapshot")
