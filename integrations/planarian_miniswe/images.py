"""Container images as root file systems: unpacked once by the user's own podman (or docker), no container is started.

The tree lies in the home, in ``images/``, named by the image's id. What is in it is anybody's: it is unpacked by
``tar``, which writes through no symlink of the archive's own, and never looked into by name from outside.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planarian_core import Planarian
from planarian_core.errors import ConfigurationError, PlanarianError

_ENGINES = ("podman", "docker")
_PULL_SECONDS = 3600.0


@dataclass(frozen=True)
class Image:
    """An image that was unpacked. ``env`` and ``directory`` are what it says of itself."""

    id: str
    root: Path
    env: dict[str, str]
    directory: str


class ImageError(PlanarianError):
    """An image can't be had. Nothing of it is left."""

    default_code = "image"


class Images:
    """The unpacked images of a home.

    Args:
        engine: the program to ask, such as ``podman``; the first of podman and docker that is there if empty.
    """

    def __init__(self, planarian: Planarian, engine: str = "") -> None:
        self._planarian = planarian
        self._folder = planarian.home / "images"
        found = shutil.which(engine) if engine else next(filter(None, map(shutil.which, _ENGINES)), None)
        if found is None:
            raise ConfigurationError(
                f"{engine or 'podman'} isn't there, which images are unpacked with",
                code="container-engine-missing",
                remedy="apt-get install podman",
            )
        self._engine = found

    @contextmanager
    def get(self, name: str) -> Iterator[Image]:
        """An image, pulled where it isn't there yet. It isn't removed (:meth:`release`) as long as this lasts."""
        described = self._describe(name)
        image_id = re.sub(r"[^0-9a-f]", "", str(described["Id"]).removeprefix("sha256:"))[:64]
        self._folder.mkdir(mode=0o700, exist_ok=True)
        place = self._folder / image_id
        with self._locked(image_id):
            if not (place / "root").is_dir():
                self._unpack(name, place)
            config = described.get("Config") or {}
            pairs = (text.partition("=") for text in config.get("Env") or ())
            env = {variable: value for variable, _, value in pairs if variable}
            yield Image(image_id, place / "root", env, str(config.get("WorkingDir") or ""))

    def release(self, root: str) -> None:
        """Remove an unpacked image that no sandbox stands on any more. The engine's own copy stays."""
        place = Path(root).parent
        if not root or place.parent != self._folder:
            return
        with self._locked(place.name):
            if all(record.spec.root != root for record in self._planarian.registry.sandboxes()):
                shutil.rmtree(place, ignore_errors=True)

    def _describe(self, name: str) -> dict[str, Any]:
        command = ["image", "inspect", name]
        try:
            text = self._ask(*command)
        except ImageError:
            self._ask("pull", "--quiet", name)
            text = self._ask(*command)
        found: dict[str, Any] = json.loads(text)[0]
        return found

    def _unpack(self, name: str, place: Path) -> None:
        made = place.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        (made / "root").mkdir(parents=True)
        container = self._ask("create", name, "/bin/true").split()[-1]
        tar = ["tar", "--extract", "--numeric-owner", "--preserve-permissions", "--directory", str(made / "root")]
        tar += ["--xattrs", "--xattrs-include=security.capability", "--exclude=./dev/*", "--exclude=dev/*"]
        try:
            with subprocess.Popen([self._engine, "export", container], stdout=subprocess.PIPE) as export:
                done = subprocess.run(tar, stdin=export.stdout, capture_output=True, check=False)
            if export.returncode or done.returncode:
                why = os.fsdecode(done.stderr).strip()[-500:] or f"{self._engine} export ended with {export.returncode}"
                raise ImageError(
                    f"{name} can't be unpacked: {why}",
                    state="nothing of it is left",
                    remedy="free space, or look there",
                )
            made.rename(place)
        finally:
            shutil.rmtree(made, ignore_errors=True)
            self._ask("rm", container)

    def _ask(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                [self._engine, *arguments], capture_output=True, text=True, check=False, timeout=_PULL_SECONDS
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ImageError(f"{self._engine} {arguments[0]}: {error}", state="nothing was made") from error
        if done.returncode:
            raise ImageError(
                f"{self._engine} {' '.join(arguments[:2])}: {done.stderr.strip()[-500:]}",
                state="nothing was made",
                remedy=f"try it by hand: {self._engine} pull {arguments[-1]}",
            )
        return done.stdout.strip()

    @contextmanager
    def _locked(self, image_id: str) -> Iterator[None]:
        """One at a time, of all processes."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with open(self._folder / f"{image_id}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
