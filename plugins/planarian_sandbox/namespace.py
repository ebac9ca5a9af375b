"""The ``namespace`` backend: Linux namespaces over the host's own files, as root or as an ordinary user."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from planarian_core.errors import SandboxError
from planarian_core.file_tree import FileEntry, FileTree
from planarian_core.interfaces import (
    Availability,
    OutputSink,
    RequestHandler,
    RestoreEnvironment,
    SandboxCapabilities,
)
from planarian_core.model import Command, CommandResult, LiveSandbox, Network, SandboxSpec
from planarian_sandbox import cgroups, foreign_layer
from planarian_sandbox.abandoned import end_abandoned_calls
from planarian_sandbox.base import base_fingerprint
from planarian_sandbox.channel import Call, DetachFailed, Frame, forget_calls
from planarian_sandbox.command_check import check_command
from planarian_sandbox.ending import end_init, end_strays, refuse_running
from planarian_sandbox.identity import (
    init_handle,
    kill,
    namespace_pids,
    own_memory,
    pid_namespace,
    process_stat,
    running_init,
)
from planarian_sandbox.index import heal_index
from planarian_sandbox.launch import (
    BESIDE,
    PATH,
    PROGRAMS,
    await_agent,
    check_id,
    configuration,
    files,
    launch,
    live_sandbox,
    mount_for_restore,
    mount_point,
    remove_mount_points,
    reported,
)
from planarian_sandbox.layer import prepare, refresh
from planarian_sandbox.layout import Layout, is_fresh, refuse_rootless
from planarian_sandbox.merged import merged
from planarian_sandbox.probe import probe
from planarian_sandbox.sessions import forget_sessions, listening, run_in_session

_TIMED_OUT = 124
_ENDED = 137


class NamespaceBackend:
    """Confines commands by namespaces, capabilities, a system-call filter and control groups.

    Args:
        home: the home of Planarian; this backend keeps ``cache/`` and ``mounts/`` in it.
    """

    name = "namespace"
    capabilities = SandboxCapabilities(isolated=True, process_tree=True, in_place=False, other_root=True)

    def __init__(self, home: Path) -> None:
        self._home = home

    def probe(self) -> Availability:
        """Whether sandboxes can be made here: really makes namespaces, once per backend."""
        return probe(self._home)

    def prepare(self, spec: SandboxSpec) -> SandboxSpec:
        """Fill a new layer; ConfigurationError when the workspace is missing or hidden."""
        check_id(spec.id)
        with reported(f"The layer {spec.layer} can't be prepared"):
            return replace(spec, exclude=prepare(spec, self._home).exclude)

    def start(self, spec: SandboxSpec) -> LiveSandbox:
        """Start an init on the layer. Nothing is left running when this raises."""
        layout = Layout.load(spec.layer)
        refuse_running(check_id(spec.id))
        with reported("The sandbox can't be started"):
            refresh(spec, layout, self._home)
            heal_index(spec.layer, layout)
            groups = cgroups.make(spec.id, spec.limits)
            try:
                live = self.adopt(spec, launch(configuration(self._home, spec, layout, groups)))
                await_agent(live)
            except BaseException:
                self.stop(spec, None)
                raise
        return live

    def execute(
        self,
        spec: SandboxSpec,
        live: LiveSandbox,
        command: Command,
        sink: OutputSink | None = None,
        requests: RequestHandler | None = None,
    ) -> CommandResult:
        """Run a command to its end; see :class:`planarian_core.interfaces.SandboxBackend`.

        A command that floods its output is slowed to the pace at which it is read here. A call that a request ended
        (``ends_call``) has exit code 137.
        """
        check_command(spec, command)
        started = time.monotonic()
        if command.session:
            with running_init(live) as init:
                return run_in_session(self._home, spec, live, init, command, partial(_frame, spec), sink, requests)
        # The listener goes last: while anything of the call may run, its file tells to whom that belongs.
        with running_init(live) as init, contextlib.ExitStack() as stack, Call(live, init) as call:
            frame = _frame(spec, command, call.id)
            listener = None
            if requests is not None and not command.detach:
                listener = stack.enter_context(listening(live, call.id, requests))
            try:
                call.begin(frame, command.stdin, command.output_limit, sink)
            except DetachFailed as failure:
                return CommandResult(failure.code, "", failure.message, time.monotonic() - started)
            if command.detach:
                return CommandResult(0, "", "", time.monotonic() - started)
            if listener is not None and not call.group and (status := process_stat(call.pid)) is not None:
                listener.leads(call.pid, status[1])
            code = call.wait(command.timeout, listener.look if listener else None)
            timed_out = code is None and not (listener is not None and listener.ended)
            out, err = (output.kept for output in call.outputs)
            return CommandResult(
                exit_code=code if code is not None else _TIMED_OUT if timed_out else _ENDED,
                stdout=out.text(),
                stderr=err.text(),
                duration=time.monotonic() - started,
                timed_out=timed_out,
                truncated=out.truncated or err.truncated,
            )

    def end_abandoned_calls(self, spec: SandboxSpec, live: LiveSandbox) -> int:
        """End calls whose runtime was killed; see :class:`planarian_core.interfaces.EndsAbandonedCalls`."""
        return end_abandoned_calls(live)

    def tasks(self, spec: SandboxSpec, live: LiveSandbox) -> tuple[int, ...]:
        """Host pids of all its processes, the init first; empty when it is gone."""
        with init_handle(live) as init:
            if init is None:
                return ()
            group = cgroups.unified(live.cgroups)
            if not group:
                return namespace_pids(live.init_pid)
            return (live.init_pid, *sorted(cgroups.members(group) - {live.init_pid}))

    def stop(self, spec: SandboxSpec, live: LiveSandbox | None) -> None:
        """End all its processes; returns when they are gone. Idempotent.

        Without ``live`` what runs is found by the sandbox's control groups and by its init's arguments. With it, what
        was made for another id, of a copy that was handed to this sandbox, goes as well.
        """
        groups = cgroups.of_sandbox(check_id(spec.id))
        made_for = {spec.id}
        if live is None:
            end_strays(spec.id, groups)
        else:
            with init_handle(live) as init:
                if init is not None:
                    end_init(spec.id, init)
            groups = tuple({*groups, *live.cgroups}) if live.cgroups else groups
            made_for.add(str(live.details.get("made_for", spec.id)))
        cgroups.remove(groups)
        forget_sessions(self._home, spec.id)
        for sandbox_id in made_for:
            remove_mount_points(self._home, sandbox_id)

    def kill(self, spec: SandboxSpec, live: LiveSandbox) -> None:
        """End all its processes without waiting for it; see :class:`planarian_core.interfaces.KillsAtOnce`."""
        with init_handle(live) as init:
            if init is not None:
                kill(init)  # with the init of a pid namespace all its processes are killed

    def alive(self, spec: SandboxSpec, live: LiveSandbox) -> bool:
        """Whether its very init still runs."""
        with init_handle(live) as init:
            return init is not None

    def fingerprint(self, spec: SandboxSpec) -> str:
        """Identifies the host's installed software, or the image's, which lies below the layer."""
        return base_fingerprint(spec.root)

    def restore_environment(self, spec: SandboxSpec) -> RestoreEnvironment:
        """Make ready for a restore. SandboxError for a rootless sandbox: CRIU can't serve it."""
        layout = refuse_rootless(Layout.load(spec.layer))
        with reported("The place for a restore can't be made"):
            config = files(self._home, spec, layout)
            beside = {kind: mount_point(self._home, spec, f".{kind}") for kind in BESIDE}
            groups = cgroups.make(spec.id, spec.limits)

        def enter() -> None:
            refresh(spec, layout, self._home, programs=False)
            heal_index(spec.layer, layout)
            mount_for_restore(config, beside)

        return RestoreEnvironment(
            enter,
            config["root"],
            spec.network is Network.NONE,
            {layout.workspace: beside["workspace"], "/dev": beside["dev"]},
            groups,
            cgroups.unified(groups),
        )

    def adopt(self, spec: SandboxSpec, init_pid: int) -> LiveSandbox:
        """Take a tree over whose init is ``init_pid``. SandboxError when that is not the init of a namespace.

        Files of calls that were under way in an image are removed: nobody follows those any more.
        """
        if pid_namespace(init_pid) in (None, pid_namespace(os.getpid())):
            raise SandboxError(f"Process {init_pid} is not a sandbox's init.", code="sandbox-foreign")
        layout = Layout.load(spec.layer)
        details = {"mounts": [layout.workspace, "/dev"], "made_for": spec.id}
        live = live_sandbox(init_pid, cgroups.of_sandbox(spec.id), details)
        forget_calls(init_pid)
        return live

    def merged(self, spec: SandboxSpec, layer: FileTree) -> FileTree:
        """What a sandbox with this layer sees; see :class:`planarian_core.interfaces.MergesLayers`."""
        return merged(spec, layer, self._home)

    def open_root(self, spec: SandboxSpec, live: LiveSandbox) -> int:
        """A descriptor of the running sandbox's own root; see :class:`planarian_core.interfaces.WritesInside`."""
        with running_init(live), reported("The sandbox's root can't be opened"):
            return os.open(f"/proc/{live.init_pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def wake(self, spec: SandboxSpec, live: LiveSandbox) -> None:
        """Let a tree run that was restored frozen. Idempotent. SandboxError when it is gone."""
        with running_init(live), reported(f"{spec.id} can't be woken", "it stands still"):
            if group := cgroups.unified(live.cgroups):
                cgroups.thaw(group)

    def memory(self, spec: SandboxSpec, live: LiveSandbox) -> int:
        """Bytes of memory that its processes alone take: what is in no file, swapped or not."""
        return sum(map(own_memory, self.tasks(spec, live)))

    def objection(self, path: str, entry: FileEntry, *, trusted: bool) -> str:
        """What is wrong with a name in a layer from elsewhere; empty when nothing is."""
        return foreign_layer.objection(path, entry, trusted=trusted)

    def take_over(self, spec: SandboxSpec, *, trusted: bool) -> SandboxSpec:
        """Make a layer from elsewhere fit this host. SandboxError when it can't be."""
        return foreign_layer.take_over(spec, trusted=trusted)

    def inside(self, spec: SandboxSpec, path: str) -> str | None:
        """The name inside of a path in the layer; None for the overlays' own and Planarian's runtime directory."""
        own_overlay, of_workspace, rest = path.partition("workspace/upper")
        if of_workspace and not own_overlay:
            return spec.place + rest
        if not path.startswith("upper/") or path.startswith("upper/run/planarian"):
            return None
        return path.removeprefix("upper")


def _frame(spec: SandboxSpec, command: Command, call_id: str) -> Frame:
    """The command as the init gets it. Nothing of the host's environment is in it but where programs lie."""
    env: dict[str, str] = {}
    if not command.clear_env:
        home = os.path.expanduser("~")
        env = {
            "PATH": PATH if spec.root else _search_path(),
            "HOME": home if _is_seen(home) and not spec.root else "/root",
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PLANARIAN_CALL": call_id,
            **spec.env,
        }
    env.update(command.env)
    if not command.clear_env and PROGRAMS not in env["PATH"].split(":"):
        env["PATH"] = f"{PROGRAMS}:{env['PATH']}"  # the agent's planarian command, whatever PATH it was given
    cwd = os.path.join(spec.place, command.cwd)
    return Frame(command.argv, env, cwd, command.detach, command.stdout_path, command.stderr_path)


def _is_seen(directory: str) -> bool:
    """Whether a directory of the host is there inside, as far as that can be told cheaply."""
    return os.path.isabs(directory) and os.path.isdir(directory) and not _is_replaced(directory)


@cache
def _is_replaced(directory: str) -> bool:
    return is_fresh(os.path.realpath(directory), os.geteuid() != 0)


def _search_path() -> str:
    """The usual directories, and after them the host's further ones, for its toolchains. The virtual environment
    that Planarian itself runs in is none of those.
    """
    usual = PATH.split(":")
    own = os.path.join(sys.prefix, "bin") if sys.prefix != sys.base_prefix else ""
    further = [directory for directory in os.environ.get("PATH", "").split(":") if directory not in (*usual, own)]
    return ":".join([*usual, *dict.fromkeys(filter(_is_seen, further))])
