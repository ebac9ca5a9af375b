"""Whether an image that CRIU made on another host can be expected to come back to life on this one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from planarian_core.interfaces import Availability

_NUMBER = re.compile(r"\d+")


def fits(details: Mapping[str, Any], criu: str, kernel: str) -> Availability:
    """What is known before it is tried: neither this CRIU nor this kernel may be older than the image's.

    Args:
        details: of the image's artefact; ``criu`` and ``kernel`` are the versions there.
    """
    for what, wanted, here, remedy in (
        ("CRIU", details.get("criu"), criu, "upgrade criu"),
        ("kernel", details.get("kernel"), kernel, "boot a kernel that is no older"),
    ):
        if not isinstance(wanted, str) or not _release(wanted):
            return Availability(False, f"its image doesn't say which {what} made it", "export it again")
        if _release(here) < _release(wanted):
            return Availability(False, f"its image was made with {what} {wanted[:40]}; here is {here}", remedy)
    return Availability(True)


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: later ones change no format."""
    return tuple(int(number[:6]) for number in _NUMBER.findall(version)[:2])
