"""The kernel's own merging of memory into transparent huge pages, switched and hurried for a test; root only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from planarian_core.testing.process import eventually

_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_HURRY = {"khugepaged/scan_sleep_millisecs": "10", "khugepaged/pages_to_scan": "65536", "khugepaged/defrag": "1"}


class Merger:
    """``khugepaged``: it looks through the memory of all processes for what can be put together."""

    @classmethod
    @contextlib.contextmanager
    def hurried(cls, enabled: str) -> Iterator[Merger]:
        """With ``always`` it looks all the time; with ``never`` nobody gets huge pages. Afterwards all is as before."""
        wanted = {"enabled": enabled, **_HURRY}
        before = {name: (_SETTINGS / name).read_text() for name in wanted}
        try:
            for name, value in wanted.items():
                (_SETTINGS / name).write_text(value)
            yield cls()
        finally:
            for name, text in before.items():
                (_SETTINGS / name).write_text(text.partition("[")[2].partition("]")[0] or text)

    def look_twice(self) -> None:
        """Wait until it has looked at everything that is there now; at once where it doesn't look."""
        if "[never]" in (_SETTINGS / "enabled").read_text():
            return
        seen = _SETTINGS / "khugepaged" / "full_scans"
        before = int(seen.read_text())
        assert eventually(lambda: int(seen.read_text()) >= before + 2, 60)
