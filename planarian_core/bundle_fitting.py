"""What a bundle becomes in this home: which backends take it, under which ids, what of it is left out and why.

Nothing that a bundle says of a host is believed. Paths are made here; what would widen what a sandbox may do (the
host's network, limits, variables of one that isn't isolated) is taken from a bundle only when its maker is trusted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planarian_core.artefacts import images_of
from planarian_core.bundle_checking import Inspection
from planarian_core.bundle_format import BundleError
from planarian_core.bundle_obstacles import Obstacles, refuse
from planarian_core.bundle_records import BundledSandbox, BundleHead
from planarian_core.config import Config
from planarian_core.errors import BackendUnavailable
from planarian_core.interfaces import SandboxCapabilities
from planarian_core.model import (
    Artefact,
    Branch,
    Domain,
    Evidence,
    Gap,
    Limits,
    Network,
    SandboxRecord,
    SandboxSpec,
    Statepoint,
    Status,
    new_id,
    utc_now,
)
from planarian_core.sandbox_manager import SandboxManager


@dataclass(frozen=True)
class ImportRequest:
    """What a caller wants of an import.

    ``trust_images``: vouch for whoever made the bundle. ``files_only``: leave the processes out. ``again``: fresh ids.
    ``key_file``: the key to know the bundle by, instead of the home's.
    """

    name: str = ""
    filesystem: str = ""
    trust_images: bool = False
    files_only: bool = False
    again: bool = False
    key_file: Path | None = None


@dataclass(frozen=True)
class Fitted:
    """What is to be written. ``lineage``: the oldest first, the statepoint itself not among them. ``processes``: the
    artefact as it will be here; None when the images are left out.
    """

    record: SandboxRecord
    branch: Branch
    statepoint: Statepoint
    lineage: tuple[Evidence, ...]
    evidence: Evidence
    fences: tuple[Gap, ...]
    gaps: tuple[Gap, ...]
    processes: Artefact | None
    trusted: bool


class Fitter:
    """Finds out how bundles come to one home."""

    def __init__(self, sandboxes: SandboxManager, config: Config) -> None:
        self._sandboxes = sandboxes
        self._plugins = sandboxes.plugins
        self._config = config

    def fit(self, found: Inspection, request: ImportRequest) -> Fitted:
        """Everything about a bundle that is sound; nothing is written.

        Raises:
            BundleError: ``bundle-unfit`` names what stands in the way and what helps; ``bundle-untrusted`` that it
                holds what only a trusted maker's may.
        """
        head = found.head
        trusted = found.authentic or request.trust_images
        if found.doubts and not trusted:
            raise BundleError(
                "the bundle wasn't made by this home, and holds what only a trusted one may: "
                + "; ".join(found.doubts),
                code="bundle-untrusted",
                state="nothing was imported",
                remedy="if you trust who made it: planarian import --trust-images; or name their key: --key-file",
            )
        left_out = self._left_out(head, request, trusted)
        refuse(
            Obstacles(self._sandboxes.home, self._plugins).of(
                head, images=not left_out and head.statepoint.processes is not None
            )
        )
        processes = head.statepoint.processes if not left_out else None
        ids = _Ids(fresh=request.again)
        spec = self._spec(head.sandbox, ids(head.sandbox.id), trusted)
        gaps = [*left_out, *self._reduced(head, spec, trusted), *self._below(head, spec)]
        filesystem = self._filesystem(request, in_place=head.sandbox.in_place)
        layer = spec.workspace if head.sandbox.in_place else str(self._sandboxes.place(spec.id, filesystem))
        spec = replace(spec, layer=layer)
        record = SandboxRecord(
            spec=spec,
            branch_id=ids(head.sandbox.branch_id),
            filesystem=filesystem,
            process=self._process(head, spec, processes),
            created_at=utc_now(),
            name=self._name(head, request),
            base=head.statepoint.base,
            closed=True,
            gaps=head.sandbox.gaps,
        )
        return _assemble(found, record, ids, processes, tuple(gaps), self._sandboxes.home, trusted=trusted)

    @staticmethod
    def _left_out(head: BundleHead, request: ImportRequest, trusted: bool) -> list[Gap]:
        """The gap that images leave which don't come along; empty when they do, or there are none."""
        if head.statepoint.processes is None or (trusted and not request.files_only):
            return []
        why = "left out by request" if request.files_only else "this home didn't make the bundle: left out"
        names = ", ".join(process.argv[0] for process in head.statepoint.process_list[:5] if process.argv)
        subject = f"{len(head.statepoint.process_list)} processes" + (f" ({names})" if names else "")
        return [Gap(Domain.PROCESSES, subject, f"{why} at the import")]

    def _spec(self, sandbox: BundledSandbox, sandbox_id: str, trusted: bool) -> SandboxSpec:
        workspace = str(self._sandboxes.folder(sandbox_id) / "workspace") if sandbox.in_place else sandbox.workspace
        hidden = [path for path in sandbox.hidden if os.path.isabs(path) and os.path.normpath(path) == path != "/"]
        isolated = self._capabilities(sandbox).isolated
        return SandboxSpec(
            id=sandbox_id,
            workspace=workspace,
            layer=workspace,
            home=str(self._sandboxes.home),
            backend=sandbox.backend,
            network=sandbox.network if trusted else Network.NONE if isolated else Network(self._config.network),
            limits=sandbox.limits if trusted else _bounded(sandbox.limits),
            hidden=tuple(dict.fromkeys((*self._config.hidden, *hidden))),
            env=dict(sandbox.env) if trusted or isolated else {},
            origin="" if sandbox.in_place else str(self._sandboxes.home / "origins" / sandbox_id),
        )

    def _capabilities(self, sandbox: BundledSandbox) -> SandboxCapabilities:
        return self._plugins.sandbox(sandbox.backend).capabilities

    def _reduced(self, head: BundleHead, spec: SandboxSpec, trusted: bool) -> list[Gap]:
        """What the sandbox may no longer do."""
        gaps = []
        if spec.network is not head.sandbox.network:
            gaps.append(Gap(Domain.FILES, f"network {head.sandbox.network}", "not taken from a bundle of another home"))
        if spec.env != head.sandbox.env:
            reason = "not taken from a bundle of another home: the sandbox isn't isolated"
            gaps.append(Gap(Domain.FILES, "environment variables", reason))
        return gaps

    def _below(self, head: BundleHead, spec: SandboxSpec) -> list[Gap]:
        if not self._capabilities(head.sandbox).isolated:
            return []
        if self._plugins.sandbox(spec.backend).fingerprint(spec) == head.statepoint.base:
            return []
        return [Gap(Domain.FILES, "the host's files below the sandbox", "are another host's: its packages differ")]

    def _filesystem(self, request: ImportRequest, *, in_place: bool) -> str:
        wanted = request.filesystem or self._config.filesystem
        return self._sandboxes.choose_filesystem(wanted, in_place=in_place)

    def _process(self, head: BundleHead, spec: SandboxSpec, processes: Artefact | None) -> str:
        """The backend of the images, else the one that captured for the sandbox where that works here, else another."""
        if processes is not None:
            return self._sandboxes.choose_process(spec, processes.backend)
        try:
            if head.sandbox.process in self._plugins.names("process"):
                return self._sandboxes.choose_process(spec, head.sandbox.process)
        except BackendUnavailable:
            pass  # what can't be had any more need not be captured the same way
        return self._sandboxes.choose_process(spec, self._config.process)

    def _name(self, head: BundleHead, request: ImportRequest) -> str:
        """The name asked for; the bundle's own only where nobody has it."""
        if request.name:
            self._sandboxes.check_name(request.name)
            return request.name
        taken = {record.name for record in self._sandboxes.registry.sandboxes()}
        return head.sandbox.name if head.sandbox.name not in taken else ""


