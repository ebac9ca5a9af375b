"""The sandbox backend ``directory``: works in the user's own workspace, anywhere, without isolation.

Commands are ordinary processes of this user, free to reach the whole host: only the workspace is state. They get the
user's environment without variables that look like secrets, which keeps honest programs from using them, no more.
There is no init; what belongs to the sandbox is known by its control group where there can be one, else by a mark in
the environment (:mod:`planarian_sandbox.directory_tasks`). Background processes keep a valid stdout between calls and
runtimes; what they write after their call is dropped, unless they were given a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from planarian_core.boot import boot_id
from planarian_core.errors import SandboxError
from planarian_core.interfaces import Availability, OutputSink, RequestHandler, SandboxCapabilities
from planarian_core.model import Command, CommandResult, LiveSandbox, SandboxSpec
from planarian_sandbox import cgroups
from planarian_sandbox.command_check import check_command
from planarian_sandbox.directory_command import NotRunnable, launch, reap, run_command, start
from planarian_sandbox.directory_run import RunFolder
from planarian_sandbox.directory_tasks import Tasks, end
from planarian_sandbox.inside import Inside, tampering
from planarian_sandbox.request_listener import RequestListener, abandoned_calls, forget_abandoned_calls
from planarian_sandbox.session_client import SessionClient, end_left_in_sessions


class DirectoryBackend:
    """See the module. ``LiveSandbox.init_pid`` is 0: there is no init."""

    name = "directory"
    capabilities = SandboxCapabilities(isolated=False, process_tree=False, in_place=True)

    def __init__(self, home: Path) -> None:
        self._home = home

    def probe(self) -> Availability:
        if os.name != "posix":
            return Availability(False, "it needs a POSIX system")
        reason = "no isolation: commands are ordinary processes of this user"
        if not _groups_possible():
            reason += "; without a control group, daemons that clear their environment can't be followed"
        return Availability(True, reason)

    def prepare(self, spec: SandboxSpec) -> SandboxSpec:
        return spec

    def start(self, spec: SandboxSpec) -> LiveSandbox:
        if not os.path.isdir(spec.workspace):
            raise SandboxError(f"the workspace {spec.workspace} is gone", code="sandbox-workspace")
        groups = cgroups.make(spec.id, spec.limits) if sys.platform == "linux" else ()
        try:
            token = RunFolder(spec).make()
        except BaseException as error:
            cgroups.remove(groups)
            if not isinstance(error, OSError):
                raise
            raise SandboxError(
                f"the sandbox's folder can't be made: {error}", code="sandbox-files", state="nothing runs"
            ) from error
        return LiveSandbox(0, 0, boot_id(), groups, {"token": token})

    def execute(
        self,
        spec: SandboxSpec,
        live: LiveSandbox,
        command: Command,
        sink: OutputSink | None = None,
        requests: RequestHandler | None = None,
    ) -> CommandResult:
        check_command(spec, command)
        if not self.alive(spec, live):
            raise SandboxError(
                "the sandbox does not run: it was stopped, or the host was restarted",
                code="sandbox-dead",
                state="its files are as they were left",
            )
        cgroups.keep(spec.id, live.cgroups, spec.limits)
        run, tasks = RunFolder(spec), _tasks(spec, live)
        call = secrets.token_hex(8)
        try:
            if command.detach:
                launch(tasks, run, command, call)
                return CommandResult(0, "", "", 0.0)
            with _listening(run, tasks, call, requests) as look:
                if command.session:
                    return _in_session(run, tasks, command, call, sink, look)
                return run_command(tasks, run, command, call, sink, look)
        except NotRunnable as failure:
            message = f"planarian: {failure.message}\n"
            if sink is not None:
                sink("stderr", message.encode("utf-8", "replace"))
            return CommandResult(failure.exit_code, "", message, 0.0)

    def end_abandoned_calls(self, spec: SandboxSpec, live: LiveSandbox) -> int:
        """End calls whose runtime was killed; see :class:`planarian_core.interfaces.EndsAbandonedCalls`."""
        run, tasks = RunFolder(spec), _tasks(spec, live)
        with contextlib.ExitStack() as stack:
            try:
                place = stack.enter_context(Inside.of_path(str(run.path)))
                calls = abandoned_calls(place)
            except OSError:
                return 0
            if calls:
                with contextlib.suppress(OSError), place.directory("sessions") as sessions:
                    end_left_in_sessions(sessions, calls, lambda name: end(lambda: tasks.of_session(name)))
                end(lambda: tasks.of_calls(*calls))
                with contextlib.suppress(OSError):
                    for call in calls:
                        (run.calls / f"{call}.in").unlink(missing_ok=True)
                    forget_abandoned_calls(place, calls)
            return len(calls)

    def tasks(self, spec: SandboxSpec, live: LiveSandbox) -> tuple[int, ...]:
        return _tasks(spec, live).all()

    def stop(self, spec: SandboxSpec, live: LiveSandbox | None) -> None:
        """Without ``live`` the groups and the mark are enough to find what runs."""
        groups = cgroups.of_sandbox(spec.id) if sys.platform == "linux" else ()
        leaders = RunFolder(spec).path / "leaders"
        end(Tasks(spec.id, groups, leaders).all)
        if not groups and live is not None and live.cgroups:
            end(Tasks(spec.id, (), leaders).all)
        cgroups.remove(groups)
        RunFolder(spec).remove()

    def alive(self, spec: SandboxSpec, live: LiveSandbox) -> bool:
        return live.boot_id == boot_id() and RunFolder(spec).is_live(str(live.details.get("token")))

    def fingerprint(self, spec: SandboxSpec) -> str:
        return hashlib.sha256(platform.platform().encode()).hexdigest()[:16]


def _groups_possible() -> bool:
    return sys.platform == "linux" and bool(cgroups.hierarchies().unified)


def _tasks(spec: SandboxSpec, live: LiveSandbox) -> Tasks:
    return Tasks(spec.id, live.cgroups, RunFolder(spec).path / "leaders")


@contextmanager
def _listening(
    run: RunFolder, tasks: Tasks, call: str, handler: RequestHandler | None
) -> Iterator[Callable[[], bool] | None]:
    """Take requests of a call, if anybody answers them: gives what is to be called while it runs."""
    if handler is None:
        yield None
        return
    with tampering("Requests can't be listened to"):
        place = Inside.of_path(str(run.path))
    with place, RequestListener(place, call, tasks.chain, handler) as listener:
        yield listener.look


def _in_session(
    run: RunFolder,
    tasks: Tasks,
    command: Command,
    call: str,
    sink: OutputSink | None,
    look: Callable[[], bool] | None,
) -> CommandResult:
    folder = run.session(command.session)

    def start_holder() -> None:
        holder = str(Path(__file__).with_name("session_holder.py"))
        environment = run.environment(command, "none") | {"PLANARIAN_SESSION": command.session}
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            argv = (sys.executable, "-I", "-S", holder, str(folder))
            files = (os.devnull, null, null)
            reap(start(tasks, argv, environment, run.directory(command), files, f"session-{command.session}"))
        finally:
            os.close(null)

    def end_session() -> None:
        end(lambda: tasks.of_session(command.session))

    lock = str(run.path / f"session-{command.session}.lock")
    with tampering("The session's directory can't be opened"):
        directory = Inside.of_path(str(folder))
    with directory:
        result = SessionClient(directory, start_holder, lock, end_session).run(command, sink, look, call)
    if result.timed_out or result.exit_code == 137:
        end(lambda: tasks.of_calls(call))
    return result
