"""Reading a psql script: its statements one by one, as psql would send them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_DOLLAR = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?\$")
_VARIABLE = re.compile(r""":(?:'(\w+)'|"(\w+)"|(\w+))""")
_WORD = re.compile(r"[A-Za-z_]\w*")
_COPY_IN = re.compile(r"copy\b.*\bfrom\s+stdin\b", re.IGNORECASE | re.DOTALL)
_ROUTINE = re.compile(r"create\s+(or\s+replace\s+)?(function|procedure)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Statement:
    """One statement without its ``;``. ``data``: lines that follow a COPY FROM STDIN. ``ending``: the psql command that
    ended it, such as ``gset``, with its ``argument``; empty for a semicolon.
    """

    text: str
    line: int
    data: str | None = None
    ending: str = ""
    argument: str = ""


class Script:
    """A script and the variables of the psql that reads it. ``variables`` may be changed between statements."""

    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        self._text = self.text = text
        self._at = 0
        self.variables = dict(variables)
        self._branches: list[bool | None] = []  # of \if: taken, not yet taken, or None: an earlier one was

    def __iter__(self) -> Iterator[Statement]:
        while self._at < len(self._text):
            statement = self._next()
            if statement is not None and all(self._branches):
                yield statement

    # --- one statement ---

    def _next(self) -> Statement | None:
        """Read on to the end of a statement or psql command; None where it was nothing to send."""
        out: list[str] = []
        begun, depth, atomic = -1, 0, 0
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "\\" and self._text[self._at + 1 : self._at + 2] == ";":
                out.append(";")
                self._at += 2
                continue
            if character == "\\":
                return self._command("".join(out), begun)
            if character == ";" and depth <= 0 and atomic <= 0:
                self._at += 1
                return self._ended("".join(out), begun)
            if begun < 0 and not character.isspace() and not self._text.startswith(("--", "/*"), self._at):
                begun = self._at
            depth += (character == "(") - (character == ")")
            if word := _WORD.match(self._text, self._at):
                if _ROUTINE.match("".join(out).lstrip()):
                    atomic += self._nesting(word[0].lower(), atomic)
                piece = self._take(word.end())
                # E'…' has escapes, and no variable is looked for in it
                if piece.lower() == "e" and self._text[self._at : self._at + 1] == "'":
                    piece += self._quoted("'", escapes=True)
                out.append(piece)
                continue
            out.append(self._piece(character))
        return self._ended("".join(out), begun) if begun >= 0 else None

    def _nesting(self, word: str, atomic: int) -> int:
        """How BEGIN ATOMIC … END, and CASE … END in it, nest: their semicolons end nothing."""
        if word == "begin" and re.match(r"begin\s+atomic\b", self._text[self._at :], re.IGNORECASE):
            return 1
        if atomic and word in ("case", "end"):
            return 1 if word == "case" else -1
        return 0

    def _piece(self, character: str) -> str:
        text, at = self._text, self._at
        if text.startswith("--", at):
            return self._take(text.find("\n", at) if "\n" in text[at:] else len(text)) and ""
        if text.startswith("/*", at):
            return self._take(_end_of_comment(text, at)) and " "
        if character in "'\"":
            return self._quoted(character)
        if character == "$" and not (at and (text[at - 1].isalnum() or text[at - 1] in "_$")):
            dollar = _DOLLAR.match(text, at)
            if dollar:
                end = text.find(dollar[0], dollar.end())
                return self._take(len(text) if end < 0 else end + len(dollar[0]))
        if character == ":" and text[at + 1 : at + 2] == ":":
            return self._take(at + 2)
        if character == ":" and (variable := _VARIABLE.match(text, at)):
            return self._variable(variable)
        return self._take(at + 1)

    def _quoted(self, quote: str, escapes: bool = False) -> str:
        at = self._at + 1
        while at < len(self._text) and self._text[at] != quote:
            at += 2 if escapes and self._text[at] == "\\" else 1
        return self._take(at + 1)  # a doubled quote is two of them, one after the other

    def _variable(self, match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[3]
        if name not in self.variables:
            return self._take(match.end())
        self._at = match.end()
        value = self.variables[name]
        if match[1]:
            return "'" + value.replace("'", "''") + "'"
        return '"' + value.replace('"', '""') + '"' if match[2] else value

    def _take(self, to: int) -> str:
        taken, self._at = self._text[self._at : to], to
        return taken

    def _ended(self, text: str, begun: int, ending: str = "", argument: str = "") -> Statement | None:
        text = text.strip()
        if not text:
            return None
        line = self._text.count("\n", 0, max(begun, 0)) + 1
        data = None
        if all(self._branches) and _COPY_IN.match(text):
            self._take(self._text.find("\n", self._at) + 1)
            end = re.compile(r"^\\\.$", re.MULTILINE).search(self._text, self._at)
            data = self._take(end.start() if end else len(self._text))
            self._take(self._at + 2)
        return Statement(text, line, data, ending, argument)

    # --- psql's own commands ---

    def _command(self, pending: str, begun: int) -> Statement | None:
        end = self._text.find("\n", self._at)
        whole = self._take(len(self._text) if end < 0 else end)
        name, _, rest = whole[1:].partition(" ")
        if name in ("g", "gx", "gset", "gexec", "gdesc", "crosstabview"):
            return self._ended(pending, begun, name, rest.strip())
        words = [self._filled(word) for word in re.findall(r"'[^']*'|\S+", rest)]
        self._obey(name, words)
        if name == "r" or not pending.strip():
            return None
        rest_of_it = self._next()  # a command in the middle of a statement
        return None if rest_of_it is None else Statement(pending + " " + rest_of_it.text, rest_of_it.line)

    def _obey(self, name: str, words: list[str]) -> None:
        if name == "if":
            self._branches.append(_is_true(words))
        elif name in ("elif", "else") and self._branches:
            if self._branches[-1] is False:
                self._branches[-1] = name == "else" or _is_true(words)
            else:
                self._branches[-1] = None
        elif name == "endif" and self._branches:
            self._branches.pop()
        elif not all(self._branches):
            return
        elif name == "set" and words:
            self.variables[words[0]] = "".join(words[1:])
        elif name == "unset" and words:
            self.variables.pop(words[0], None)
        elif name == "getenv" and len(words) > 1:
            self.variables[words[0]] = self.variables.get(words[1], "")
        elif name in ("q", "quit"):
            self._at = len(self._text)

    def _filled(self, word: str) -> str:
        if word.startswith("'"):
            return word.strip("'")
        return _VARIABLE.sub(lambda m: self.variables.get(m[1] or m[2] or m[3], m[0]), word)


def _is_true(words: list[str]) -> bool:
    return bool(words) and words[0].lower() in ("t", "true", "1", "on", "yes")


def _end_of_comment(text: str, at: int) -> int:
    """Comments nest."""
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)
