"""The ``podman`` backend: a container that the user's own Podman makes, on the layer of a Planarian sandbox.

The layer is a namespace sandbox's: an overlay over the host's files or an unpacked image, one over the workspace. The
container's root is that overlay (``--rootfs``), so that files are captured, restored and forked by the filesystem
backend and nothing of a sandbox's state lies in Podman's storage. Podman and its OCI runtime make the namespaces, the
control groups and the system-call filter. The container's init is Planarian's, so that commands, sessions and requests
go the same way as in a namespace sandbox; nothing depends on conmon once it runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from planarian_core.errors import ConfigurationError, PlanarianError, SandboxError
from planarian_core.interfaces import Availability, RestoreEnvironment, SandboxCapabilities, Standstill
from planarian_core.model import LiveSandbox, Network, SandboxSpec
from planarian_sandbox import cgroups
from planarian_sandbox.channel import forget_calls
from planarian_sandbox.ending import refuse_running
from planarian_sandbox.identity import end_found, inside_pid, namespace_pids, pid_namespace
from planarian_sandbox.index import heal_index
from planarian_sandbox.launch import (
    await_agent,
    check_id,
    files,
    live_sandbox,
    reported,
)
from planarian_sandbox.layer import refresh
from planarian_sandbox.layout import Layout, refuse_rootless
from planarian_sandbox.namespace import NamespaceBackend
from planarian_sandbox.podman_checkpoint import checkpoint
from planarian_sandbox.podman_control import Control
from planarian_sandbox.podman_engine import Engine, container_id, other_groups, unified_group
from planarian_sandbox.podman_launch import Place, end_half_made, forget_place, restore_container, start_container
from planarian_sandbox.podman_probe import probe


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
            groups = () if layout.rootless else cgroups.make(spec.id, spec.limits)
            try:
                live = self.adopt(spec, start_container(self._place(engine, spec, layout, groups)))
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
        elif os.geteuid() != 0:
            end_half_made(spec.id)
        try:
            with _ended_all_the_same(spec):
                self._engine().remove(sorted(made_for))
        finally:
            super().stop(spec, live)
            for sandbox_id in made_for:
                cgroups.remove(other_groups(sandbox_id))
                forget_place(self._home, sandbox_id)

    def restore_environment(self, spec: SandboxSpec) -> RestoreEnvironment:
        """Make ready for a restore by the process backend ``podman``. SandboxError for a rootless sandbox."""
        layout = refuse_rootless(Layout.load(spec.layer))
        engine = self._engine()
        with reported("The place for a restore can't be made"):
            groups = cgroups.make(spec.id, spec.limits)

        def revive(images: Path, kill: Sequence[int], frozen: bool, resuming: Callable[[int], object]) -> int:
            with reported("The container can't be restored"):
                refresh(spec, layout, self._home, programs=False)
                heal_index(spec.layer, layout)
                try:
                    place = self._place(engine, spec, layout, groups)
                    init = restore_container(place, images, kill, frozen, resuming)
                    end_doomed(init, kill)
                    return init
                except BaseException:
                    with contextlib.suppress(PlanarianError):
                        self.stop(spec, None)
                    raise

        own = spec.network is Network.NONE
        freezer = cgroups.unified(groups)
        return RestoreEnvironment(lambda: None, "", own, groups=groups, freezer=freezer, revive=revive)

    def checkpoint(
        self, spec: SandboxSpec, live: LiveSandbox, images: Path, track: bool, parent: bool
    ) -> AbstractContextManager[Standstill]:
        """See :class:`planarian_core.interfaces.TakesCheckpoints`."""
        return checkpoint(Control.of_live(self._home, spec, live), live, images, track, parent)

    def adopt(self, spec: SandboxSpec, init_pid: int) -> LiveSandbox:
        """Take a container over whose init is ``init_pid``; files of calls that were under way in an image go."""
        details = {"made_for": spec.id, "runtime": self._engine().runtime}
        if os.geteuid() == 0:
            details["container"] = container_id(init_pid)
        own = unified_group(init_pid)
        live = live_sandbox(init_pid, (own,) if f"/{spec.id}/" in own else (), details)
        forget_calls(init_pid)
        return live

    def _engine(self) -> Engine:
        return Engine.find(self._runtime)

    def _place(self, engine: Engine, spec: SandboxSpec, layout: Layout, groups: tuple[str, ...]) -> Place:
        return Place(self._home, engine, spec, files(self._home, spec, layout), cgroups.unified(groups))


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


def end_doomed(init: int, kill: Sequence[int]) -> None:
    """End what must not run again; the hook had it stopped before anything ran."""
    namespace = pid_namespace(init)
    if kill and namespace is not None:
        end_found(lambda: {pid for pid in namespace_pids(init)[1:] if inside_pid(pid) in kill}, 10.0, namespace)
