"""A plugin may compensate a service itself: it comes before the service's own way, and may pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planarian_core import Planarian, hookimpl
from planarian_core.model import RemoteEffect, RemotePosition, SandboxRecord
from planarian_core.testing.fakes import FakePlugin, FakeService


class _Compensator:
    """Undoes by itself what ``mine`` did, and passes for every other service."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    @hookimpl
    def planarian_compensate(
        self, position: RemotePosition, sandbox: SandboxRecord, service: FakeService
    ) -> Sequence[RemoteEffect] | None:
        self.asked.append((service.name, position.position, sandbox.id))
        if service.name != "mine":
            return None
        service.rows.clear()
        return [RemoteEffect("mine", "1", "all rows removed")]


def test_a_plugin_compensates_before_the_service_does(tmp_path: Path, workspace: Path) -> None:
    mine, other, plugin = FakeService("mine"), FakeService("other"), _Compensator()
    with Planarian.open(tmp_path / "home", plugins=[FakePlugin([mine, other]), plugin]) as planarian:
        sandbox = planarian.create_sandbox(workspace, sandbox="fake", filesystem="fake", process="fake")
        point = planarian.snapshot(sandbox)
        mine.put("a", "1")
        other.put("b", "2")
        context = planarian.rollback(sandbox, point)
    assert sorted(plugin.asked) == [("mine", "0", sandbox.id), ("other", "0", sandbox.id)]
    assert mine.rows == other.rows == {}
    assert not mine.calls[0].undone  # the service itself wasn't asked
    assert other.calls[0].undone
    assert "all rows removed" in context.to_markdown()
