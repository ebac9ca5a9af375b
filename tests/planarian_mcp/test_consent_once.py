"""What a person said to a question counts for one call, also where a harness of 2026 makes its request twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from planarian_core.model import RemoteEffect
from planarian_mcp.tool_call import NeedsInput, ToolCall

_EFFECT = RemoteEffect("store", "", "send()", pivot=True, reason="declared so")
_YES = {"planarian/approve": {"action": "accept", "content": {"approve": True}}}


class Harness:
    modern = True
    can_elicit = True

    async def ask(self, method: str, params: Any) -> dict[str, Any]:
        raise AssertionError("it can't be asked meanwhile")

    async def tell(self, method: str, params: Any) -> None: ...


def _asked(**more: Any) -> bool | None:
    async def connect() -> Any:
        raise AssertionError("nothing is sent")

    async def call() -> bool | None:
        params = {"name": "send", "arguments": {"text": "x"}, **more}
        return ToolCall(Harness(), lambda: None, connect, params, None).ask(_EFFECT)

    return asyncio.run(call())


def test_an_answer_counts_once() -> None:
    with pytest.raises(NeedsInput) as first:
        _asked()
    state = first.value.result["requestState"]
    assert _asked(requestState=state, inputResponses=_YES) is True
    with pytest.raises(NeedsInput) as second:
        _asked(requestState=state, inputResponses=_YES)
    assert second.value.result["requestState"] != state


@pytest.mark.parametrize("state", ["", "planarian/approve", None, 7])
def test_an_answer_to_no_question_counts_for_nothing(state: object) -> None:
    with pytest.raises(NeedsInput):
        _asked(requestState=state, inputResponses=_YES)


def test_an_answer_counts_for_its_own_call_only() -> None:
    with pytest.raises(NeedsInput) as first:
        _asked()
    with pytest.raises(NeedsInput):
        _asked(requestState=first.value.result["requestState"], inputResponses=_YES, arguments={"text": "y"})
