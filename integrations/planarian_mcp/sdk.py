"""Whether the ``mcp`` package is there, in the generation that serving needs."""

from __future__ import annotations

from planarian_core.errors import ConfigurationError


def check_sdk(command: str) -> None:
    """ConfigurationError, with what installs it, where it isn't."""
    try:
        import mcp.server.runner  # noqa: F401  # since mcp 2
    except ImportError as error:
        raise ConfigurationError(
            f"{command} needs the mcp package, 2.3 or later",
            code="extra-missing",
            remedy="pip install 'planarian[mcp]'",
        ) from error
