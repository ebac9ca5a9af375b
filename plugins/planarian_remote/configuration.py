"""Reading a table ``[services.NAME]``: typed values, environment variables, and what is common to all kinds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from planarian_core.errors import ConfigurationError
from planarian_core.interfaces import TargetServer
from planarian_core.logged_service import MARKED

MAX_RESULT = 16 * 1024 * 1024
_QUOTED = 4
"""How much larger than its text a result may be as a message: quoted within JSON, perhaps twice."""
_SECRET = re.compile(r"token|key|secret|passw|auth|credential|cookie|session", re.IGNORECASE)
_PINNED = re.compile(r"(?<=.)@\d[\w.+-]*\Z")
"""The version in ``name@1.2.3``."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Table:
    """One ``[services.NAME]``. Values are asked for with their type; :meth:`close` refuses what nobody asked for.

    ``${NAME}`` in a text is the environment variable NAME of the process that reads it, for passwords.
    """

    def __init__(self, name: str, raw: Mapping[str, Any], source: str = "") -> None:
        self.name = name
        self.source = source or f"[services.{name}]"
        self._raw = raw
        self._known: set[str] = set()

    def text(self, key: str, default: str | None = None) -> str:
        """A string; required without a default."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return self.filled(value)

    def texts(self, key: str, default: Sequence[str] | None = ()) -> tuple[str, ...]:
        value = self._get(key, default)
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise self.wrong(key, "a list of strings")
        return tuple(self.filled(v) for v in value)

    def mapping(self, key: str) -> dict[str, str]:
        value = self._get(key, {})
        if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
            raise self.wrong(key, "a table of strings")
        return {str(k): self.filled(v) for k, v in value.items()}

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def identity(self, *where: object, server: TargetServer | None = None) -> str:
        """What tells the service's server from others: ``identity``, or a digest of where its state is. Of a server,
        neither the version of a package counts, nor variables whose names say that they hold a secret: those change.
        """
        told = list(where)
        if server is not None:
            address = urlsplit(server.url)
            bare = address._replace(netloc=address.netloc.rpartition("@")[2], fragment="").geturl()
            env = {name: text for name, text in server.env.items() if not _SECRET.search(name)}
            told += [[_PINNED.sub("", word) for word in server.command], bare, server.cwd, env]
        digest = sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
        return self.text("identity", "") or f"{MARKED}{digest}"

    def max_result(self) -> int:
        """Bytes that one result may have before it is refused instead of being held in memory."""
        return int(self.number("max_result", MAX_RESULT))

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        value = self.text(key, default)
        if value not in choices:
            raise self.wrong(key, f"one of: {', '.join(choices)}")
        return value

    def tables(self, key: str) -> dict[str, Table]:
        """Tables by name, such as ``[services.NAME.tools.TOOL]``."""
        value = self._get(key, {})
        if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
            raise self.wrong(key, "a table of tables")
        return {str(k): Table(str(k), v, f"[{self.source.strip('[]')}.{key}.{k}]") for k, v in value.items()}

    def raw(self, key: str, default: Any = None) -> Any:
        """A value as TOML has it, for what has a shape of its own."""
        return self._get(key, default)

    def server(self, *, required: bool = True) -> TargetServer | None:
        """``command`` or ``url`` of the target server, with what else is said about it."""
        command, url = self.texts("command"), self.text("url", "")
        largest = _QUOTED * self.max_result()
        if bool(command) == bool(url):
            if not command and not required:
                return None
            raise ConfigurationError(
                f"{self.source} needs either command or url",
                remedy='command = ["npx", "-y", "SERVER"], or url = "http://127.0.0.1:5000/mcp"',
            )
        cwd = self.text("cwd", "")
        return TargetServer(
            command,
            url,
            self.mapping("env"),
            str(Path(cwd).expanduser()) if cwd else "",
            self.mapping("headers"),
            self.number("timeout", 60.0),
            largest,
        )

    def close(self) -> None:
        """ConfigurationError for a key that no call of this table asked for."""
        unknown = sorted(self._raw.keys() - self._known - {"kind", "dialect"})
        if unknown:
            raise ConfigurationError(
                f"{self.source}: unknown key {unknown[0]!r}", remedy=f"one of: {', '.join(sorted(self._known))}"
            )

    def wrong(self, key: str, wanted: str) -> ConfigurationError:
        return ConfigurationError(f"{self.source}: {key} must be {wanted}", remedy="mend the home's planarian.toml")

    def filled(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            found = os.environ.get(match[1])
            if found is None:
                raise ConfigurationError(
                    f"{self.source} needs the environment variable {match[1]}", remedy=f"export {match[1]}=…"
                )
            return found

        return _VARIABLE.sub(value, text)

    def _get(self, key: str, default: Any) -> Any:
        self._known.add(key)
        value = self._raw.get(key, default)
        if value is None:
            raise ConfigurationError(f"{self.source} needs {key}", remedy="mend the home's planarian.toml")
        return value
