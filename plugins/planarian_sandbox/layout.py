"""How a namespace sandbox's layer is laid out, and what the sandbox sees of the host through it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from planarian_core.errors import SandboxError
from planarian_core.mounts import mounts

RUNTIME = "/run/planarian"
CALLS = f"{RUNTIME}/calls"

FRESH = {"tmp": 0o1777, "run": 0o755, "dev": 0o755, "proc": 0o555, "sys": 0o555}
FRESH_ROOTLESS = ("tmp", "run", "dev", "proc", "sys", "root", "mnt", "lost+found")
"""Top-level directories that are the sandbox's own; as root with their modes."""


@dataclass(frozen=True)
class Layout:
    """How a layer is laid out. ``workspace``: the path that has an overlay of its own, empty when none has.

    ``version``: since 2 overlays keep no access times. An image of the processes can only be restored on overlays that
    are mounted as those were that it was taken on, so a layer of before goes on as it began.
    """

    rootless: bool
    workspace: str = ""
    version: int = 2

    @property
    def access_times(self) -> bool:
        return self.version < 2

    @property
    def exclude(self) -> tuple[str, ...]:
        own = ("workspace/work/work",) if self.workspace else ()
        return (("work/*/work",) if self.rootless else ("work/work",)) + own

    def save(self, layer: str) -> None:
        Path(layer, "layout.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, layer: str) -> Layout:
        """The layout of a prepared layer; SandboxError when it has none."""
        try:
            data = json.loads(Path(layer, "layout.json").read_text(encoding="utf-8"))
            layout = cls(bool(data["rootless"]), str(data["workspace"]), int(data.get("version", 1)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SandboxError(
                f"{layer} is not a prepared layer: {error}.",
                code="sandbox-layer",
                remedy="create the sandbox again, or roll back to a statepoint",
            ) from error
        if layout.rootless != (os.geteuid() != 0):
            kind = "an ordinary user" if layout.rootless else "root"
            raise SandboxError(f"This sandbox was made by {kind} and only {kind} can run it.", code="sandbox-owner")
        return layout


def refuse_rootless(layout: Layout) -> Layout:
    """The layout, for a restore from an image; SandboxError where an ordinary user's sandbox has it."""
    if layout.rootless:
        raise SandboxError("A rootless sandbox can't be restored from an image.", code="sandbox-rootless")
    return layout


def is_fresh(path: str, rootless: bool) -> bool:
    """Whether the sandbox sees its own directory at the top of ``path``, not the host's."""
    return path.split("/")[1] in (FRESH_ROOTLESS if rootless else FRESH)


def top_directories() -> tuple[str, ...]:
    """Rootless: the directories of ``/`` that can be the lower side of an overlay, having no mount below them."""
    points = {mount.point for mount in mounts()}
    return tuple(
        name
        for name in sorted(os.listdir("/"))
        if name not in FRESH_ROOTLESS
        and os.path.isdir(f"/{name}")
        and not os.path.islink(f"/{name}")
        and os.access(f"/{name}", os.R_OK | os.X_OK)
        and not any(point.startswith(f"/{name}/") for point in points)
    )


def inside_python(root: str = "") -> str:
    """The Python that is there inside as well: the system's, not one of a virtual environment or a home.

    Args:
        root: a root file system other than the host's. Nothing is run or read of it, and links aren't followed.
    """
    for path in ("/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3"):
        if os.path.lexists(f"{root}{path}") if root else os.access(path, os.X_OK):
            return path
    raise SandboxError(
        f"There is no /usr/bin/python3 {f'in {root}' if root else 'on this host'}, which the sandbox's init needs.",
        code="sandbox-python",
        remedy="install the system's python3 there (apt-get install python3)",
    )
