"""Commands of the host: argument lists, a time limit, the output in a log."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

BEGUN = time.monotonic()
_TOLD = 1500


class GuestError(Exception):
    """The guest can't be built or booted; the message says why and what to do."""


def say(what: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"guest [{time.monotonic() - BEGUN:4.0f} s] {what}", flush=True)


def run(
    command: Sequence[str],
    *,
    log: Path | None = None,
    limit: float = 600,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command to its end and return what it prints; GuestError with the end of that when it fails."""
    clean = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", **(environment or {})}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=cwd,
            env=clean,
            timeout=limit,
            check=False,
        )
    except FileNotFoundError as error:
        raise GuestError(f"{command[0]} isn't installed") from error
    except subprocess.TimeoutExpired as error:
        raise GuestError(f"{command[0]} took more than {limit:.0f} s: {' '.join(command)[:200]}") from error
    output = done.stdout.decode(errors="replace")
    said = output + done.stderr.decode(errors="replace")
    if log is not None:
        log.write_text(said)
    if done.returncode != 0:
        where = f" (all of it: {log})" if log else ""
        raise GuestError(f"{' '.join(command)[:200]} ended with {done.returncode}{where}:\n{said[-_TOLD:]}")
    return output
