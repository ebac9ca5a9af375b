"""The host-side folder of a running ``directory`` sandbox, and the environment of what runs in it.

``HOME/sandboxes/ID/run`` holds: ``live`` (token of the present life), ``calls`` (input files), ``requests`` and
``listening`` (of the ``planarian`` command), ``sessions``, ``bin``. It is no secret from the sandbox, whose commands
are the same user's.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from pathlib import Path

from planarian_core.errors import SandboxError
from planarian_core.model import Command, SandboxSpec
from planarian_sandbox.request_listener import LISTENING, REQUESTS, program

INSIDE = "PLANARIAN_INSIDE"
"""Marks every process of a sandbox with its id. Not PLANARIAN_SANDBOX: people set that in their own shells."""
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_KEPT_OUT = re.compile(
    r"^PLANARIAN_|^(OLD)?PWD$|SECRET|TOKEN|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_KEY$",
    re.IGNORECASE,
)
"""Variables of the user's environment that commands don't get unless the sandbox's ``env`` names them."""


class RunFolder:
    """Paths of one sandbox's run folder, and how they are made and removed."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.path = Path(spec.home, "sandboxes", spec.id, "run")
        self.calls = self.path / "calls"
        self.programs = self.path / "bin"

    def make(self) -> str:
        """Make it anew; returns the token of this life."""
        self.remove()
        names = ("calls", "bin", "sessions", REQUESTS, LISTENING)
        for folder in (self.path, *(self.path / name for name in names)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = self.programs / "planarian"
        client = Path(__file__).with_name("request_client.py")
        command.write_bytes(program(sys.executable, str(client), str(self.path)))
        command.chmod(0o755)
        token = secrets.token_hex(8)
        (self.path / "live").write_text(token, encoding="ascii")
        return token

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def is_live(self, token: str) -> bool:
        try:
            return (self.path / "live").read_text(encoding="ascii") == token
        except (OSError, UnicodeDecodeError):
            return False

    def session(self, name: str) -> Path:
        """The folder of a session, made where it is missing."""
        folder = self.path / "sessions" / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def create(self, name: str, content: bytes = b"") -> int:
        """A new file among the calls' files, open for reading and writing."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.calls / name, flags, 0o600)
            if content:
                with open(descriptor, "wb", closefd=False) as stream:
                    stream.write(content)
        except OSError as error:
            raise SandboxError(
                f"the command's files can't be made in {self.calls}: {error.strerror}",
                code="sandbox-files",
                state="the command did not run",
            ) from error
        return descriptor

    def environment(self, command: Command, call: str) -> dict[str, str]:
        """The user's own environment without what looks like a secret or configures Planarian, then the sandbox's, the
        command's, and our marks. With ``clear_env`` the command's and our marks alone.
        """
        variables: dict[str, str] = {}
        if not command.clear_env:
            variables = {name: value for name, value in os.environ.items() if not _KEPT_OUT.search(name)}
            variables.update(self.spec.env)
        variables.update(command.env)
        path = variables.get("PATH", "" if command.clear_env else _DEFAULT_PATH)
        if path and str(self.programs) not in path.split(":"):
            path = f"{self.programs}:{path}"
        return (
            variables
            | ({"PATH": path} if path else {})
            | {
                "PLANARIAN_CALL": call,
                INSIDE: self.spec.id,
            }
        )

    def directory(self, command: Command) -> str:
        """Where a command starts: the workspace, or ``cwd`` relative to it."""
        path = os.path.join(self.spec.workspace, command.cwd)
        if not os.path.isdir(path):
            raise SandboxError(
                f"the directory {path} does not exist", code="sandbox-directory", state="the command did not run"
            )
        return path
