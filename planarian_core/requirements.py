"""What is said when a framework is missing, or is of a version that its adapter doesn't know."""

from __future__ import annotations

import importlib.metadata
import re

from planarian_core.errors import ConfigurationError


def require(distribution: str, extra: str, *, at_least: tuple[int, ...], below: tuple[int, ...]) -> None:
    """ConfigurationError, with the command that mends it, unless a fitting version is installed.

    Args:
        extra: of this package, which brings the distribution.
    """
    remedy = f"pip install 'planarian[{extra}]'"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        message = f"{distribution} isn't installed"
        raise ConfigurationError(message, code=f"{extra}-missing", remedy=remedy) from error
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not at_least <= found < below:
        wanted = f"at least {_dotted(at_least)} and below {_dotted(below)}"
        message = f"{distribution} {version} is installed; {wanted} is needed"
        raise ConfigurationError(message, code=f"{extra}-version", remedy=remedy)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
