"""The handle on one sandbox that users and adapters hold."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from planarian_core.interfaces import OutputSink
from planarian_core.model import Command, CommandResult, RestoreContext, SandboxRecord, Statepoint

if TYPE_CHECKING:
    from planarian_core.runtime import Planarian

StatepointRef = Statepoint | str
"""A statepoint, or what names one: ``@head``, ``@head~2``, a name, an id or a unique beginning of one."""

_SHELL = "/bin/bash"


class Sandbox:
    """A handle on one sandbox. Cheap; any number may exist for the same one."""

    def __init__(self, planarian: Planarian, sandbox_id: str) -> None:
        self.planarian = planarian
        self.id = sandbox_id

    @property
    def record(self) -> SandboxRecord:
        """What the registry knows of it now."""
        return self.planarian.registry.sandbox(self.id)

    @property
    def workspace(self) -> str:
        """The working directory of commands, as the sandbox sees it."""
        return self.record.spec.workspace

    def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: str | bytes = b"",
        timeout: float | None = None,
        output_limit: int = 1024 * 1024,
        session: str = "",
        on_output: OutputSink | None = None,
        forks: str = "agent",
    ) -> CommandResult:
        """Run a command to its end; background processes that it leaves go on.

        Args:
            command: an argument list, or a string for ``bash -c``.
            cwd: a directory inside; the workspace if empty.
            timeout: seconds, after which the command's whole tree is ended (exit code 124).
            output_limit: bytes kept of each stream; the middle of more is cut out.
            session: the name of a persistent shell that keeps directory, variables and functions between calls.
            on_output: gets ``("stdout" | "stderr", bytes)`` as output arrives.
            forks: what an agent inside may do with forks: ``none``, ``agent``, or ``on-rollback``, where a rollback
                that it asks for leaves a fork in which what it goes back from goes on.

        Raises:
            SandboxError: the sandbox can't run it; a failing command is a result, not an error.
        """
        argv = _argv(command, session)
        data = stdin.encode() if isinstance(stdin, str) else stdin
        request = Command(
            argv, cwd, dict(env or {}), stdin=data, timeout=timeout, output_limit=output_limit, session=session
        )
        return self.planarian.dispatch(self, request, on_output, forks=forks)

    def spawn(self, command: str | Sequence[str], *, output: str = "", cwd: str = "") -> None:
        """Start a background process; its output goes to the file ``output`` inside, or nowhere."""
        request = Command(_argv(command, ""), cwd, detach=True, stdout_path=output, stderr_path=output)
        self.planarian.dispatch(self, request)

    def snapshot(self, name: str = "", description: str = "") -> Statepoint:
        return self.planarian.snapshot(self, name=name, description=description)

    def rollback(self, to: StatepointRef) -> RestoreContext:
        return self.planarian.rollback(self, to)

    def stop(self) -> None:
        """End all its processes. Files and statepoints stay; a rollback brings it back."""
        with self.planarian.sandboxes.hold(self.id, exclusive=True):
            self.planarian.sandboxes.stop(self.record)
        self.planarian.warmer.look(self.id)

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r})"


def _argv(command: str | Sequence[str], session: str) -> tuple[str, ...]:
    if not isinstance(command, str):
        return tuple(os.fspath(part) for part in command)
    return (command,) if session else (_SHELL, "-c", command)
