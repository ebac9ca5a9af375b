"""Differences between two texts, for people: bounded, whatever the files hold."""

from __future__ import annotations

import difflib

from planarian_core.file_tree import FileEntry, FileKind, FileTree

LARGEST = 256 * 1024
"""Bytes of a file that is compared line by line."""
_MOST_LINES = 5000
_MOST_CHARACTERS = 20_000
BINARY = "binary"
TOO_LARGE = "too large to be compared line by line"


def content_of(tree: FileTree, path: str, entry: FileEntry | None) -> bytes | None:
    """The content of a file, a symlink's target, nothing for what isn't there; None where it is too large."""
    if entry is None or entry.kind not in (FileKind.FILE, FileKind.SYMLINK):
        return b""
    if entry.kind is FileKind.SYMLINK:
        return entry.target.encode("utf-8", "surrogateescape")
    if entry.size > LARGEST:
        return None
    content = bytearray()
    for piece in tree.read(path):
        content += piece
        if len(content) > LARGEST:  # it grew
            return None
    return bytes(content)


def unified(before: bytes | None, after: bytes | None, names: tuple[str, str]) -> tuple[str, str]:
    """A unified diff of two contents, and why there is none where there is none."""
    if before is None or after is None:
        return "", TOO_LARGE
    if _is_binary(before) or _is_binary(after):
        return "", BINARY
    old, new = _lines(before), _lines(after)
    if len(old) > _MOST_LINES or len(new) > _MOST_LINES:
        return "", TOO_LARGE
    text, length = [], 0
    for line in difflib.unified_diff(old, new, *names):
        text.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
        length += len(text[-1])
        if length > _MOST_CHARACTERS:
            text.append("… and more\n")
            break
    return "".join(text), ""


def _is_binary(content: bytes) -> bool:
    return b"\0" in content[:8192]


def _lines(content: bytes) -> list[str]:
    pieces = content.decode("utf-8", "replace").split("\n")
    return [f"{piece}\n" for piece in pieces[:-1]] + [piece for piece in pieces[-1:] if piece]
