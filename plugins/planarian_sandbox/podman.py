"""The ``podman`` backend: a container that the user's own Podman makes, on the layer of a Planarian sandbox.

The layer is a namespace sandbox's: an overlay over the host's files or an unpacked image, one over the workspace. The
container's root is that overlay (``--rootfs``), so that files are captured, restored and forked by the filesystem
backend and nothing of a sandbox's state lies in Podman's storage. Podman and its OCI runtime make the namespaces, the
control groups and the system-call filter. The container's init is Planarian's, so that commands, sessions and requests
go the same way as in a namespace sandbox; nothing depends on conmon once it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from planarian_core.errors import ConfigurationError, PlanarianError, SandboxError
from planarian_core.interfaces import Availability, RestoreEnvironment, SandboxCapabilities
from planarian_core.model import LiveSandbox, SandboxSpec
from planarian_sandbox import cgroups
from planarian_sandbox.ending import refuse_running
from planarian_sandbox.index import heal_index
from planarian_sandbox.launch import (
    await_agent,
    check_id,
    files,
    live_sandbox,
    mount_point,
    reported,
)
from planarian_sandbox.layer import refresh
from planarian_sandbox.layout import RUNTIME, Layout, inside_python
from planarian_sandbox.namespace import NamespaceBackend
from planarian_sandbox.podman_engine import Engine, finished, other_groups, run_arguments, stand_ins, unified_group
from planarian_sandbox.podman_probe import probe

# Imported rather than run as a script, so that its compiled form is kept.
_LAUNCH = """import sys
sys.path.append(sys.argv.pop(1))
from planarian_sandbox.podman_launcher import main
sys.exit(main())"""


class PodmanBackend(NamespaceBackend):
    """Sandboxes that are Podman containers; see the module.

    Args:
        home: the home of Planarian; this backend keeps ``cache/`` and ``mounts/`` in it.
        runtime: the OCI runtime, ``crun`` or ``runc``; empty for the one that fits the host.
    """

    name = "podman"
    capabilities = SandboxCapabilities(
        isolated=True, process_tree=True, in_place=False, other_root=True, managed="podman"
    )

    def __init__(self, home: Path, runtime: str = "") -> None:
        super().__init__(home)
        self._runtime = runtime

    def probe(self) -> Availability:
        """Whether podman makes containers here: really makes one, once for each podman and boot."""
        return probe(self._home, self._runtime)

    def prepare(self, spec: SandboxSpec) -> SandboxSpec:
        """Fill a new layer, and give up containers whose layers are gone (a home that somebody removed)."""
        if ":" in spec.layer or "," in spec.layer:
            raise ConfigurationError(
                f"Podman can't take files from {spec.layer}: there is a comma or colon in it.", code="podman-path"
            )
        engine = self._engine()
        engine.remove(engine.forsaken())
        return super().prepare(spec)

    def start(self, spec: SandboxSpec) -> LiveSandbox:
        """Have Podman start an init on the layer. Nothing is left running when this raises."""
        layout = Layout.load(spec.layer)
        engine = self._engine()
        refuse_running(check_id(spec.id))
        with reported("The sandbox can't be started"):
            refresh(spec, layout, self._home)
            heal_index(spec.layer, layout)
            groups = cgroups.make(spec.id, spec.limits)
            try:
                live = self._launch(engine, spec, layout, groups)
                await_agent(live)
            except BaseException:
                with contextlib.suppress(PlanarianError):  # the first failure is the one to tell
                    self.stop(spec, None)
                raise
        return live

    def stop(self, spec: SandboxSpec, live: LiveSandbox | None) -> None:
        """End all its processes and remove the container; returns when they are gone. Idempotent.

        SandboxError where podman is gone meanwhile: the processes have ended all the same.
        """
        made_for = {spec.id, str(live.details.get("made_for", spec.id)) if live is not None else spec.id}
        if live is not None:
            self.kill(spec, live)
        try:
            with _ended_all_the_same(spec):
                self._engine().remove(sorted(made_for))
        finally:
            super().stop(spec, live)
            for sandbox_id in made_for:
                cgroups.remove(other_groups(sandbox_id))
                _pidfile(self._home, sandbox_id).unlink(missing_ok=True)

    def restore_environment(self, spec: SandboxSpec) -> RestoreEnvironment:
        """SandboxError: no image of the processes can come back in a container yet."""
        raise SandboxError(
            "The processes of a podman sandbox can't be restored from an image.",
            code="podman-memory",
            remedy="use the process backend respawn",
        )

    def _engine(self) -> Engine:
        return Engine.find(self._runtime)

    def _launch(self, engine: Engine, spec: SandboxSpec, layout: Layout, groups: tuple[str, ...]) -> LiveSandbox:
        root, devices = mount_point(self._home, spec), mount_point(self._home, spec, ".dev")
        pidfile = _pidfile(self._home, spec.id)
        pidfile.unlink(missing_ok=True)
        group = cgroups.unified(groups)
        supervised = [] if group else ["subreaper"]
        arguments = run_arguments(spec, root, f"{devices}/shm", stand_ins(self._home), str(pidfile))
        init = [inside_python(spec.root), "-I", "-S", f"{RUNTIME}/agent.py", spec.id, *supervised]
        config = {
            "files": files(self._home, spec, layout),
            "device_place": devices,
            "group": cgroups.make_for_call(group, "launch") if group else "",
            "podman": engine.argv(*arguments, *init),
            "env": dict(os.environ),
        }
        launcher = [inside_python(), "-I", "-S", "-c", _LAUNCH, str(Path(__file__).parents[1]), json.dumps(config)]
        container = finished(launcher, env={}).split()[-1]
        live = live_sandbox(int(pidfile.read_text(encoding="ascii")), (), {"made_for": spec.id, "container": container})
        own = unified_group(live.init_pid) if group else ""
        return replace(live, cgroups=(own,) if own.startswith(f"{group}/") else ())


@contextmanager
def _ended_all_the_same(spec: SandboxSpec) -> Iterator[None]:
    """Say of an error of podman's what is true then."""
    try:
        yield
    except PlanarianError as error:
        raise SandboxError(
            f"The container of {spec.id} can't be removed: {error.message}",
            code=error.code,
            state="its processes have ended and its files are as they were left; podman may still list the container",
            remedy=error.remedy,
        ) from error


def _pidfile(home: Path, sandbox_id: str) -> Path:
    """Where podman writes the host pid of a sandbox's init."""
    return home / "mounts" / f"{check_id(sandbox_id)}.pid"
