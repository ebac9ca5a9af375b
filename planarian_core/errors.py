"""Errors. Each says what happened, what is true now, and what to do next; ``code`` is stable and safe to test for."""

from __future__ import annotations


class PlanarianError(Exception):
    """Root of everything that Planarian raises on purpose.

    Args:
        message: what happened, one sentence.
        code: a stable identifier, ``area-what`` (``statepoint-unknown``); the class has a default.
        state: what is true now (``the sandbox goes on running``); empty when nothing changed.
        remedy: the next step, a command where there is one.
    """

    default_code = "planarian"

    def __init__(self, message: str, *, code: str | None = None, state: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.state = state
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.message]
        if self.state:
            parts.append(f"Now: {self.state}")
        if self.remedy:
            parts.append(f"Next: {self.remedy}")
        return "\n".join(parts)

    def to_dict(self) -> dict[str, str]:
        """The error as plain data, for ``--json`` and for tools."""
        return {"error": self.code, "message": self.message, "state": self.state, "remedy": self.remedy}


class ConfigurationError(PlanarianError):
    """The request or the configuration can't be meant (a workspace of ``/``, an unknown backend name)."""

    default_code = "configuration"


class BackendUnavailable(PlanarianError):
    """The named backend can't serve on this host; ``remedy`` is the command that mends it."""

    default_code = "backend-unavailable"


class CaptureError(PlanarianError):
    """A snapshot failed. Nothing was committed; the sandbox goes on running."""

    default_code = "capture"


class RestoreError(PlanarianError):
    """A rollback or fork failed; ``state`` says which statepoint the sandbox is at now."""

    default_code = "restore"


class RemoteError(PlanarianError):
    """A call of a remote service was not made, or nobody knows how it ended; ``code`` and ``state`` say which."""

    default_code = "remote"


class CompensationError(PlanarianError):
    """A remote effect could not be undone."""

    default_code = "compensation"


class CompensationConflict(CompensationError):
    """The remote state is not the post-image: somebody else wrote since. Nothing was overwritten."""

    default_code = "compensation-conflict"


class LineageError(PlanarianError):
    """A statepoint, branch or sandbox is unknown, ambiguous, of another sandbox, or not committed."""

    default_code = "lineage"


class RegistryCorrupt(PlanarianError):
    """The registry can't be read, or was written by a newer version."""

    default_code = "registry-corrupt"


class SandboxError(PlanarianError):
    """The sandbox can't run commands: it did not start, its init is gone, or it is busy."""

    default_code = "sandbox"
