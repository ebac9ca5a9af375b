"""Serves the ``planarian`` command that the agent itself runs inside its sandbox, in the middle of a tool call.

Evidence is answered at once. A snapshot is taken right there, between two commands of a compound one: the call's own
shells are in the image, but die in a restore before they run. A rollback can't return to a command of a world that is
gone: it ends the call, happens when the call has ended, and its restore context is the call's output. All input is
untrusted; nothing here can name another sandbox.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from planarian_core.capture import SnapshotRequest
from planarian_core.errors import PlanarianError, SandboxError
from planarian_core.interfaces import AgentReply, AgentRequest, OutputSink
from planarian_core.locks import Held
from planarian_core.model import CommandResult

if TYPE_CHECKING:
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox

EXIT_ERROR, EXIT_USAGE = 1, 2


class _UsageError(Exception):
    pass


class _Help(Exception):
    """Raised with the help text; argparse itself would print it on the host's standard output."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{self.format_usage()}{message}\n")

    def print_help(self, file: object = None) -> None:
        raise _Help(self.format_help())


def _parser() -> _Parser:
    parser = _Parser(prog="planarian", description="Statepoints of this environment: files and running processes.")
    commands = parser.add_subparsers(dest="command", required=True)
    snapshot = commands.add_parser("snapshot", help="record a statepoint to come back to")
    snapshot.add_argument("name", nargs="?", default="")
    snapshot.add_argument("-n", "--name", dest="name_option", default="")
    snapshot.add_argument("-d", "--description", default="")
    rollback = commands.add_parser("rollback", help="return to a statepoint; ends the running command")
    rollback.add_argument("statepoint")
    fork = commands.add_parser("fork", help="make an independent copy of the environment at a statepoint")
    fork.add_argument("statepoint", nargs="?", default="@head")
    fork.add_argument("-n", "--name", default="")
    outcome = commands.add_parser("outcome", help="note how what you tried from a statepoint ended")
    outcome.add_argument("statepoint")
    outcome.add_argument("text", nargs="+")
    outcome.add_argument("--status", choices=("note", "succeeded", "failed"), default="note")
    for name in ("ledger", "log"):
        commands.add_parser(name, help="list the statepoints and what is known of them")
    return parser


class RequestServer:
    """Answers the requests of one call, whose shared lock is ``held``."""

    def __init__(self, planarian: Planarian, sandbox: Sandbox, held: Held) -> None:
        self._planarian = planarian
        self._sandbox = sandbox
        self._held = held
        self._rollback_to: str | None = None

    def handle(self, request: AgentRequest) -> AgentReply:
        """Answer one request; what goes wrong is the asker's error output, never an exception."""
        try:
            options = _parser().parse_args(list(request.argv))
        except _UsageError as error:
            return AgentReply(EXIT_USAGE, stderr=str(error))
        except _Help as help_text:
            return AgentReply(0, stdout=str(help_text))
        actions: dict[str, Callable[[argparse.Namespace, AgentRequest], AgentReply]] = {
            "snapshot": self._snapshot,
            "rollback": self._rollback,
            "fork": self._fork,
            "outcome": self._outcome,
            "ledger": self._ledger,
            "log": self._ledger,
        }
        try:
            return actions[options.command](options, request)
        except PlanarianError as error:
            return AgentReply(EXIT_ERROR, stderr=f"planarian: {error}\n")

    def _snapshot(self, options: argparse.Namespace, request: AgentRequest) -> AgentReply:
        wanted = SnapshotRequest(options.name or options.name_option, options.description, in_flight=request.chain)
        live = self._sandbox.record.live
        with self._held.upgraded(self._planarian.config.lock_timeout):
            record = self._sandbox.record
            self._planarian.sandboxes.check_running(record)
            if record.live != live:
                raise SandboxError("the sandbox was rolled back meanwhile", code="sandbox-changed")
            statepoint = self._planarian.take(record, wanted)
        gaps = "".join(f"not captured: {g.subject}: {g.reason}\n" for g in statepoint.coverage.missing)
        return AgentReply(stdout=f"{statepoint.id} {statepoint.name}".rstrip() + f"\n{gaps}")

    def _rollback(self, options: argparse.Namespace, request: AgentRequest) -> AgentReply:
        statepoint = self._planarian.resolve(self._sandbox, options.statepoint)
        # Alone: a remote call that is under way would be taken for one that a dead proxy left, and settled.
        with self._held.upgraded(self._planarian.config.lock_timeout):
            self._planarian.statepoints.check_rollback(self._sandbox.record, statepoint)
        self._rollback_to = statepoint.id
        return AgentReply(ends_call=True)

    def _fork(self, options: argparse.Namespace, request: AgentRequest) -> AgentReply:
        statepoint = self._planarian.resolve(self._sandbox, options.statepoint)
        maker = maker_of(self._planarian, self._sandbox)
        record, _ = self._planarian.statepoints.fork(self._sandbox.record, statepoint, options.name, made_by=maker)
        return AgentReply(stdout=f"{record.id} {record.name}".rstrip() + "\n")

    def _outcome(self, options: argparse.Namespace, request: AgentRequest) -> AgentReply:
        text = " ".join(options.text)
        self._planarian.append_outcome(
            options.statepoint, text, status=options.status, author=f"agent of {self._sandbox.id}", of=self._sandbox
        )
        return AgentReply(stdout="noted\n")

    def _ledger(self, options: argparse.Namespace, request: AgentRequest) -> AgentReply:
        limit = self._planarian.config.ledger_characters
        return AgentReply(stdout=self._planarian.ledger(self._sandbox).to_markdown(limit))

    def after(self, result: CommandResult, sink: OutputSink | None) -> CommandResult:
        """What is left to do when the call has ended and its lock is released; the call's final result."""
        if self._rollback_to is None:
            return result
        restored = self._planarian.rollback(self._sandbox, self._rollback_to)
        text = restored.to_markdown()
        if sink is not None:
            sink("stdout", text.encode())
        return replace(result, exit_code=0, stdout=result.stdout + text, timed_out=False)


def maker_of(planarian: Planarian, sandbox: Sandbox) -> str:
    """Whose fork a further fork by an agent would be. An agent that loops must not fill the host with sandboxes, nor
    its forks' agents in its stead.

    Raises:
        SandboxError: ``forks-limit``: it has as many as the configuration allows.
    """
    maker = sandbox.record.made_by or sandbox.id
    forks = [r.id for r in planarian.registry.sandboxes() if not r.closed and r.made_by == maker]
    limit = planarian.config.agent_forks
    if len(forks) >= limit:
        raise SandboxError(
            f"there are {len(forks)} forks of this environment already, and no more than {limit} are allowed",
            code="forks-limit",
            state="nothing was made",
            remedy="ask the user to remove some, or to raise agent_forks in the home's planarian.toml",
        )
    return maker
