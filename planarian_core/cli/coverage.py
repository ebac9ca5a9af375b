"""What a sandbox's statepoints will not cover, in words, before any is taken (guarantee 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planarian_core.model import Network, SandboxRecord

if TYPE_CHECKING:
    from planarian_core.runtime import Planarian


def not_covered(planarian: Planarian, record: SandboxRecord) -> list[str]:
    """What these backends can't do, each as a sentence."""
    sandbox = planarian.plugins.sandbox(record.spec.backend).capabilities
    process = planarian.plugins.process(record.process).capabilities
    lacking = []
    if not sandbox.isolated:
        lacking.append("commands are not confined: they can change whatever you can")
    if sandbox.in_place:
        lacking.append("files outside the workspace are not captured, and commands change the workspace itself")
    if process.restarts and not process.memory:
        lacking.append("the memory of processes is not captured: a rollback starts anew what ran")
    elif not process.memory:
        lacking.append("processes are not captured: a rollback stops what runs")
    if record.spec.network is Network.HOST:
        lacking.append("connections to other hosts are not captured")
    return lacking


def passed_over(planarian: Planarian, record: SandboxRecord) -> list[str]:
    """Backends that would have been preferred, and why they did not serve."""
    plugins = planarian.plugins
    capabilities = plugins.sandbox(record.spec.backend).capabilities
    reasons = []
    for kind, chosen in (("sandbox", record.spec.backend), ("filesystem", record.filesystem)):
        for name in plugins.names(kind):  # type: ignore[arg-type]  # both are backend kinds
            if name == chosen:
                break
            found = plugins.probe(kind, name)  # type: ignore[arg-type]  # as above
            if not found.available and plugins.missed(kind, name):  # type: ignore[arg-type]  # as above
                reasons.append(_reason(kind, name, found.reason, found.remedy))
    for name in plugins.names("process"):
        if name == record.process:
            break
        found = plugins.probe("process", name)
        if found.available:
            found = plugins.process(name).serves(record.spec, capabilities)
        if not found.available and plugins.missed("process", name):
            reasons.append(_reason("process", name, found.reason, found.remedy))
    return reasons


def _reason(kind: str, name: str, reason: str, remedy: str) -> str:
    return f"the {kind} backend {name} was passed over: {reason}" + (f" (next: {remedy})" if remedy else "")
