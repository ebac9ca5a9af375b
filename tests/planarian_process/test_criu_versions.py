"""Images from elsewhere: which versions can have made them."""

from __future__ import annotations

import pytest

from planarian_process.criu_versions import fits


@pytest.mark.parametrize(
    ("criu", "kernel"),
    [("4.2.1", "6.18.44-x"), ("4.2", "6.18.1"), ("4.1.9", "6.2.0"), ("3.19", "5.10.0-21-amd64"), ("4.2.9", "6.18.99")],
)
def test_an_image_of_the_same_or_older_versions_is_accepted(criu: str, kernel: str) -> None:
    assert fits({"criu": criu, "kernel": kernel}, "4.2.1", "6.18.44-x").available


@pytest.mark.parametrize(
    ("criu", "kernel", "named"),
    [("4.3", "6.18.0", "CRIU 4.3"), ("4.2", "6.19.0", "kernel 6.19.0"), ("5.0", "7.0", "CRIU 5.0")],
)
def test_an_image_of_newer_ones_is_not(criu: str, kernel: str, named: str) -> None:
    found = fits({"criu": criu, "kernel": kernel}, "4.2.1", "6.18.44-x")
    assert not found.available
    assert named in found.reason
    assert found.remedy


@pytest.mark.parametrize("details", [{}, {"criu": 4, "kernel": "6.1"}, {"criu": "4.2", "kernel": "new"}])
def test_an_image_that_does_not_say_is_not(details: dict[str, object]) -> None:
    assert not fits(details, "4.2.1", "6.18.44-x").available
