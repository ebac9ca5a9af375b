"""Reading declarations: what is wrong with one is said when the service is made, with the table's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planarian_core.errors import ConfigurationError
from planarian_core.model import CallClass, RemoteCall
from planarian_core.testing.scripted_server import ScriptedServer
from planarian_remote.declared.parsing import SHIPPED

from .conftest import Declare

UNDO = '\n[[tools.put.undo]]\ncalls = [{ tool = "delete" }]'


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('include = "nothing"', "filesystem, memory"),
        ('include = "relative.toml"', "absolute"),
        ('include = "/no/such/file.toml"', "can't be read"),
        ('include = "filesystem"', "settings.undone"),
        ("colour = 1", "unknown key 'colour'"),
        ("undo_limit = -1", "undo_limit"),
        ("[tools.put]", "class must be one of"),
        ('[tools.put]\nclass = "reversible"', "read-only, compensable, pivot, refused"),
        ('[tools.put]\nclass = "compensable"', "no [[undo]]"),
        ('[tools.put]\nclass = "compensable"\nundo = 3', "a list of tables"),
        ('[tools.put]\nclass = "compensable"\nundo = [{}]', "either calls or refuse"),
        ('[tools.put]\nclass = "read-only"\napprove = true', "unknown key 'approve'"),
        ('[tools.put]\nclass = "pivot"\napprove = "yes"', "true or false"),
        (f'[tools.put]\nclass = "compensable"\ncolour = 1{UNDO}', "unknown key 'colour'"),
        (f'[tools.put]\nclass = "compensable"\nread_only_if = 3{UNDO}', "read_only_if"),
        (f'[tools.put]\nclass = "compensable"\n[tools.put.before.old]{UNDO}', "needs tool"),
        (
            f'[tools.put]\nclass = "compensable"\n[tools.put.before.old]\ntool = "get"\nwhy = 1{UNDO}',
            "unknown key 'why'",
        ),
        (
            f'[tools.put]\nclass = "compensable"\n[tools.put.before.old]\ntool = "get"\ncompare = "often"{UNDO}',
            "always, late, never",
        ),
        (
            f'[tools.put]\nclass = "compensable"\n[tools.put.before.old]\ntool = "get"\nmissing = [""]{UNDO}',
            "every error",
        ),
        (
            (
                f'[tools.put]\nclass = "compensable"\n[tools.put.before.old]\ntool = "get"\n'
                f'arguments = {{ key = "${{result.id}}" }}{UNDO}'
            ),
            "${result.id} isn't known there",
        ),
        (
            f'[tools.put]\nclass = "compensable"\n[tools.put.before.old]\ntool = "get"\nvalue = "${{call.x}}"{UNDO}',
            "${call.x} isn't known there",
        ),
        (
            f'[tools.put]\nclass = "compensable"\nexpect = {{ new = 1 }}\n[tools.put.before.old]\ntool = "get"{UNDO}',
            "what each compared read finds",
        ),
        (f'[tools.put]\nclass = "compensable"{UNDO}\nexists = ["old"]', "'old' is none"),
        (
            (
                '[tools.put]\nclass = "compensable"\n[[tools.put.undo]]\n'
                'calls = [{ tool = "put", arguments = { value = "${before.old}" } }]'
            ),
            "${before.old} isn't known there",
        ),
        (
            (
                '[tools.put]\nclass = "compensable"\n[[tools.put.undo]]\n'
                'calls = [{ tool = "put", arguments = { value = "${call.}" } }]'
            ),
            "isn't a path",
        ),
        (
            (
                '[tools.put]\nclass = "compensable"\n[[tools.put.undo]]\n'
                'calls = [{ tool = "put", arguments = { value = { "$shell" = "rm" } } }]'
            ),
            "no operator",
        ),
    ],
)
def test_what_is_wrong_is_said(declare: Declare, toml: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declare(toml)
    assert said in str(caught.value)


def test_a_service_needs_a_server(declare: Declare) -> None:
    with pytest.raises(ConfigurationError, match="either command or url"):
        declare("", command=[])


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_declarations_are_right(declare: Declare, name: str) -> None:
    kind = declare(f'include = "{name}"', settings={"undone": "/undone"})
    assert kind.scratch is not None
    for tool in kind.tools.values():
        assert tool.reason
        assert tool.examples or tool.call_class is CallClass.READ_ONLY


def test_a_tool_can_be_declared_otherwise_than_shipped(declare: Declare) -> None:
    kind = declare('include = "memory"\n[tools.delete_entities]\nclass = "refused"\nreason = "not here"')
    assert kind.classify(RemoteCall("delete_entities")).reason == "not here"
    assert kind.classify(RemoteCall("create_entities")).call_class is CallClass.COMPENSABLE


def test_a_declaration_may_lie_in_a_file_of_its_own(declare: Declare, tmp_path: Path) -> None:
    file = tmp_path / "notes.toml"
    file.write_text('settings = { room = "which room" }\n[tools.list]\nclass = "read-only"\n')
    kind = declare(f'include = "{file}"', settings={"room": "blue"})
    assert (kind.classify(RemoteCall("list")).call_class, kind.settings) == (CallClass.READ_ONLY, {"room": "blue"})
    with pytest.raises(ConfigurationError, match="which room"):
        declare(f'include = "{file}"')


# --- classes ---


def test_what_is_not_declared_is_refused_and_says_how_to_declare_it(declare: Declare) -> None:
    kind = declare('[tools.get]\nclass = "read-only"')
    for verdict in (kind.classify(RemoteCall("drop")), kind.describe("drop", {"readOnlyHint": True})):
        assert verdict.call_class is CallClass.REFUSED
        assert "[services.notes.tools.drop]" in verdict.reason


def test_hints_of_a_trusted_server_are_taken(declare: Declare) -> None:
    kind = declare('trust_hints = true\n[tools.get]\nclass = "refused"')
    hints: dict[str, dict[str, Any]] = {
        "look": {"readOnlyHint": True},
        "drop": {"readOnlyHint": "true"},
        "get": {"readOnlyHint": True},
    }
    server = ScriptedServer(dict.fromkeys((*hints, "plain"), lambda: "seen"), hints)
    assert kind.describe("look", hints["look"]).call_class is CallClass.READ_ONLY
    assert kind.describe("drop", hints["drop"]).call_class is CallClass.REFUSED
    assert kind.classify(RemoteCall("get")).call_class is CallClass.REFUSED
    found = kind.read(RemoteCall("look"), server)
    assert getattr(found, "call_class", None) is None
    for name in ("drop", "plain", "unheard of"):
        assert kind.classify(RemoteCall(name)).call_class is CallClass.READ_ONLY, "until the server is asked"
        refused = kind.read(RemoteCall(name), server)
        assert getattr(refused, "call_class", None) is CallClass.REFUSED
    assert [tool for tool, _ in server.calls] == ["look"]


@pytest.mark.parametrize("approve", [True, False])
def test_pivots(declare: Declare, approve: bool) -> None:
    kind = declare(f'[tools.send]\nclass = "pivot"\nreason = "mail"\napprove = {str(approve).lower()}')
    verdict = kind.classify(RemoteCall("send"))
    assert (verdict.call_class, verdict.reason, verdict.approved) == (CallClass.PIVOT, "mail", approve)


def test_the_endpoint_shows_no_secrets(declare: Declare) -> None:
    shown = declare("", command=["npx", "-y", "server", "--token", "s3cret", "KEY=s3cret", "/srv"]).endpoint
    assert shown == "npx server /srv"
    assert declare("", command=[], url="https://u:s3cret@host:8443/mcp?key=s3cret").endpoint == "https://host:8443/mcp"
