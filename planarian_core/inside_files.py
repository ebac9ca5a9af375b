"""Text files as an agent's tools read, write and change them: by commands inside the sandbox, never on the host's side.

Only a POSIX shell and the usual tools are needed inside, as any image has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planarian_core.context import clip
from planarian_core.errors import SandboxError

if TYPE_CHECKING:
    from planarian_core.sandbox import Sandbox

_LARGEST = 8 * 1024 * 1024
_SECONDS = 60.0
_READ = 'sed -n "$2,$3p;$3q" -- "$1"'
_WHOLE = 'test "$(wc -c < "$1")" -le "$2" || { echo "it is larger than $2 bytes" >&2; exit 1; }; cat -- "$1"'
_WRITE = 'case $1 in */*) mkdir -p -- "${1%/*}" ;; esac && cat > "$1"'


@dataclass(frozen=True)
class Lines:
    """Some lines of a file; ``first`` is the number of the first one."""

    first: int
    lines: tuple[str, ...]

    def numbered(self) -> str:
        """Each line behind its number."""
        return "\n".join(f"{number}\t{line}" for number, line in enumerate(self.lines, self.first))

    def page(self, limit: int, further: str) -> str:
        """The same, as far as it fits into ``limit`` characters, and where to go on: the argument ``further``."""
        shown: list[str] = []
        used = 0
        for number, line in enumerate(self.lines, self.first):
            row = f"{number}\t{clip(line, limit // 2)}"
            used += len(row) + 1
            if used > limit:
                shown.append(f"(cut here: read on with {further}={number})")
                break
            shown.append(row)
        return "\n".join(shown)


def read_lines(sandbox: Sandbox, path: str, first: int = 1, count: int = 500) -> Lines:
    """Lines of a text file.

    Args:
        path: relative to the workspace, or absolute as the sandbox sees it.
        first: from 1.

    Raises:
        SandboxError: ``file-unreadable``.
    """
    first, count = max(first, 1), max(count, 1)
    text = _run(sandbox, _READ, path, str(first), str(first + count - 1), doing="read")
    return Lines(first, tuple(text.splitlines()))


def write_text(sandbox: Sandbox, path: str, text: str) -> None:
    """Write a file, whole; directories that are missing are made.

    Raises:
        SandboxError: ``file-unwritable``.
    """
    _run(sandbox, _WRITE, path, stdin=text, doing="write")


def replace_text(sandbox: Sandbox, path: str, old: str, new: str) -> None:
    """Replace a text that occurs exactly once in a file.

    Raises:
        SandboxError: ``text-not-unique``: it doesn't, nothing was changed; ``file-unreadable``, ``file-unwritable``.
    """
    text = _run(sandbox, _WHOLE, path, str(_LARGEST), doing="read")
    if "\ufffd" in text:  # what isn't UTF-8 would be written back as something else
        raise SandboxError(f"{path} is no UTF-8 text", code="file-unreadable", remedy="change it by a command")
    found = text.count(old) if old else 0
    if found != 1:
        raise SandboxError(
            f"the text to replace occurs {found} times in {path}",
            code="text-not-unique",
            state="nothing was changed",
            remedy="give more of the text around it, so that it occurs once" if found else "read the file again",
        )
    _run(sandbox, _WRITE, path, stdin=text.replace(old, new), doing="write")


def _run(sandbox: Sandbox, script: str, path: str, *arguments: str, stdin: str = "", doing: str) -> str:
    if not path or "\0" in path:
        raise SandboxError(f"{path!r} is no path", code=f"file-un{_CODE[doing]}")
    if path.startswith("-"):
        path = f"./{path}"
    argv = ["sh", "-c", script, "sh", path, *arguments]
    done = sandbox.run(argv, stdin=stdin, timeout=_SECONDS, output_limit=_LARGEST + 1)
    if done.exit_code:
        why = done.stderr.strip().rpartition(": ")[2] or f"exit code {done.exit_code}"
        raise SandboxError(f"{path} can't be {_DONE[doing]}: {why}", code=f"file-un{_CODE[doing]}")
    return done.stdout


_DONE = {"read": "read", "write": "written"}
_CODE = {"read": "readable", "write": "writable"}
