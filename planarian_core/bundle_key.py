"""The key by which a home knows its own bundles again."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from planarian_core.errors import ConfigurationError

_NAME = "bundle.key"
_LENGTH = 32
_LONGEST = 4096


def make_key(home: Path, file: Path | None) -> bytes:
    """The key to seal a bundle with: of ``file``, else the home's own, made if there is none yet.

    Raises:
        ConfigurationError: the key file can't be read, or others can.
    """
    if file is not None:
        return _read(file)
    path = home / _NAME
    if not path.exists():
        draft = home / f"{_NAME}.{secrets.token_hex(6)}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as stream:
                stream.write(secrets.token_hex(_LENGTH).encode("ascii") + b"\n")
                stream.flush()
                os.fsync(descriptor)
            with suppress(FileExistsError):  # another runtime was faster: its key is the home's
                os.link(draft, path)
        finally:
            draft.unlink()
    return _read(path)


def find_key(home: Path, file: Path | None) -> bytes:
    """The key to know a bundle by: of ``file``, else the home's own; empty when it has none."""
    if file is not None:
        return _read(file)
    path = home / _NAME
    return _read(path) if path.exists() else b""


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigurationError(
                    f"others than you can read the key {path}",
                    code="bundle-key",
                    remedy=f"chmod 600 {path}",
                )
            key = file.read(_LONGEST).strip()
    except OSError as error:
        raise ConfigurationError(f"the key {path} can't be read: {error.strerror}", code="bundle-key") from error
    if len(key) < _LENGTH:
        raise ConfigurationError(
            f"the key {path} is too short: at least {_LENGTH} bytes make a key",
            code="bundle-key",
            remedy=f"openssl rand -hex 32 > {path}",
        )
    return key
