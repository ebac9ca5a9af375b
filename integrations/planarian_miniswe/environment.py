"""A mini-swe-agent environment whose actions run in a sandbox, with a statepoint after each as the policy says.

It translates mini-swe-agent's calls into calls of the runtime, and decides nothing about state. The agent's own
``planarian snapshot`` and the like are answered by the runtime while the action runs.
"""

from __future__ import annotations

import atexit
import fnmatch
import logging
import os
import platform
import re
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict
from types import TracebackType
from typing import Any, NoReturn

from planarian_core import Planarian, Sandbox
from planarian_core.context import one_line
from planarian_core.errors import LineageError, PlanarianError
from planarian_core.model import Statepoint
from planarian_miniswe.environment_config import PlanarianEnvironmentConfig
from planarian_miniswe.new_sandbox import new_sandbox, remove_sandbox
from planarian_miniswe.observations import observation, refusal, submission
from planarian_miniswe.requirements import require_mini

_SHELL = "/bin/sh"  # not bash, which would read BASH_ENV once more
# Standard error joins standard output in the order of writing. A working directory that the agent has deleted is the
# agent's own doing, so it must be an observation and not a failure of the sandbox.
_RUN_ACTION = """exec 2>&1
[ -d "$1" ] || echo "$1: No such file or directory"
cd -- "$1" || { echo "Still possible: planarian ledger, planarian rollback NAME"; exit 1; }
action=$2
shift 2
exec "$@" "$action"
"""
_NEEDS_NO_DIRECTORY = re.compile(r"\s*planarian(\s+[\w@~.-]+)+\s*")
_DESCRIPTION = 300


