"""What is said when mini-swe-agent is missing, or is of a version that this adapter doesn't know."""

from __future__ import annotations

import importlib.metadata
import re

from planarian_core.errors import ConfigurationError

_REMEDY = "pip install 'planarian[miniswe]'"
_AT_LEAST, _BELOW = (2, 4), (3,)  # the extra in pyproject.toml says the same


def require_mini() -> None:
    """ConfigurationError, with the command that mends it, unless a fitting mini-swe-agent can be imported."""
    try:
        import minisweagent  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"mini-swe-agent can't be imported: {error}", code="miniswe-missing", remedy=_REMEDY
        ) from error
    version = importlib.metadata.version("mini-swe-agent")
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not _AT_LEAST <= found < _BELOW:
        raise ConfigurationError(
            f"mini-swe-agent {version} is installed; at least 2.4 and below 3 is needed",
            code="miniswe-version",
            remedy=_REMEDY,
        )
