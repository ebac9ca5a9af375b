"""Makes the sandbox that a configuration describes: on the user's directory, or on a container image."""

from __future__ import annotations

import os

from planarian_core import Planarian, Sandbox
from planarian_core.errors import ConfigurationError
from planarian_miniswe.environment_config import PlanarianEnvironmentConfig
from planarian_miniswe.images import Images


def new_sandbox(planarian: Planarian, config: PlanarianEnvironmentConfig) -> Sandbox:
    """A new sandbox. On an image it has the variables that the image sets."""
    wanted = {key: getattr(config, key) for key in ("name", "sandbox", "filesystem", "process", "network", "policy")}
    if not config.image:
        return planarian.create_sandbox(config.workspace or config.cwd or os.getcwd(), **wanted)
    with Images(planarian, config.executable).get(config.image) as image:
        workspace = config.workspace or config.cwd or image.directory
        if workspace in ("", "/"):
            raise ConfigurationError(
                f"environment: {config.image} names no working directory", remedy="set workspace: a directory in it"
            )
        return planarian.create_sandbox(workspace, root=image.root, env=image.env, **wanted)


def remove_sandbox(planarian: Planarian, sandbox: Sandbox, config: PlanarianEnvironmentConfig) -> None:
    """Remove a sandbox, and the unpacked image that it stood on if it was the last one there."""
    root = sandbox.record.spec.root
    planarian.remove_sandbox(sandbox)
    if root:
        Images(planarian, config.executable).release(root)
