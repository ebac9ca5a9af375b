"""Serves the ``planarian`` command that the agent itself runs inside its sandbox, in the middle of a tool call.

Evidence is answered at once. A snapshot is taken right there, between two commands of a compound one: the call's own
shells are in the image, but die in a restore before they run. A rollback can't return to a command of a world that is
gone: it ends the call, happens when the call has ended, and its restore context is the call's output; a promotion of a
fork likewise. Commands run in a fork while the call waits. All input is untrusted; nothing here can name a sandbox but
the agent's own and forks that agents made of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from planarian_core.capture import SnapshotRequest
from planarian_core.context import one_line
from planarian_core.errors import CaptureError, ConfigurationError, LineageError, PlanarianError, SandboxError
from planarian_core.interfaces import AgentReply, AgentRequest, OutputSink
from planarian_core.locks import Held
from planarian_core.model import Command, CommandResult

if TYPE_CHECKING:
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox

EXIT_ERROR, EXIT_USAGE = 1, 2
FORKS = ("none", "agent", "on-rollback")
"""What an agent may do with forks: make none; make and use its own; and, beyond that, each rollback that it asks for
leaves a fork in which what it goes back from goes on."""


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
    run = commands.add_parser("run", help="run a command in a fork, and wait for it")
    run.add_argument("fork")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="command")
    promote = commands.add_parser("promote", help="make a fork's state this environment's; ends the running command")
    promote.add_argument("fork")
    remove = commands.add_parser("rm", help="end a fork and remove it")
    remove.add_argument("fork")
    outcome = commands.add_parser("outcome", help="note how what you tried from a statepoint ended")
    outcome.add_argument("statepoint")
    outcome.add_argument("text", nargs="+")
    outcome.add_argument("--status", choices=("note", "succeeded", "failed"), default="note")
    for name in ("ledger", "log"):
        commands.add_parser(name, help="list the statepoints and what is known of them")
    return parser


class RequestServer:
    """Answers the requests of one call, whose shared lock is ``held``.

    Args:
        command: the call's; what it runs in a fork gets the time that is left of its own.
        forks: one of :data:`FORKS`.
        within: the call is itself one that an agent runs in a fork.
    """

    def __init__(
        self, planarian: Planarian, sandbox: Sandbox, held: Held, command: Command, forks: str, within: bool = False
    ) -> None:
        if forks not in FORKS:
            raise ConfigurationError(f"forks {forks!r} is unknown", remedy=f"one of: {', '.join(FORKS)}")
        self._planarian = planarian
        self._sandbox = sandbox
        self._held = held
        self._forks = forks
        self._within = within
        self._deadline = None if command.timeout is None else time.monotonic() + command.timeout
        self._then: Callable[[], tuple[int, str]] | None = None

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
            "run": self._run,
            "promote": self._promote,
            "rm": self._remove,
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

        def roll_back() -> tuple[int, str]:
            left = self._fork_of_what_is_left() if self._forks == "on-rollback" else ""
            return 0, self._planarian.rollback(self._sandbox, statepoint.id).to_markdown() + left

        self._then = roll_back
        return AgentReply(ends_call=True)

    def _fork_of_what_is_left(self) -> str:
        """Let what a rollback leaves go on in a fork; what the agent is to know of it. Without one the rollback's
        safety statepoint still keeps it, so nothing here stops the rollback.
        """
        try:
            left = self._planarian.snapshot(self._sandbox, description="left by a rollback", automatic=True)
            fork, _ = self._planarian.fork_with_context(left, of=self._sandbox, by_agent=True)
        except PlanarianError as error:
            return f"\nWhat you went back from does not go on in a fork: {error}\n"
        return f"\nWhat you went back from goes on in the fork {fork.id}: planarian run {fork.id} COMMAND\n"

    # --- forks ---

    def _fork(self, options: argparse.Namespace, request: AgentRequest) -> AgentReply:
        if self._forks == "none":
            raise SandboxError("this environment is not to be forked", code="forks-off", state="nothing was made")
        statepoint = self._planarian.resolve(self._sandbox, options.statepoint)
        maker = maker_of(self._planarian, self._sandbox)
        record, _ = self._planarian.statepoints.fork(self._sandbox.record, statepoint, options.name, made_by=maker)
        return AgentReply(stdout=f"{record.id} {record.name}".rstrip() + "\n")

    def _named(self, reference: str) -> Sandbox:
        """A fork that an agent of this family made. From within a fork none: whoever waits for a call in one holds a
        lock that the call would wait for.
        """
        if self._within:
            raise SandboxError(
                "forks can't be used from within a fork", code="forks-nested", remedy="ask from where you run it"
            )
        found = self._planarian.sandbox(reference)
        if found.id == self._sandbox.id or found.record.made_by != self._sandbox.record.family:
            raise LineageError(
                f"{reference} is no fork of this environment", code="sandbox-unknown", remedy="planarian fork makes one"
            )
        return found

    def _run(self, options: argparse.Namespace, request: AgentRequest) -> AgentReply:
        """Several words are a command and its arguments, one is a line for the shell."""
        fork = self._named(options.fork)
        words = [word for word in options.words if word != "--"] if options.words[:1] == ["--"] else options.words
        if not words:
            raise ConfigurationError("no command is given", remedy=f"planarian run {options.fork} COMMAND")
        argv = tuple(words) if len(words) > 1 else ("/bin/bash", "-c", words[0])
        left = None if self._deadline is None else max(0.1, self._deadline - time.monotonic())
        result = self._planarian.dispatch(fork, Command(argv, timeout=left), forks=self._forks, within=True)
        note = ""
        try:
            self._planarian.snapshot_by_policy(fork, description=one_line(" ".join(words), 300))
        except PlanarianError as error:
            note = f"planarian: no statepoint of {fork.id} was taken: {error}\n"
        return AgentReply(result.exit_code, result.stdout, result.stderr + note)

    def _promote(self, options: argparse.Namespace, request: AgentRequest) -> AgentReply:
        """Nothing asks whether something was done here since: like a rollback it keeps that in a safety statepoint."""
        from planarian_core.promote import source_of

        fork = self._named(options.fork)
        if source_of(self._planarian.statepoints, fork.record) != self._sandbox.id:
            raise LineageError(
                f"{fork.id} was forked from another fork", code="not-a-fork", remedy="only your own can be promoted"
            )

        def promote() -> tuple[int, str]:
            try:
                return 0, self._planarian.promote(fork, force=True).to_markdown()
            except CaptureError as error:  # of the fork; nothing was changed
                return EXIT_ERROR, f"planarian: {error}\n"

        self._then = promote
        return AgentReply(ends_call=True)

    def _remove(self, options: argparse.Namespace, request: AgentRequest) -> AgentReply:
        fork = self._named(options.fork)
        self._planarian.remove_sandbox(fork)
        return AgentReply(stdout=f"{fork.id} removed\n")

    # --- evidence ---

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
        if self._then is None:
            return result
        code, text = self._then()
        if sink is not None:
            sink("stdout", text.encode())
        return replace(result, exit_code=code, stdout=result.stdout + text, timed_out=False)


def maker_of(planarian: Planarian, sandbox: Sandbox) -> str:
    """Whose fork a further fork by an agent would be. An agent that loops must not fill the host with sandboxes, nor
    its forks' agents in its stead.

    Raises:
        SandboxError: ``forks-limit``: it has as many as the configuration allows.
    """
    maker = sandbox.record.family
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
