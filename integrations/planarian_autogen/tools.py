"""The same as AutoGen's tools. They are components: a configuration names their environment, not their source code."""

from __future__ import annotations

import inspect
from typing import Self

from autogen_core.tools import FunctionTool
from pydantic import BaseModel

from planarian_autogen.environment import Environment
from planarian_autogen.inside import Inside, Primitives
from planarian_autogen.settings import EnvironmentSettings
from planarian_core.errors import ConfigurationError

_TIMEOUT = 600.0


class EnvironmentToolConfig(BaseModel):
    """Which tool, and in which environment."""

    environment: EnvironmentSettings
    name: str
    timeout: float = _TIMEOUT


class EnvironmentTool(FunctionTool):
    """One of the tools of :func:`sandbox_tools` and :func:`primitive_tools`, by its name.

    Args:
        timeout: seconds that a command may take.
    """

    component_provider_override = "planarian_autogen.EnvironmentTool"
    component_config_schema = EnvironmentToolConfig  # type: ignore[assignment]  # another one than FunctionTool's own

    def __init__(self, environment: Environment, name: str, *, timeout: float = _TIMEOUT) -> None:
        if name not in (*Inside.names, *Primitives.names):
            known = ", ".join((*Inside.names, *Primitives.names))
            raise ConfigurationError(f"there is no tool {name!r}", remedy=f"one of: {known}")
        self._environment = environment
        self._timeout = timeout
        where = Inside(environment, timeout) if name in Inside.names else Primitives(environment)
        work = getattr(where, name)
        super().__init__(work, description=" ".join((inspect.getdoc(work) or "").split()), name=name)

    def _to_config(self) -> EnvironmentToolConfig:  # type: ignore[override]  # as above
        return EnvironmentToolConfig(environment=self._environment.settings, name=self.name, timeout=self._timeout)

    @classmethod
    def _from_config(cls, config: EnvironmentToolConfig) -> Self:  # type: ignore[override]  # as above
        return cls(Environment.of(config.environment), config.name, timeout=config.timeout)


def sandbox_tools(environment: Environment, *, timeout: float = _TIMEOUT) -> list[EnvironmentTool]:
    """``bash``, ``read_file``, ``write_file`` and ``edit_file`` in the sandbox. Statepoints are taken by the workbench
    that they are in.

    Args:
        timeout: seconds that a command may take.
    """
    return [EnvironmentTool(environment, name, timeout=timeout) for name in Inside.names]


def primitive_tools(environment: Environment) -> list[EnvironmentTool]:
    """``snapshot``, ``rollback``, ``ledger`` and ``outcome``, for an agent that is to decide itself."""
    return [EnvironmentTool(environment, name) for name in Primitives.names]
