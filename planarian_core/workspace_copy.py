"""The private copy of a workspace that an isolated sandbox stands on.

Were the host's own workspace below the sandbox, a user who goes on working in it would change every statepoint, of
which only what the sandbox itself changed is captured. So the workspace is copied once, when the sandbox is made:
reflinked where the file system has that, and shared, unchanged, by the sandbox and all its forks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from planarian_core.errors import SandboxError
from planarian_core.model import Domain, Gap

_UNREADABLE = re.compile(r"cp: cannot (?:open|access|stat) .(?P<path>.+?).(?: for reading)?: Permission denied$")
_MOST_GAPS = 100


def copy_workspace(workspace: Path, copy: Path) -> tuple[Gap, ...]:
    """Copy a directory tree with all that ``cp --archive`` keeps; durable when it returns.

    Returns the files that this user may not read, which the sandbox does without.

    Raises:
        SandboxError: the disk is full, or the copy failed otherwise; nothing of it remains.
    """
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = ["cp", "--archive", "--reflink=auto", "--no-target-directory", "--", str(workspace), str(copy)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"})
        lines = os.fsdecode(done.stderr).splitlines()
        unreadable = [match["path"] for line in lines if (match := _UNREADABLE.match(line))]
        if done.returncode != 0 and len(unreadable) < len(lines):
            other = [line for line in lines if not _UNREADABLE.match(line)]
            raise _failed(workspace, "; ".join(other[:3]))
        subprocess.run(["sync", "--file-system", str(copy)], capture_output=True, check=True)
    except BaseException as error:
        remove_copy(copy)
        if isinstance(error, OSError | subprocess.CalledProcessError):
            raise _failed(workspace, str(error)) from error
        raise
    reason = "not readable by this user: it isn't in the sandbox"
    gaps = [Gap(Domain.FILES, path, reason) for path in unreadable[:_MOST_GAPS]]
    if len(unreadable) > _MOST_GAPS:
        gaps.append(Gap(Domain.FILES, f"{len(unreadable) - _MOST_GAPS} more files", reason))
    return tuple(gaps)


def _failed(workspace: Path, why: str) -> SandboxError:
    full = "No space left" in why
    return SandboxError(
        f"the workspace {workspace} can't be copied: {why}",
        code="workspace-copy",
        state="no sandbox was made",
        remedy="free some space, or set PLANARIAN_HOME to a larger file system" if full else "mend the cause",
    )


def remove_copy(copy: Path) -> None:
    """Remove a copy. Idempotent."""
    if copy.exists():
        # An ordinary user can't empty directories that came without permission to write.
        subprocess.run(["chmod", "--recursive", "u+rwX", "--", str(copy)], capture_output=True, check=False)
        shutil.rmtree(copy, ignore_errors=True)
