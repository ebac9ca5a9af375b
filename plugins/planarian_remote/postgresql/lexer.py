"""Words of a SQL statement as PostgreSQL reads them: enough to see what kind of statement it is, and how many.

Nothing is proven by it: the server judges once more. It errs on the side of not recognising.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?:[ \t\n\r\f\v]+|--[^\n\r]*)*
    (?:
      (?P<word>(?![eEbBxXnN]'|[uU]&['"])[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
    | (?P<comment>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*')
    | (?P<hidden>[uU]&['"])
    | (?P<string>(?:[bBxXnN])?'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<dollar>\$(?P<tag>(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?)\$)
    | (?P<number>[0-9][0-9A-Za-z_.]*|\.[0-9][0-9A-Za-z_]*)
    | (?P<mark>.)
    | (?P<end>\Z)
    )
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """``kind``: word, quoted (an identifier in quotes), string, escaped (E'…'), number, or mark. ``text``: a word in
    lower case, what the quotes hold, or the mark. ``depth``: how many parentheses are open.
    """

    kind: str
    text: str
    depth: int
    start: int
    end: int


class NotReadable(ValueError):
    """The text isn't what a statement may look like; the message says why."""


def tokens(statement: str) -> list[Token]:
    """The tokens of a statement, without space and comments.

    Raises:
        NotReadable: something doesn't end, or hides characters.
    """
    found: list[Token] = []
    position = depth = 0
    while position < len(statement):
        match = _TOKEN.match(statement, position)
        if match is None:  # pragma: no cover - "mark" takes anything
            raise NotReadable("a character can't be read")
        kind, text, end = str(match.lastgroup), match[match.lastindex or 0], match.end()
        start = end - len(text)
        if kind == "comment":
            end = _comment_end(statement, end)
        elif kind == "mark":
            if text in "'\"":
                raise NotReadable("a quote doesn't end")
            depth += text in "(["
            found.append(Token(kind, text, depth, start, end))
            depth -= text in ")]"
        elif kind == "hidden":
            raise NotReadable("write characters as they are: U& escapes hide what a statement says")
        elif kind != "end":
            if kind == "dollar":
                kind, (text, end) = "string", _dollar(statement, text, end)
            elif kind == "word":
                text = text.lower()
            elif kind == "quoted":
                text = text[1:-1].replace('""', '"')
            found.append(Token(kind, text, depth, start, end))
        position = end
    return found


def _dollar(statement: str, tag: str, start: int) -> tuple[str, int]:
    end = statement.find(tag, start)
    if end < 0:
        raise NotReadable(f"a {tag} quote doesn't end")
    return statement[start:end], end + len(tag)


def _comment_end(statement: str, position: int) -> int:
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(statement, position):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    raise NotReadable("a comment doesn't end")


def literal(text: str) -> str:
    """A text as a SQL literal that means the same whatever the session's settings are."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
