"""The language of declarations: what placeholders and operators give, and that values stay values."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planarian_remote.declared.templates import MISSING, ResultView, Unresolved, evaluate, roots

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SCOPE: dict[str, Any] = {
    "call": {"path": "/a", "n": 3, "on": True, "none": None, "list": [{"id": 1}, {"id": 2}], "odd key": {"x.y": 5}},
    "before": {"gone": MISSING},
}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("${call.path}", "/a"),
        ("${call.n}", 3),
        ("n is ${call.n}, ${call.on}", "n is 3, true"),
        ("${call.none}", None),
        ("${call.list.1.id}", 2),
        ("${call.list.*.id}", [1, 2]),
        ('${call."odd key"."x.y"}', 5),
        ("$${call.path}", "${call.path}"),
        ({"a": ["${call.n}", 1.5, False]}, {"a": [3, 1.5, False]}),
        ({"a": "${call.absent?}", "b": 1}, {"b": 1}),
        (["${call.absent?}", 1], [1]),
        ("a${call.absent?}b", "ab"),
        ({"$each": "${call.list}", "$item": "<${item.id}>"}, ["<1>", "<2>"]),
        ({"$each": "${call.list}", "$as": "x", "$where": [["${x.id}", 2]], "$item": "${x}"}, [{"id": 2}]),
        ({"$list": [1, 2, 2, 3], "$without": [2]}, [1, 3]),
        ({"$list": "${call.list}", "$without": [1], "$by": "id"}, [{"id": 2}]),
        ({"$list": "${call.list}", "$in": [{"id": 1}]}, [{"id": 1}]),
        ({"$concat": [[1], "${call.list.*.id}"]}, [1, 1, 2]),
        ({"$ancestors": "/a//b/../c/./d/"}, ["/a", "/a/c", "/a/c/d"]),
        ({"$ancestors": "../a/.."}, [".."]),
        ({"$ancestors": "/../.."}, []),
        ({"$missing": True}, MISSING),
        ({"$patched": "a\nb", "$with": "x\n@@ -2,1 +2,1 @@\n-b\n\\ No newline at end of file\n+c\n"}, "a\nc\n"),
    ],
)
def test_what_a_template_gives(template: Any, value: Any) -> None:
    assert evaluate(template, SCOPE) == value


@pytest.mark.parametrize(
    "template",
    [
        "${call.absent}",
        "${call.list.2}",
        "${call.path.x}",
        "${call.path.*}",
        "text with ${call.list}",
        "text with ${call.none}",
        "${before.gone}",
        "${call.none?.x}",
        {"$concat": "${call.path}"},
        {"$each": {"a": 1}, "$item": 1},
        {"$ancestors": 3},
        {"$patched": "a", "$with": "@@ -1 +1 @@\n-b\n+c"},
    ],
)
def test_what_is_not_there_is_an_error(template: Any) -> None:
    with pytest.raises((Unresolved, ValueError)):
        evaluate(template, SCOPE)


@given(JSON)
def test_values_never_become_templates(value: Any) -> None:
    hostile = {"v": value, "t": "${call.secret} $${x} ${", "o": {"$each": [1], "$item": "${call.secret}"}}
    scope = {"call": {"a": hostile, "secret": "s"}}
    assert evaluate({"x": "${call.a}", "y": ["${call.a.o}"]}, scope) == {"x": hostile, "y": [hostile["o"]]}
    assert evaluate("<${call.a.t}>", scope) == "<${call.secret} $${x} ${>"
    assert evaluate({"$each": ["${call.a}"], "$item": "${item.o}"}, scope) == [hostile["o"]]


@given(JSON, st.text())
def test_any_value_may_be_asked_for_anything(value: Any, text: str) -> None:
    """Nothing but Unresolved comes of values that aren't as a declaration thinks."""
    for template in (
        "${call.a.b.0.*.c}",
        "x${call.a}",
        {"$each": "${call.a}", "$item": "${item.id}"},
        {"$list": "${call.a}", "$without": "${call.a.*}", "$by": "id"},
        {"$ancestors": "${call.a}"},
        {"$patched": text, "$with": "${call.a}"},
    ):
        with suppress(Unresolved):
            evaluate(template, {"call": {"a": value}})


def test_values_can_not_make_it_run_forever() -> None:
    numbers = list(range(3000))
    template = {"$each": "${call.a}", "$item": {"$each": "${call.a}", "$item": "${item}"}}
    with pytest.raises(Unresolved, match="too much"):
        evaluate(template, {"call": {"a": numbers}})


def test_deep_values_are_an_error_and_not_a_crash() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Unresolved):
        evaluate({"$list": [deep], "$without": []}, {})


@pytest.mark.parametrize(
    "template",
    [
        "${}",
        "${call..x}",
        "${call.}",
        "${call.path!}",
        "${__import__('os')}",
        {"$eval": "1"},
        {"$each": [1]},
        {"$each": [1], "$item": 1, "other": 2},
        {"$list": [], "$without": [], "$in": []},
        {"$list": []},
        {"$each": [], "$item": 1, "$where": [["a"]]},
    ],
)
def test_a_wrong_template_is_found_before_it_is_used(template: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        roots(template)


def test_roots_are_what_a_template_needs() -> None:
    template = {
        "$each": "${call.list}",
        "$as": "x",
        "$item": ["${x.id}", "${before.file}"],
        "$where": [["${x}", "${y.z}"]],
    }
    assert roots(template) == {"call.list", "before.file", "y.z"}


def test_a_result_is_seen_as_text_and_json() -> None:
    result = ResultView({"content": [{"type": "text", "text": '{"id": 7}'}, {"type": "image"}], "isError": False})
    assert evaluate(["${result.text}", "${result.json.id}", "${result.content.0.type}"], {"result": result}) == [
        '{"id": 7}', 7, "text",
    ]  # fmt: skip
    for odd in ({}, {"content": None}, {"content": "x"}, {"content": [3, {"type": "text", "text": 4}]}):
        assert evaluate("${result.text}", {"result": ResultView(odd)}) == ""
        with pytest.raises(Unresolved):
            evaluate("${result.json.id}", {"result": ResultView(odd)})
