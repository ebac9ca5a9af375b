"""Asking the person at the harness about a call that can't be undone, as MCP's elicitation has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planarian_core.model import RemoteEffect


def approval_request(effect: RemoteEffect) -> dict[str, Any]:
    """The params of an elicitation that asks a person about a pivot."""
    again = f" An equal call was already made: {effect.repeats}." if effect.repeats else ""
    message = f"{effect.service}: {effect.summary} can't be undone ({effect.reason}).{again} Let it run?"
    approve = {"type": "boolean", "title": "Let it run", "description": "It can't be undone", "default": False}
    schema = {"type": "object", "properties": {"approve": approve}, "required": ["approve"]}
    return {"message": message, "requestedSchema": schema}


def approved(answer: Mapping[str, Any]) -> bool | None:
    """What a person said to :func:`approval_request`; None where nobody answered."""
    action = answer.get("action")
    if action == "accept":
        return (answer.get("content") or {}).get("approve") is True
    return False if action == "decline" else None
