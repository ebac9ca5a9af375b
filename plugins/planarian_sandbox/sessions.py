"""Persistent shells in a namespace sandbox: brings :mod:`session_client` together with this backend's calls."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from planarian_core.interfaces import OutputSink, RequestHandler
from planarian_core.model import Command, CommandResult, LiveSandbox, SandboxSpec
from planarian_sandbox.channel import Call, Frame
from planarian_sandbox.identity import end_below, inside_chain, namespace_pids, pid_namespace
from planarian_sandbox.inside import Inside, tampering
from planarian_sandbox.layout import RUNTIME, inside_python
from planarian_sandbox.request_listener import RequestListener
from planarian_sandbox.session_client import SessionClient, end_left_in_sessions

_HOLDER = f"{RUNTIME}/session_holder.py"


def run_in_session(
    home: Path,
    spec: SandboxSpec,
    live: LiveSandbox,
    init: int,
    command: Command,
    frame: Callable[[Command, str], Frame],
    sink: OutputSink | None,
    requests: RequestHandler | None,
) -> CommandResult:
    """Run shell input in the session ``command.session``, started where it isn't running yet.

    Args:
        init: a pidfd of the sandbox's init.
        frame: how a command with this argument list is put to the init, given the id of the call.
    """
    directory = f"{RUNTIME}/sessions/{command.session}"
    call_id = secrets.token_hex(8)

    def launch() -> None:
        argv = (inside_python(spec.root), "-I", "-S", _HOLDER, directory)
        holder = Command(argv, cwd=command.cwd, env=command.env, clear_env=command.clear_env, detach=True)
        with Call(live, init) as call:
            call.begin(frame(holder, "none"))

    with _directory(live, directory) as inside:
        client = SessionClient(inside, launch, _lock(home, spec, command.session), lambda: _end(live, directory))
        if requests is None:
            return client.run(command, sink, call=call_id)
        with listening(live, call_id, requests) as listener:
            return client.run(command, sink, listener.look, call_id)


@contextmanager
def listening(live: LiveSandbox, call_id: str, handler: RequestHandler) -> Iterator[RequestListener]:
    """Take requests of a call from inside a running sandbox."""
    with tampering("Requests can't be listened to"), Inside.of_init(live.init_pid) as root:
        place = root.directory(RUNTIME.lstrip("/"))
    with place, RequestListener(place, call_id, partial(inside_chain, live.init_pid), handler) as listener:
        yield listener


def end_left(live: LiveSandbox, root: Inside, calls: Collection[str]) -> None:
    """End what runs of ``calls`` in sessions of a running sandbox, by its root directory."""
    directory = f"{RUNTIME}/sessions"
    with contextlib.suppress(OSError), root.directory(directory.lstrip("/")) as sessions:
        end_left_in_sessions(sessions, calls, lambda name: _end(live, f"{directory}/{name}"))


def forget_sessions(home: Path, sandbox_id: str) -> None:
    """Remove the lock files of a stopped sandbox."""
    for path in (home / "sessions").glob(f"{sandbox_id}.*.lock"):
        path.unlink(missing_ok=True)


def _directory(live: LiveSandbox, directory: str) -> Inside:
    relative = directory.lstrip("/")
    with (
        tampering("The session's directory can't be made"),
        Inside.of_init(live.init_pid) as root,
        root.make_directory(os.path.dirname(relative), 0o700),
    ):
        return root.make_directory(relative, 0o700)


def _lock(home: Path, spec: SandboxSpec, session: str) -> str:
    directory = home / "sessions"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(directory / f"{spec.id}.{session}.lock")


def _end(live: LiveSandbox, directory: str) -> None:
    """End the session's holder and all that descends from it."""
    namespace = pid_namespace(live.init_pid)
    wanted = os.fsencode(f"{_HOLDER}\0{directory}\0")
    for pid in namespace_pids(live.init_pid)[1:]:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found = file.read(4096)
        except OSError:
            continue
        if found.endswith(wanted) and namespace is not None:
            end_below(pid, namespace)
