"""What describes an environment as plain data: in component configurations, and to open it once more."""

from __future__ import annotations

from dataclasses import dataclass

from planarian_core.errors import ConfigurationError


@dataclass(frozen=True)
class EnvironmentSettings:
    """An environment that can be found again, or made.

    ``home`` and ``name`` tell it apart: settings with the same ones mean the same environment, so that the parts of a
    team share it after a round trip through component configurations too.
    """

    home: str
    workspace: str = ""
    """The directory that a new sandbox stands on."""
    name: str = ""
    """Of the sandbox: gone on with where it is there, made where it isn't."""
    attach: str = ""
    """The id of a sandbox to go on with, in place of ``workspace`` and ``name``."""
    sandbox: str = ""
    filesystem: str = ""
    process: str = ""
    network: str = ""
    policy: str = ""
    """Backends, network and policy of a new sandbox; the best that the host allows, and the home's, if empty."""
    on_load: str = "rollback"
    """What loading a state does: roll the environment back, or ``fork`` it."""
    snapshot: bool = True
    """Whether statepoints are taken by the runtime's policy after calls; else only when a state is saved, and by hand.
    """

    def __post_init__(self) -> None:
        if self.on_load not in ("rollback", "fork"):
            raise ConfigurationError(f"on_load={self.on_load!r} is unknown", remedy="rollback or fork")
        if not self.workspace and not self.attach:
            raise ConfigurationError(
                "an environment needs a workspace, or a sandbox to go on with",
                remedy="Environment(planarian, workspace=...) or Environment(planarian, attach=...)",
            )

    @property
    def key(self) -> str:
        """What settings of the same environment have in common."""
        return f"{self.home}:{self.attach or self.name}"
