"""What is the same for all services that go back by their own versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planarian_core.errors import CompensationError
from planarian_core.interfaces import Moved, TargetServer, ToolResult, ToolTarget
from planarian_core.model import Effect, RemoteCall, Verdict


class ByVersions:
    """That part of a :class:`planarian_core.interfaces.ServiceKind`."""

    name: str
    mark: str

    def read(self, call: RemoteCall, target: ToolTarget) -> ToolResult | Verdict:
        return target.call(call.tool, call.arguments)

    def recognizes(self, effect: Effect, target: ToolTarget | None) -> bool:
        """By the configuration: at another place the sandbox would silently get a new branch."""
        return effect.server in ("", self.mark)

    def rehearse(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget) -> None:
        raise self._by_versions()

    def move(self, undo: Sequence[Effect], redo: Sequence[Effect], target: ToolTarget, moved: Moved) -> None:
        raise self._by_versions()

    def forget(self, effects: Sequence[Effect], target: ToolTarget) -> None:
        """Nothing is kept for single effects."""

    def _by_versions(self) -> CompensationError:
        message = f"{self.name} goes back by its own versions, not call by call"
        return CompensationError(message, code="by-versions")


def told(server: TargetServer, words: Mapping[str, str]) -> TargetServer:
    """The server, with words such as ``{branch}`` replaced wherever its configuration has them."""

    def replaced(text: str) -> str:
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    return replace(
        server,
        command=tuple(map(replaced, server.command)),
        url=replaced(server.url),
        env={key: replaced(value) for key, value in server.env.items()},
    )
