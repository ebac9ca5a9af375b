"""A remote service's tools for the callables of a search, so that what an action changes there is its node's alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planarian_core import Sandbox
from planarian_core.errors import RemoteError
from planarian_core.service_tools import text_of

_TURNED_DOWN = (
    "call-refused",
    "pivot-denied",
    "pivot-needs-approval",
    "result-too-large",
    "service-error",
    "service-failed",
    "service-fenced",
)


class CallFailed(Exception):
    """A call that the service, or Planarian on its behalf, has turned down. The message is for a model to read."""


def call_tool(sandbox: Sandbox, service: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Call a tool of a service of ``planarian.toml`` on behalf of a sandbox; the result as text.

    For ``act`` and ``value``, with the sandbox that they get. ``planarian.service_tools.listed(service)`` says which
    tools there are, for ``propose``.

    Raises:
        CallFailed: the tool answered with an error, or the call was refused or is fenced off in this fork: the action
            failed, and the search goes on.
        PlanarianError: the service can't be reached, or is busy: the environment failed, and the search stops.
    """
    try:
        result = sandbox.planarian.service_tools.call(sandbox, service, tool, arguments)
    except RemoteError as error:
        if error.code in _TURNED_DOWN:
            raise CallFailed(str(error)) from error
        raise
    if result.get("isError"):
        raise CallFailed(text_of(result) or "the tool failed and said nothing")
    return text_of(result)
