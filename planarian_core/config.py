"""Configuration: where the home is, and the defaults in its ``planarian.toml``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from planarian_core.errors import ConfigurationError
from planarian_core.policy import check_policy
from planarian_core.units import parse_share, parse_size

_PRUNE = re.compile(r"keep-last:([1-9]\d{0,8})")
_SERVICE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_STANDBY = re.compile(r"(off|head|named|best:[1-9]\d*)$")


def default_home() -> Path:
    """``PLANARIAN_HOME``, else the user's data directory (XDG)."""
    chosen = os.environ.get("PLANARIAN_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("planarian", appauthor=False))


@dataclass(frozen=True)
class Config:
    """Defaults of a home. Empty backend names mean: the best one that this host allows.

    ``policy`` is when adapters take statepoints by themselves (:mod:`planarian_core.policy`): ``every-call``,
    ``every:N`` (calls), ``on-change``, ``milestones`` (named ones only) or ``manual``. ``hidden`` are further host
    paths that no sandbox may see. ``agent_forks`` is how many open forks an agent may make of its own sandbox.
    ``lock_timeout`` in seconds; ``ledger_characters`` bounds what goes into an agent's context.

    ``standby`` is of which statepoints an open runtime keeps restored copies ready: ``off``, ``head``, ``named`` (the
    head and the named ones) or ``best:N`` (the head and the N best of the ledger); ``standby_memory`` (``2G``) bounds
    what they take together, a quarter of what is free if empty.

    ``max_bytes`` (``20G``) is what all statepoints may take, without limit if empty (of files on a btrfs pool the size
    of the pool is the limit); ``min_free`` (``1G`` or ``2%``)
    what must stay free on the disk, the smaller of 256M and 1% if empty. ``prune`` (``keep-last:50``) prunes a
    sandbox by itself after a snapshot, some at a time.

    ``full_images``: of so many process images in a row at least one is full, where the kernel lets the others be
    increments; 1: all of them.

    ``services`` are the tables ``[services.NAME]``: remote services that agents call through ``planarian proxy``. Each
    has a ``kind``; the rest means something to the plugin that offers the kind.
    """

    sandbox: str = ""
    filesystem: str = ""
    process: str = ""
    network: str = "none"
    policy: str = "every-call"
    standby: str = "off"
    standby_memory: str = ""
    hidden: tuple[str, ...] = ()
    agent_forks: int = 8
    lock_timeout: float = 600.0
    ledger_characters: int = 6000
    max_bytes: str = ""
    min_free: str = ""
    prune: str = ""
    full_images: int = 16
    services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_policy(self.policy)
        if self.max_bytes:
            parse_size(self.max_bytes)
        if self.standby_memory:
            parse_size(self.standby_memory)
        if self.min_free:
            parse_share(self.min_free, 0)
        if self.prune and not _PRUNE.fullmatch(self.prune):
            raise ConfigurationError(f"prune {self.prune!r} is unknown", remedy="keep-last:N, such as keep-last:50")
        if not _STANDBY.fullmatch(self.standby):
            raise ConfigurationError(f"standby {self.standby!r} is unknown", remedy="one of: off, head, named, best:N")
        if self.full_images < 1:
            raise ConfigurationError(f"full_images {self.full_images} is too small", remedy="1 or more")
        for name, table in self.services.items():
            if not _SERVICE.fullmatch(name) or name == "check":  # planarian proxy check
                raise ConfigurationError(f"service name {name!r} is unusable", remedy="letters, digits, - and _")
            if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
                raise ConfigurationError(
                    f"[services.{name}] needs a kind", remedy='kind = "sql", for example; see: planarian proxy --help'
                )
        if self.network not in ("none", "host"):
            raise ConfigurationError(f"network {self.network!r} is unknown", remedy="one of: none, host")

    @property
    def keep_last(self) -> int | None:
        """How many statepoints of a sandbox are kept by ``prune``; None where nothing is pruned by itself."""
        match = _PRUNE.fullmatch(self.prune)
        return int(match[1]) if match else None


def load(home: Path) -> Config:
    """Read ``planarian.toml`` of a home; its absence means the defaults.

    Raises:
        ConfigurationError: it is no TOML, or holds an unknown key or a value of the wrong type.
    """
    path = home / "planarian.toml"
    if not path.exists():
        old = home / "config.toml"
        if old.exists():
            raise ConfigurationError(f"{old} has another name now", remedy=f"mv {old} {path}")
        return Config()
    import tomllib  # 30 ms that few homes need

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: {error}", remedy="mend or remove the file") from error
    return from_mapping(data, str(path))


def from_mapping(data: Mapping[str, object], source: str) -> Config:
    """A Config from plain data; ``source`` is named in errors."""
    known = {f.name: f for f in fields(Config)}
    values: dict[str, object] = {}
    for key, value in data.items():
        if key not in known:
            raise ConfigurationError(f"{source}: unknown key {key!r}", remedy=f"one of: {', '.join(known)}")
        default = getattr(Config(), key)
        if isinstance(default, tuple) and isinstance(value, list) and all(isinstance(v, str) for v in value):
            value = tuple(value)
        elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(default):
            raise ConfigurationError(f"{source}: {key} must be a {type(default).__name__}")
        values[key] = value
    return Config(**values)  # type: ignore[arg-type]  # each value was checked against its field's type
