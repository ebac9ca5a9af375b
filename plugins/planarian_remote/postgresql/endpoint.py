"""Where a database or server is, as people may see it: without secrets."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from planarian_core.interfaces import TargetServer


def shown_dsn(dsn: str) -> str:
    """``postgresql://HOST:PORT/DATABASE``; of a key-value string, the same keys."""
    if "://" in dsn:
        parts = urlsplit(dsn)
        return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
    found = dict(re.findall(r"(host|port|dbname)\s*=\s*('[^']*'|\S+)", dsn))
    return "postgresql:" + " ".join(f"{key}={value}" for key, value in sorted(found.items()))


def shown_server(server: TargetServer) -> str:
    """The address, or the command's first words up to an option that may hold a secret."""
    if server.url:
        parts = urlsplit(server.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    words = server.command[:3]
    risky = (at for at, word in enumerate(words) if word.startswith("--") or "=" in word or "://" in word)
    return " ".join(words[: next(risky, len(words))])
