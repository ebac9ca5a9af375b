"""An error after which nobody knows: from the call to the rollback, on a server that did its work all the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from planarian_core import Planarian
from planarian_core.errors import CompensationError
from planarian_core.model import CallClass, Domain, EffectState
from planarian_core.testing import mcp_servers
from planarian_core.testing.fakes import FakePlugin
from planarian_core.testing.scripted_server import tool_error

_TABLE = """
[services.notes]
kind = "declared"
command = {command}
[services.notes.tools.put]
class = "compensable"
undo = [{{ calls = [{{ tool = "delete", arguments = {{ key = "${{call.key}}" }} }}] }}]
"""


def test_a_rollback_past_it_needs_consent_and_says_so(tmp_path: Path) -> None:
    home, workspace, database = tmp_path / "home", tmp_path / "workspace", tmp_path / "store.sqlite"
    home.mkdir()
    workspace.mkdir()
    command = mcp_servers.as_configuration(mcp_servers.store(database))
    (home / "planarian.toml").write_text(_TABLE.format(command=command))
    with Planarian.open(home, plugins=[FakePlugin()]) as planarian:
        sandbox = planarian.create_sandbox(workspace, sandbox="fake", filesystem="fake", process="fake")
        point = planarian.snapshot(sandbox)
        session = planarian.remote_session(sandbox, "notes")
        with closing(session.kind.connect()) as target:

            class Liar:
                """It puts, and then reports an error."""

                tools = target.tools
                close = target.close

                def call(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
                    result = dict(target.call(tool, arguments))
                    return tool_error("the answer was lost") if arguments["key"] == "b" else result

            session.call("put", {"key": "a", "value": "1"}, Liar())
            session.call("put", {"key": "b", "value": "2"}, Liar())
        [good, failed] = planarian.effects(sandbox)
        assert (good.call_class, failed.call_class) == (CallClass.COMPENSABLE, CallClass.PIVOT)
        assert "reported an error" in failed.reason
        with pytest.raises(CompensationError) as caught:
            planarian.rollback(sandbox, point)
        assert caught.value.code == "pivot-needs-consent"
        context = planarian.rollback(sandbox, point, accept_pivots=True)
        [gap] = [gap for gap in context.not_undone if gap.domain is Domain.REMOTE]
        assert "reported an error" in gap.reason
        assert "(it reports an error)" in gap.subject
        assert [effect.state for effect in planarian.effects(sandbox)] == [EffectState.UNDONE, EffectState.KEPT]
    with sqlite3.connect(database) as store:
        assert store.execute("SELECT key FROM pairs").fetchall() == [("b",)]