class PlanarianEnvironment:
    """Runs the agent's actions in a sandbox.

    Args:
        config_class: makes the configuration from the other keyword arguments, as in ``LocalEnvironment``.
        planarian: an open runtime to use; otherwise one is opened on the configured home.
        settings: the keys of :class:`PlanarianEnvironmentConfig`.

    Raises:
        ConfigurationError: mini-swe-agent is missing, or the settings can't be meant.
        BackendUnavailable, LineageError, SandboxError: there is no such sandbox, or it can't be made.
    """

    def __init__(
        self,
        *,
        config_class: type[PlanarianEnvironmentConfig] = PlanarianEnvironmentConfig,
        planarian: Planarian | None = None,
        **settings: Any,
    ) -> None:
        require_mini()
        self.config = config_class.of(settings)
        self.logger = logging.getLogger("minisweagent.environment")
        self._owned = planarian is None
        self.planarian = planarian or Planarian.open(self.config.home or None)
        self._pending: Future[Statepoint | None] | None = None
        self._noted: dict[str, Any] = {}
        self._told: list[str] = []
        self._closed = False
        try:
            self.sandbox = self._find_or_create()
        except BaseException:
            self._close_planarian()
            raise
        self._where = self._position()
        atexit.register(self.close)
        for finished in self.planarian.recovered if self._owned else []:
            self.logger.warning("Planarian finished what an earlier run had left: %s", finished)
        self.logger.info("Actions run in sandbox %s (home %s)", self.sandbox.id, self.planarian.home)

    def _find_or_create(self) -> Sandbox:
        if self.config.attach:
            sandbox = self.planarian.sandbox(self.config.attach)
            restored = self.planarian.attach(sandbox)
            if restored is not None:
                self.logger.warning("%s did not run:\n%s", sandbox.id, restored.to_markdown())
                self._told.append(restored.to_markdown())
            if self.config.policy:
                self.planarian.set_policy(sandbox, self.config.policy)
            return sandbox
        return new_sandbox(self.planarian, self.config)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run an action; the observation has ``output``, ``returncode``, ``exception_info``, and ``extra`` if need be.

        What the model must know before it goes on comes first in ``output``: that the sandbox had to be picked up
        again, or that somebody brought it elsewhere since the last action. ``extra["planarian"]`` holds the
        ``statepoint`` that was taken since then (the state that this action began from), or the ``snapshot_error`` why
        there is none.

        Raises:
            Submitted: the agent has finished.
            PlanarianError: the sandbox failed; a failing action is an observation.
        """
        command = action.get("command", "")
        self._collect_statepoint()
        self._told += self._moved()
        seen = refusal(command) or self._run(command, cwd, timeout or self.config.timeout)
        self._where = self._position()
        submitted = submission(seen)
        if submitted is not None:
            self._submit(submitted)
        told, self._told = self._told, []
        seen["output"] = "".join(f"{text.rstrip()}\n\n" for text in told) + seen["output"]
        noted, self._noted = self._noted, {}
        if noted:
            seen.setdefault("extra", {})["planarian"] = noted
        self._take_statepoint(command)
        return seen

    def _run(self, command: str, cwd: str, seconds: float) -> dict[str, Any]:
        directory = os.path.join(self.sandbox.workspace, cwd or self.config.cwd)
        if _NEEDS_NO_DIRECTORY.fullmatch(command):
            directory = "/"
        limit = self.config.output_limit
        result = self.sandbox.run(
            [_SHELL, "-c", _RUN_ACTION, _SHELL, directory, command, *self.config.interpreter],
            cwd="/",
            env={**self._forwarded(), **self.config.env},
            timeout=seconds,
            output_limit=limit,
            forks=self.config.fork,
        )
        return observation(result, command, seconds, limit)

    def _forwarded(self) -> dict[str, str]:
        wanted = self.config.forward_env
        return {k: v for k, v in os.environ.items() if any(fnmatch.fnmatchcase(k, pattern) for pattern in wanted)}

    # --- where the sandbox is ---

    def _position(self) -> tuple[str | None, object]:
        """The head that the live state grew from, and which processes live."""
        record = self.sandbox.record
        return self.planarian.registry.branch(record.id).head, record.live

    def _moved(self) -> Iterator[str]:
        """What the model has to know when somebody else rolled the sandbox back, or restarted it, since its last
        action. A statepoint that somebody took changes nothing for it.
        """
        (head, live), (now, lives) = self._where, self._position()
        if now is None or (live == lives and head in (None, *self._line(now))):
            return
        at = self.planarian.registry.statepoint(now)
        what = one_line(": ".join(filter(None, (at.name and f"`{at.name}`", at.description))), _DESCRIPTION)
        yield (
            "# The environment was brought elsewhere since your last command\n\n"
            f"It is now at statepoint {at.id} {what}\n"
            "What you did after that no longer holds. `planarian ledger` lists the statepoints."
        )

    def _line(self, statepoint_id: str | None) -> Iterator[str]:
        """A statepoint and those that it grew from."""
        seen: set[str] = set()
        while statepoint_id and statepoint_id not in seen:
            seen.add(statepoint_id)
            yield statepoint_id
            found = self.planarian.registry.find(statepoint_id)
            statepoint_id = found.parent_id if found else None

    # --- statepoints ---

    def _take_statepoint(self, command: str) -> None:
        """After an action, if the policy says so; the capture overlaps the model's next answer."""
        description = one_line(command, _DESCRIPTION)
        try:
            self._pending = self.planarian.snapshot_by_policy(self.sandbox, description=description, wait=False)
        except PlanarianError as error:
            self._note_failure(error)
        else:
            # The last statepoint of a run has no next observation to report in.
            self._pending.add_done_callback(self._log_failure)

    def _log_failure(self, done: Future[Statepoint | None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self.logger.error("No statepoint was taken after the last action: %s", error)

    def _note_failure(self, error: PlanarianError) -> None:
        self._noted = {"snapshot_error": error.to_dict()}
        self.logger.error("No statepoint was taken: %s", error)

    def _collect_statepoint(self) -> None:
        """What became of the background snapshot: noted for the observation that comes next."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            taken = pending.result()
            if taken is not None:
                self._noted = {"statepoint": taken.id}
                self._where = taken.id, self._where[1]
        except PlanarianError as error:
            self._noted = {"snapshot_error": error.to_dict()}

    def _submit(self, submitted: str) -> NoReturn:
        """Take the last statepoint, then let the submission through whatever became of it."""
        from minisweagent.exceptions import Submitted

        extra: dict[str, Any] = {"exit_status": "Submitted", "submission": submitted}
        try:
            last = self.planarian.snapshot_by_policy(self.sandbox, "submit", description="the agent submitted")
            if last is not None:
                self._noted = {"statepoint": last.id}
                self._where = self._position()
        except PlanarianError as error:
            self._note_failure(error)
        if self._noted:
            extra["planarian"] = {"sandbox": self.sandbox.id, **self._noted}
        raise Submitted({"role": "exit", "content": submitted, "extra": extra})

    # --- what mini-swe-agent asks besides ---

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Variables for the agent's prompt templates: as ``LocalEnvironment``'s."""
        from minisweagent.utils.serialize import recursive_merge

        return recursive_merge(asdict(self.config), platform.uname()._asdict(), dict(os.environ), kwargs)

    def serialize(self) -> dict[str, Any]:
        """For the trajectory file: which sandbox to go back to, where it stands, the agent's forks of it, and which
        remote services its statepoints include (``planarian.toml``).
        """
        return {
            "info": {
                "config": {
                    "environment": asdict(self.config),
                    "environment_type": f"{type(self).__module__}.{type(self).__name__}",
                },
                "planarian": {
                    "home": str(self.planarian.home),
                    "sandbox": self.sandbox.id,
                    "statepoint": self._where[0] if self._closed else self._position()[0],
                    "forks": [] if self._closed else [fork.id for fork in self._forks()],
                    "services": {name: table["kind"] for name, table in self.planarian.config.services.items()},
                },
            }
        }

    # --- the end ---

    def close(self) -> None:
        """Wait for the last statepoint; remove the sandbox, and the agent's forks of it, unless they are to be kept.
        Idempotent; runs at exit too.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._collect_statepoint()
        try:
            if not self.config.keep and not self.config.attach:
                for sandbox in (*reversed(self._forks()), self.sandbox):
                    remove_sandbox(self.planarian, sandbox, self.config)
        except LineageError as error:  # somebody forked it, and the fork stays
            self.logger.warning("The sandbox was not removed: %s", error)
        finally:
            self._close_planarian()

    def _forks(self) -> list[Sandbox]:
        """Those that the agent made, and the agents in them; oldest first."""
        records = self.planarian.registry.sandboxes()
        return [Sandbox(self.planarian, r.id) for r in records if r.made_by == self.sandbox.id]

    def _close_planarian(self) -> None:
        if self._owned:
            self.planarian.close()

    def __enter__(self) -> PlanarianEnvironment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
