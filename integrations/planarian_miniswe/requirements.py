"""What is said when mini-swe-agent is missing, or is of a version that this adapter doesn't know."""

from __future__ import annotations

from planarian_core.errors import ConfigurationError
from planarian_core.requirements import require

AT_LEAST, BELOW = (2, 4), (3,)
"""The extra in pyproject.toml says the same."""


def require_mini() -> None:
    """ConfigurationError, with the command that mends it, unless a fitting mini-swe-agent can be imported."""
    require("mini-swe-agent", "miniswe", at_least=AT_LEAST, below=BELOW)
    try:
        import minisweagent  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"mini-swe-agent can't be imported: {error}",
            code="miniswe-missing",
            remedy="pip install 'planarian[miniswe]'",
        ) from error
