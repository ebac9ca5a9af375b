"""Which names of a layer are no state: the layer's own patterns, and the names that this backend uses for itself."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from planarian_core.interfaces import Layer
from planarian_filesystem.descent import Descent

STAGING_PREFIX = ".planarian-staging-"
"""Names at the top of a layer that are never state (used only where a layer is a mount of its own)."""


class Exclusion:
    """The exclusions of one layer. A pattern with a leading ``/`` is matched against absolute paths."""

    def __init__(self, layer: Layer) -> None:
        relative = [pattern for pattern in layer.exclude if not pattern.startswith("/")]
        absolute = [pattern for pattern in layer.exclude if pattern.startswith("/")]
        self._relative = _compile(relative)
        self._absolute = _compile(absolute)
        self._base = str(layer.path).rstrip("/") + "/"
        self.any = bool(layer.exclude)

    def excludes(self, path: str) -> bool:
        """Whether the relative ``path`` is left out, with all below it."""
        if path.startswith(STAGING_PREFIX):
            return True
        if self._relative and self._relative.match(path):
            return True
        return bool(self._absolute and self._absolute.match(self._base + path))

    def filter(self, descent: Descent) -> Callable[[str], bool] | None:
        """A test for the names of the directory that ``descent`` is in: true for state. None where all are."""
        if not self.any:
            return None if descent.depth else lambda name: not name.startswith(STAGING_PREFIX)
        prefix = descent.path() + "/" if descent.depth else ""
        return lambda name: not self.excludes(prefix + name)


def _compile(patterns: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{fnmatch.translate(pattern)})" for pattern in patterns)) if patterns else None
