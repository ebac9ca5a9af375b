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
from concurrent.futures import Future
from dataclasses import asdict
from types import TracebackType
from typing import Any, NoReturn

from planarian_core import Planarian, Sandbox
from planarian_core.context import one_line
from planarian_core.errors import ConfigurationError, LineageError, PlanarianError
from planarian_core.model import Statepoint
from planarian_miniswe.environment_config import PlanarianEnvironmentConfig

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

_SHELL = "/bin/bash"
# Standard error joins standard output in the order of writing. A working directory that the agent has deleted is the
# agent's own doing, so it must be an observation and not a failure of the sandbox.
_RUN_ACTION = f"""exec 2>&1
cd -- "$1" || {{ echo "It is gone. Still possible: planarian ledger, planarian rollback NAME"; exit 1; }}
exec {_SHELL} -c "$2"
"""
_NEEDS_NO_DIRECTORY = re.compile(r"\s*planarian(\s+[\w@~.-]+)+\s*")
_LONGEST_ARGUMENT = 128 * 1024 - 1  # the kernel's MAX_ARG_STRLEN
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
        self._closed = False
        try:
            self.sandbox = self._find_or_create()
        except BaseException:
            self._close_planarian()
            raise
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
            if self.config.policy:
                self.planarian.set_policy(sandbox, self.config.policy)
            return sandbox
        return self.planarian.create_sandbox(
            self.config.workspace or self.config.cwd or os.getcwd(),
            name=self.config.name,
            sandbox=self.config.sandbox,
            filesystem=self.config.filesystem,
            process=self.config.process,
            network=self.config.network,
            policy=self.config.policy,
        )

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run an action; the observation has ``output``, ``returncode``, ``exception_info``, and ``extra`` if need be.

        ``extra["planarian"]`` holds the ``statepoint`` that was taken since the last action (the state that this one
        began from), or the ``snapshot_error`` why there is none.

        Raises:
            Submitted: the agent has finished.
            PlanarianError: the sandbox failed; a failing action is an observation.
        """
        command = action.get("command", "")
        self._collect_statepoint()
        observation = _refusal(command) or self._run(command, cwd, timeout or self.config.timeout)
        submission = _submission(observation)
        if submission is not None:
            self._submit(submission)
        noted, self._noted = self._noted, {}
        if noted:
            observation.setdefault("extra", {})["planarian"] = noted
        self._take_statepoint(command)
        return observation

    def _run(self, command: str, cwd: str, seconds: float) -> dict[str, Any]:
        directory = os.path.join(self.sandbox.workspace, cwd or self.config.cwd)
        if _NEEDS_NO_DIRECTORY.fullmatch(command):
            directory = "/"
        result = self.sandbox.run(
            [_SHELL, "-c", _RUN_ACTION, _SHELL, directory, command],
            cwd="/",
            env={**self._forwarded(), **self.config.env},
            timeout=seconds,
            output_limit=self.config.output_limit,
        )
        output = result.stdout + result.stderr
        if result.timed_out:
            return _failure("TimeoutExpired", f"Command '{command}' timed out after {seconds} seconds", output)
        cut = f"The output was longer than {self.config.output_limit} bytes; its middle was cut out."
        return {
            "output": output,
            "returncode": result.exit_code,
            "exception_info": cut if result.truncated else "",
        }

    def _forwarded(self) -> dict[str, str]:
        wanted = self.config.forward_env
        return {k: v for k, v in os.environ.items() if any(fnmatch.fnmatchcase(k, pattern) for pattern in wanted)}

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
            self._noted = {"statepoint": taken.id} if taken else {}
        except PlanarianError as error:
            self._noted = {"snapshot_error": error.to_dict()}

    def _submit(self, submission: str) -> NoReturn:
        """Take the last statepoint, then let the submission through whatever became of it."""
        from minisweagent.exceptions import Submitted

        extra: dict[str, Any] = {"exit_status": "Submitted", "submission": submission}
        try:
            last = self.planarian.snapshot_by_policy(self.sandbox, "submit", description="the agent submitted")
            if last is not None:
                self._noted = {"statepoint": last.id}
        except PlanarianError as error:
            self._note_failure(error)
        if self._noted:
            extra["planarian"] = {"sandbox": self.sandbox.id, **self._noted}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})

    # --- what mini-swe-agent asks besides ---

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Variables for the agent's prompt templates: as ``LocalEnvironment``'s."""
        from minisweagent.utils.serialize import recursive_merge

        return recursive_merge(asdict(self.config), platform.uname()._asdict(), dict(os.environ), kwargs)

    def serialize(self) -> dict[str, Any]:
        """For the trajectory file; says which sandbox to go back to."""
        return {
            "info": {
                "config": {
                    "environment": asdict(self.config),
                    "environment_type": f"{type(self).__module__}.{type(self).__name__}",
                },
                "planarian": {"home": str(self.planarian.home), "sandbox": self.sandbox.id},
            }
        }

    # --- the end ---

    def close(self) -> None:
        """Wait for the last statepoint; remove the sandbox unless it is to be kept. Idempotent; runs at exit too."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._collect_statepoint()
        try:
            if not self.config.keep and not self.config.attach:
                self.planarian.remove_sandbox(self.sandbox)
        except LineageError as error:  # the agent forked it, and the fork stays
            self.logger.warning("The sandbox was not removed: %s", error)
        finally:
            self._close_planarian()

    def _close_planarian(self) -> None:
        if self._owned:
            self.planarian.close()

    def __enter__(self) -> PlanarianEnvironment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def require_mini() -> None:
    """ConfigurationError, with what mends it, where mini-swe-agent can't be imported."""
    try:
        import minisweagent  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"mini-swe-agent can't be imported: {error}",
            code="miniswe-missing",
            remedy="pip install 'planarian[miniswe]'",
        ) from error


def _failure(kind: str, error: str, output: str = "") -> dict[str, Any]:
    """An action that failed rather than ended: in the words of ``LocalEnvironment``."""
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": kind, "exception": error},
    }


def _refusal(command: str) -> dict[str, Any] | None:
    """Why no system could run this command, as an observation; None when it can be tried."""
    try:
        length = len(os.fsencode(command))
    except UnicodeEncodeError as error:
        return _failure("UnicodeEncodeError", str(error))
    if "\0" in command:
        return _failure("ValueError", "embedded null byte")
    if length > _LONGEST_ARGUMENT:
        return _failure("OSError", "[Errno 7] Argument list too long: write long content to a file piece by piece")
    return None


def _submission(observation: dict[str, Any]) -> str | None:
    """What the agent submits; None when it goes on. A cut output is no submission: it would be a damaged one."""
    lines = observation["output"].lstrip().splitlines(keepends=True)
    if not lines or lines[0].strip() != SUBMIT or observation["returncode"] != 0 or observation["exception_info"]:
        return None
    return "".join(lines[1:])