class _Ids:
    """Ids as they will be here: the same, or fresh ones."""

    def __init__(self, *, fresh: bool) -> None:
        self._fresh = fresh
        self._known: dict[str, str] = {}

    def __call__(self, value: str) -> str:
        if not self._fresh:
            return value
        if value not in self._known:
            self._known[value] = new_id(value.partition("-")[0])
        return self._known[value]


def _bounded(limits: Limits) -> Limits:
    """Not more than a new sandbox has."""
    usual = Limits()
    return Limits(min(limits.memory or usual.memory, usual.memory), min(limits.pids or usual.pids, usual.pids))


def _assemble(
    found: Inspection,
    record: SandboxRecord,
    ids: Callable[[str], str],
    processes: Artefact | None,
    gaps: tuple[Gap, ...],
    home: Path,
    *,
    trusted: bool,
) -> Fitted:
    head = found.head
    moved = _Moving(record, ids, {evidence.statepoint.id for evidence in found.ancestors})
    point = moved.statepoint(head.statepoint)
    services = [
        *dict.fromkeys([*(p.service for p in head.statepoint.remote), *(g.subject for g in head.sandbox.fences)])
    ]
    fences = tuple(
        Gap(Domain.REMOTE, service, "came with a bundle: the service stays as it is, and is out of reach")
        for service in services
    )
    if processes is not None:
        images = images_of(home, point.id)
        place = images.name if head.image_place == "name" else str(images.relative_to(home))
        # What is started again must not name the workspace that it had elsewhere, unless the sandbox sees it there.
        workspace = (processes.workspace or head.sandbox.workspace) if head.sandbox.in_place else ""
        stored = head.parts["images"].bytes  # they share nothing with others here
        processes = replace(processes, reference=place, owner="", workspace=workspace, stored=stored)
    words = [f"{len(point.process_list)} processes by {processes.backend}"] if processes else []
    point = replace(
        point,
        files=None,
        processes=processes,
        process_list=point.process_list if processes else (),
        in_flight=point.in_flight if processes else (),
        coverage=replace(point.coverage, captured=tuple(words), missing=(*point.coverage.missing, *fences, *gaps)),
    )
    lineage = tuple(moved.evidence(evidence) for evidence in reversed(found.ancestors))
    branch = Branch(record.branch_id, record.id, head=point.id)
    evidence = Evidence(point, moved.evidence(Evidence(head.statepoint, head.outcomes)).outcomes)
    return Fitted(record, branch, point, lineage, evidence, fences, gaps, processes, trusted)


class _Moving:
    """Records as records of the imported sandbox."""

    def __init__(self, record: SandboxRecord, ids: Callable[[str], str], known: Sequence[str] | set[str]) -> None:
        self._record = record
        self._ids = ids
        self._known = known

    def statepoint(self, statepoint: Statepoint) -> Statepoint:
        parent = statepoint.parent_id
        return replace(
            statepoint,
            id=self._ids(statepoint.id),
            sandbox_id=self._record.id,
            branch_id=self._record.branch_id,
            parent_id=self._ids(parent) if parent in self._known and parent is not None else None,
            remote=(),
        )

    def evidence(self, evidence: Evidence) -> Evidence:
        point = replace(self.statepoint(evidence.statepoint), status=Status.PRUNED)
        outcomes = tuple(
            replace(outcome, id=self._ids(outcome.id), statepoint_id=point.id) for outcome in evidence.outcomes
        )
        return Evidence(point, outcomes)
