"""``doctor``, ``recover``: what works on this host, and finishing what was cut off."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from planarian_core.cli import exit_codes, output
from planarian_core.cli.log import warm_copies
from planarian_core.cli.opening import opened, recovered_words
from planarian_core.cli.options import FilesOnlyOption, JsonOption

if TYPE_CHECKING:
    from planarian_core.config import Config
    from planarian_core.errors import PlanarianError
    from planarian_core.hookspecs import BackendKind
    from planarian_core.interfaces import Availability
    from planarian_core.plugin_manager import PluginManager
    from planarian_core.runtime import Planarian

_MOST_NAMES = 8
_KINDS: tuple[BackendKind, ...] = ("sandbox", "filesystem", "process")


@dataclass
class Row:
    """One backend on this host. ``default``: what a new sandbox gets unless another is named."""

    kind: str
    name: str
    available: bool
    default: bool
    reason: str
    remedy: str


@dataclass
class Report:
    """What doctor found. ``problems`` are sentences, each with its next step."""

    home: str
    registry: str
    free: int = 0
    sandboxes: int = 0
    backends: list[Row] = field(default_factory=list)
    broken_plugins: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    warm: dict[str, int] = field(default_factory=dict)
    """Restored copies that stand ready, by statepoint."""
    services: dict[str, str] = field(default_factory=dict)
    """The kinds of the configured remote services, by name."""
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        from planarian_core import __version__

        versions = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
        return {**versions, "ok": not self.problems, **asdict(self)}


def doctor(as_json: JsonOption = False) -> None:
    """Say what works on this host, and what mends the rest.

    Every backend with the reason why it is not available and the command that mends it; the home, the registry,
    broken plugins, what was recovered, and what lies in the home but is unknown to the registry. The exit code is 0
    when there is a default of each kind.

    \b
    Example:
      planarian doctor
    """
    from planarian_core.config import default_home
    from planarian_core.errors import PlanarianError

    home = default_home()
    report = Report(str(home), str(home / "registry.sqlite"))
    code = exit_codes.OK
    try:
        with opened(as_json=True) as planarian, output.working("examining the host"):
            _examine(report, planarian)
    except PlanarianError as error:
        # Without a home there are no sandboxes, but what the host allows can still be said.
        code = exit_codes.code_for(error)
        _examine_without_home(report, home, error)
    lacking = [kind for kind in _KINDS if not any(row.default for row in report.backends if row.kind == kind)]
    report.problems += [f"no {kind} backend works here: see the remedies above" for kind in lacking]
    if lacking and code == exit_codes.OK:
        code = exit_codes.UNAVAILABLE
    if as_json:
        output.print_json(report.to_dict())
    else:
        _print(report)
    raise typer.Exit(code)


def _leftovers(planarian: Planarian) -> list[str]:
    """What lies in the home and belongs to nothing in the registry: that was lost, or put back from an older copy."""
    parts = {part: _names(planarian.home / part) for part in ("sandboxes", "statepoints", "origins")}
    # only now: what is being made is entered into the registry before its folder is made
    records = planarian.registry.sandboxes()
    statepoints = planarian.registry.statepoints()
    shared = {s.owner(artefact) for s in statepoints for artefact in (s.files, s.processes) if artefact}
    copies = planarian.registry.standbys.all()
    layers = [record.spec.layer for record in [*records, *(copy.record for copy in copies.values())]]
    known = {
        "sandboxes": {record.id for record in records} | set(copies) | {Path(layer).parent.name for layer in layers},
        "statepoints": {statepoint.id for statepoint in statepoints} | shared,
        "origins": {Path(record.spec.origin).name for record in records if record.spec.origin},
    }
    problems = []
    for part, names in parts.items():
        folder = planarian.home / part
        left = sorted(name for name in names - known[part] if os.path.lexists(folder / name))
        if not left:
            continue
        shown = ", ".join(left[:_MOST_NAMES]) + (
            f" and {len(left) - _MOST_NAMES} more" if len(left) > _MOST_NAMES else ""
        )
        running = " (end first what still runs of a sandbox: pgrep -f ID)" if part == "sandboxes" else ""
        problems.append(
            f"the registry doesn't know what lies in {folder}: {shown}. "
            f"Put back the registry that does, or remove them{running}: rm -r {folder}/ID"
        )
    return problems


def _lost_images(planarian: Planarian) -> list[str]:
    """Sandboxes that stand on an image which isn't where it was."""
    stood_on: dict[str, list[str]] = {}
    for record in planarian.registry.sandboxes():
        if record.spec.root and not os.path.isdir(record.spec.root):
            stood_on.setdefault(record.spec.root, []).append(record.id)
    return [
        f"{root} is gone, the unpacked image that {', '.join(ids[:_MOST_NAMES])} stand on: put it back as it was, or "
        f"remove what stood on it: planarian rm {' '.join(ids[:_MOST_NAMES])}"
        for root, ids in stood_on.items()
    ]


def _failed_drills(planarian: Planarian) -> list[str]:
    failed = (drill for drill in planarian.registry.drills.all().values() if drill.error)
    return [
        f"{drill.statepoint_id} could not be restored when that was tried: {drill.error.splitlines()[0]}. Try again: "
        f"planarian drill {drill.statepoint_id}"
        for drill in failed
    ]


