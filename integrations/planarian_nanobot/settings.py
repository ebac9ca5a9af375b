"""What a user of nanobot configures: ``planarian.json``, beside nanobot's ``config.json``.

nanobot gives plugins no place in ``config.json``: what it doesn't know there is gone when it saves the file.
"""

from __future__ import annotations

import os
from pathlib import Path

from nanobot.config.loader import get_config_path
from nanobot.config_base import Base
from pydantic import ConfigDict, ValidationError

from planarian_core.errors import ConfigurationError

_PLACE = "PLANARIAN_NANOBOT_CONFIG"


class Settings(Base):
    """Keys in camelCase or snake_case, as in ``config.json``.

    Args:
        enable: False leaves nanobot as it is.
        workspace: the directory that sandboxes stand on; nanobot's own workspace if empty.
        per_session: a sandbox for each of nanobot's sessions, or one for all.
        home: Planarian's; ``PLANARIAN_HOME``, or the user's data directory, if empty.
        sandbox, filesystem, process, network: backends; the best of this host, and the home's network, if empty.
        policy: when statepoints are taken after calls; the home's if empty.
        timeout: seconds that a command may take, if the model says nothing else.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    enable: bool = True
    workspace: str = ""
    per_session: bool = True
    home: str = ""
    sandbox: str = ""
    filesystem: str = ""
    process: str = ""
    network: str = ""
    policy: str = ""
    timeout: float = 600.0


def configured() -> Settings | None:
    """The settings, or None: without the file nanobot stays as it is.

    Raises:
        ConfigurationError: the file can't be read, or a key or value in it is wrong.
    """
    chosen = os.environ.get(_PLACE)
    file = Path(chosen).expanduser() if chosen else get_config_path().with_name("planarian.json")
    remedy = "docs/nanobot.md lists the keys"
    try:
        settings = Settings.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        if chosen:
            raise ConfigurationError(
                f"{file} ({_PLACE}) doesn't exist", code="nanobot-config", remedy=remedy
            ) from error
        return None
    except (OSError, ValidationError) as error:
        raise ConfigurationError(f"{file}: {error}", code="nanobot-config", remedy=remedy) from error
    return settings if settings.enable else None
