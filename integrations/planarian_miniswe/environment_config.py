"""The ``environment:`` section of a mini-swe-agent configuration."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from planarian_core.agent_requests import FORKS
from planarian_core.errors import ConfigurationError


@dataclass
class PlanarianEnvironmentConfig:
    """Keys of the ``environment:`` section. All have defaults; the first three mean what ``LocalEnvironment``'s mean.

    A dataclass rather than a pydantic model, because pydantic comes with mini-swe-agent, which may be missing.
    """

    cwd: str = ""
    """Where actions run: relative to the workspace, or absolute; the workspace if empty."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables for actions."""
    timeout: float = 30
    """Seconds that an action may take."""
    forward_env: list[str] = field(default_factory=list)
    """Names (or patterns such as ``LC_*``) of variables that actions get from this process; ``env`` comes before them.
    Nothing by default: a model's API key has no business in a sandbox."""
    interpreter: list[str] = field(default_factory=lambda: ["/bin/bash", "-c"])
    """What runs an action's text, which becomes its last argument: a login shell, another language."""
    output_limit: int = 10 * 1024 * 1024
    """Bytes of an action's output that are kept; the middle of more is cut out, and such an output submits nothing."""

    workspace: str = ""
    """The project's directory on the host; ``cwd`` if empty, else this process's current directory."""
    image: str = ""
    """A container image that the sandbox stands on in place of the host's own files; ``workspace`` is then a directory
    in it, its working directory if both that and ``cwd`` are empty."""
    executable: str = ""
    """What images are had with; podman, else docker, if empty."""
    home: str = ""
    """Planarian's home; ``PLANARIAN_HOME`` or the user's data directory if empty."""
    name: str = ""
    """A name for the new sandbox."""
    attach: str = ""
    """Go on in this sandbox (id, beginning of an id, or name) instead of a new one."""
    keep: bool = True
    """Leave the sandbox, its statepoints and the agent's forks after the run, to look at and roll back. An attached one
    always stays."""

    fork: str = "agent"
    """What the agent may do with forks: ``none``: make none; ``agent``: make, use and promote its own; ``on-rollback``:
    that, and each rollback that it asks for leaves a fork in which what it goes back from goes on."""
    policy: str = ""
    """When a statepoint is taken: ``every-call``, ``every:N``, ``on-change``, ``milestones`` or ``manual``; as the
    sandbox or else the home says if empty."""
    sandbox: str = ""
    filesystem: str = ""
    process: str = ""
    network: str = ""
    """Backends, and the network (``none`` or ``host``), of a new sandbox; the best that the host allows if empty."""

    def __post_init__(self) -> None:
        for key in fields(self):
            value, expected = getattr(self, key.name), _EXPECTED.get(str(key.type), object)
            if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
                raise ConfigurationError(f"environment: {key.name} must be {key.type}, not {value!r}")
        if self.fork not in FORKS:
            raise ConfigurationError(f"environment: fork can't be {self.fork!r}", remedy=f"one of: {', '.join(FORKS)}")
        if not self.interpreter or not all(isinstance(word, str) for word in self.interpreter):
            raise ConfigurationError("environment: interpreter must be words", remedy='such as ["/bin/bash", "-c"]')
        for name, value in self.env.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise ConfigurationError(f"environment: env: {name} must be a string, not {value!r}", remedy="quote it")

    @classmethod
    def of(cls, settings: dict[str, Any]) -> PlanarianEnvironmentConfig:
        """A configuration from plain data; ConfigurationError names a key that there isn't."""
        known = [key.name for key in fields(cls)]
        for name in settings:
            if name not in known:
                raise ConfigurationError(f"environment: unknown key {name!r}", remedy=f"one of: {', '.join(known)}")
        return cls(**settings)


_EXPECTED: dict[str, Any] = {
    "str": str,
    "bool": bool,
    "int": int,
    "float": (int, float),
    "dict[str, str]": dict,
    "list[str]": list,
}