def _remote_problems(planarian: Planarian) -> list[str]:
    """Services that nobody can offer, effects whose end is unknown, pivots that wait for consent."""
    from planarian_core.errors import PlanarianError

    problems = []
    records = [record for record in planarian.registry.sandboxes() if not record.closed]
    for record in records[:1]:
        try:
            planarian.statepoints.remote.offered(record)
        except PlanarianError as error:
            problems.append(str(error).replace("\n", "; "))
    for record in records:
        for effect in planarian.registry.effects.unsettled(record.id):
            problems.append(
                f"how call {effect.number} of {effect.service} ended isn't known yet; the next call, snapshot or "
                f"rollback asks the service: planarian effects --sandbox {record.id}"
            )
    problems += [
        f"{approval.effect.service}: {approval.effect.summary} waits for consent: planarian approve {approval.id}"
        for approval in planarian.approvals()
        if not approval.granted
    ]
    return problems


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def _examine(report: Report, planarian: Planarian) -> None:
    report.home, report.registry = str(planarian.home), str(planarian.registry.path)
    report.sandboxes = len(planarian.registry.sandboxes())
    report.recovered = [recovered_words(done) for done in planarian.recovered]
    report.unfinished = [f"{o.kind} of {o.sandbox_id} since {o.started_at}" for o in planarian.registry.operations()]
    report.warm = dict(warm_copies(planarian))
    report.services = {name: str(table["kind"]) for name, table in planarian.config.services.items()}
    report.problems += (
        _leftovers(planarian) + _lost_images(planarian) + _failed_drills(planarian) + _remote_problems(planarian)
    )
    _examine_host(report, planarian.plugins, planarian.config)


def _examine_without_home(report: Report, home: Path, error: PlanarianError) -> None:
    from planarian_core.config import Config
    from planarian_core.errors import PlanarianError
    from planarian_core.plugin_manager import PluginManager

    report.problems.append(str(error).replace("\n", "; "))
    with suppress(PlanarianError):  # two backends of one name: that is the error we have just noted
        _examine_host(report, PluginManager(home), Config())


def _examine_host(report: Report, plugins: PluginManager, config: Config) -> None:
    with suppress(OSError):
        report.free = shutil.disk_usage(plugins.home).free
    report.broken_plugins = [f"{broken.name}: {broken.error}" for broken in plugins.broken]
    chosen = {"sandbox": config.sandbox, "filesystem": config.filesystem, "process": config.process}
    sandbox = ""
    for kind in _KINDS:
        found = [(name, _served(plugins, config, kind, name, sandbox)) for name in plugins.names(kind)]
        working = [name for name, availability in found if availability.available]
        default = next((name for name in working if chosen[kind] in ("", name)), "")
        sandbox = default if kind == "sandbox" else sandbox
        report.backends += [Row(kind, name, a.available, name == default, a.reason, a.remedy) for name, a in found]


def _served(plugins: PluginManager, config: Config, kind: BackendKind, name: str, sandbox: str) -> Availability:
    """Whether a backend works here and, of processes, whether it serves sandboxes of the default backend."""
    from planarian_core.model import Network, SandboxSpec

    found = plugins.probe(kind, name)
    if kind != "process" or not sandbox or not found.available:
        return found
    home = str(plugins.home)
    spec = SandboxSpec("sb-doctor", home, home, home, sandbox, network=Network(config.network))
    serves = plugins.process(name).serves(spec, plugins.sandbox(sandbox).capabilities)
    return found if serves.available else serves


def _print(report: Report) -> None:
    output.show_table(
        ("backend", "kind", "works", "reason", "next"),
        [
            (r.name, r.kind, ("default" if r.default else "yes") if r.available else "no", r.reason, r.remedy)
            for r in report.backends
        ],
    )
    output.say("")
    output.show_facts(
        {
            "home": f"{report.home} ({output.size(report.free)} free)",
            "registry": f"{report.registry} ({report.sandboxes} sandboxes)",
            "broken plugins": "\n".join(report.broken_plugins) or "none",
            "recovered": "\n".join(report.recovered),
            "unfinished": "\n".join(report.unfinished),
            "warm copies": ", ".join(f"{count} of {point}" for point, count in report.warm.items()),
            "remote services": ", ".join(f"{name} ({kind})" for name, kind in report.services.items()),
            "problems": "\n".join(report.problems) or "none",
        }
    )


def recover(files_only: FilesOnlyOption = False, as_json: JsonOption = False) -> None:
    """Finish what a killed runtime left behind.

    Every other command does it on its way; this one says what was done, and exits with 5 when something is left.
    What another process is doing right now is left alone. Where processes can't be brought back, --files-only lets
    them start anew.

    \b
    Example:
      planarian recover
      planarian recover --files-only
    """
    with opened(as_json=as_json, recover=False) as planarian:
        with output.working("recovering"):
            done = planarian.recover(files_only=files_only)
        under_way = [f"{o.kind} of {o.sandbox_id} since {o.started_at}" for o in planarian.registry.operations()]
    left = [one for one in done if one.error]
    if as_json:
        output.print_json({"recovered": [asdict(one) for one in done], "under_way": under_way})
    else:
        for one in done:
            output.say(recovered_words(one))
        if not done:
            output.remark("There was nothing to recover.")
        for line in under_way[len(left) :]:
            output.remark(f"under way in another process: {line}")
    raise typer.Exit(exit_codes.UNFINISHED if left else exit_codes.OK)
