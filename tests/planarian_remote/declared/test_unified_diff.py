"""Applying unified diffs, against ``difflib`` as the one that makes them."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planarian_remote.declared.unified_diff import patched

LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "+x\n", "-y\n", "\\z\n", "@@ -1 +1 @@\n", "\r\n", " \u2028\n"]))
TEXTS = st.builds(lambda lines, end: "".join(lines) + end, LINES, st.sampled_from(["", "end", "@@"]))


def diff(old: str, new: str, context: int) -> str:
    """As diff prints it, with its line for an end without a line end."""
    parts = difflib.unified_diff(_lines(old), _lines(new), n=context)
    return "".join(part if part.endswith("\n") else f"{part}\n\\ No newline at end of file\n" for part in parts)


def _lines(text: str) -> list[str]:
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


@given(TEXTS, TEXTS, st.integers(0, 4))
def test_a_diff_leads_from_the_old_text_to_the_new_one(old: str, new: str, context: int) -> None:
    assert patched(old, f"Index: x\n{diff(old, new, context)}```\n\n") == new


@given(TEXTS, TEXTS, TEXTS)
def test_a_diff_of_another_text_is_refused(old: str, new: str, other: str) -> None:
    """With all lines in its hunk it fits no text that begins otherwise."""
    if old != new and old and not other.startswith(old):
        with pytest.raises(ValueError, match=r"."):
            patched(other, diff(old, new, 10_000))


@pytest.mark.parametrize(
    "wrong",
    ["@@ -1 +1 @@", "@@ -1 +1 @@\n-a", "@@ -9 +9 @@\n-a\n+b", "@@ -1 +1 @@\n-a\n-b\n+c", "@@ -1,2 +1 @@\n a\n+b"],
)
def test_a_malformed_diff_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        patched("a\nb\n", wrong)
