"""Reading declarations: shipped ones, files of the user's, and ``[services.NAME.tools.TOOL]``. Everything that can be
wrong with one is said here, before a call is made.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from planarian_core.errors import ConfigurationError
from planarian_core.model import CallClass
from planarian_remote.configuration import Table
from planarian_remote.declared import fields
from planarian_remote.declared.declaration import (
    Compare,
    Declaration,
    Example,
    Find,
    Part,
    Read,
    Scratch,
    Step,
    Tool,
    Undo,
)
from planarian_remote.declared.templates import uses

SHIPPED = ("filesystem", "memory")
_CLASSES = ("read-only", "compensable", "pivot", "refused")


def included(name: str, source: str) -> Declaration:
    """The shipped declaration of that name, or the one in a ``.toml`` file.

    Raises:
        ConfigurationError: there is none, or it is wrong.
    """
    if name in SHIPPED:
        return _shipped(name)
    path = Path(name).expanduser()
    if path.suffix != ".toml" or not path.is_absolute():
        raise ConfigurationError(
            f"{source}: include names no declaration: {name!r}",
            remedy=f"one of {', '.join(SHIPPED)}, or the absolute path of a .toml file",
        )
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{source}: {path} can't be read: {error}") from error
    return parse(Table(path.name, raw, f"[{path.name}]"))


@lru_cache
def _shipped(name: str) -> Declaration:
    text = resources.files("planarian_remote.declared").joinpath("shipped", f"{name}.toml").read_text(encoding="utf-8")
    return parse(Table(name, tomllib.loads(text), f"[{name}]"))


def parse(table: Table) -> Declaration:
    """A declaration as a whole file has it."""
    settings = table.mapping("settings")
    found = Declaration(tools(table), settings, scratch(table))
    table.close()
    return found


def tools(table: Table) -> dict[str, Tool]:
    """The tables below ``tools``."""
    return {name: _tool(name, entry) for name, entry in table.tables("tools").items()}


def scratch(table: Table) -> Scratch | None:
    """The table ``scratch``, if there is one."""
    raw = table.raw("scratch", {})
    if not raw:
        return None
    entry = fields.table_of(table, "scratch", raw)
    found = Scratch(
        tuple(fields.strings(entry, "command")),
        fields.string_table(entry, "env"),
        fields.string_table(entry, "settings"),
        tuple(fields.strings(entry, "folders")),
        entry.flag("files", True),
        tuple(fields.strings(entry, "ignore")),
        _reads(entry, "reads", {"settings", "scratch"}),
    )
    entry.close()
    return found


# --- one tool ---


def _tool(name: str, table: Table) -> Tool:
    call_class = CallClass(table.choice("class", _CLASSES, ""))
    reason = table.text("reason", "")
    if call_class is not CallClass.COMPENSABLE:
        defaults = {
            CallClass.READ_ONLY: "declared as reading only",
            CallClass.PIVOT: "declared as irreversible",
            CallClass.REFUSED: "the configuration refuses it",
        }
        approved = table.flag("approve") if call_class is CallClass.PIVOT else False
        table.close()
        return Tool(name, call_class, reason or defaults[call_class], approved=approved)
    finds = tuple(_find(key, entry) for key, entry in table.tables("find").items())
    found = {f"found.{find.name}" for find in finds}
    given = {"call", "settings", *found}
    before = _reads(table, "before", given)
    read = {f"before.{one.name}" for one in before}
    after = _reads(table, "after", given | read | {"result"})
    undo = tuple(_undo(entry, given | read | {"unique"}) for entry in fields.tables_of(table, "undo"))
    made = Tool(
        name,
        call_class,
        reason or "its inverse is declared",
        table.text("not_restored", ""),
        read_only_if=fields.equalities(table, "read_only_if"),
        refuse_if=tuple(map(_refusal, fields.tables_of(table, "refuse_if"))),
        distinct=tuple(_distinct(table, given)),
        finds=finds,
        before=before,
        after=after,
        expect=_expect(table, before, after, given | read),
        undo=undo,
        repeats=table.flag("repeats", not after and not _uses_result(undo)),
        fails_clean=table.choice("on_error", ("unknown", "void"), "unknown") == "void",
        examples=tuple(_example(entry) for entry in fields.tables_of(table, "examples")),
    )
    if not undo:
        raise ConfigurationError(
            f"{table.source} is compensable, but declares no [[undo]]",
            remedy='declare its inverse, or class = "pivot" if there is none',
        )
    _check_conditions(table, made)
    table.close()
    return made


def _distinct(table: Table, given: set[str]) -> list[Any]:
    raw = table.raw("distinct", ())
    if isinstance(raw, str) or not isinstance(raw, Sequence):
        raise table.wrong("distinct", "a list of templates")
    for template in raw:
        fields.check(table, "distinct", template, given)
    return list(raw)


def _find(name: str, table: Table) -> Find:
    given = {"call", "settings"}
    found = Find(
        name,
        table.text("tool"),
        fields.template(table, "candidates", given, {}),
        fields.template(table, "arguments", {*given, "item"}, {}),
        fields.beginnings(table),
        fields.template(table, "otherwise", given, None),
    )
    table.close()
    return found


def _reads(table: Table, key: str, given: set[str]) -> tuple[Read, ...]:
    return tuple(_read(name, entry, given) for name, entry in table.tables(key).items())


def _read(name: str, table: Table, given: set[str]) -> Read:
    found = Read(
        name,
        table.text("tool"),
        fields.template(table, "arguments", given, {}),
        fields.template(table, "given", given, {}),
        fields.template(table, "value", {"result", "given"}, None),
        fields.template(table, "label", given, ""),
        fields.beginnings(table),
        table.text("error", ""),
        tuple(_forbidden(entry) for entry in fields.tables_of(table, "forbidden")),
        {family: _part(entry) for family, entry in table.tables("parts").items()},
        Compare(table.choice("compare", tuple(Compare), Compare.ALWAYS)),
    )
    table.close()
    return found


def _part(table: Table) -> Part:
    table.raw("each")
    found = Part(
        fields.template(table, "each", {"value"}, None),
        fields.template(table, "key", {"item"}, "${item}"),
        table.flag("unique"),
        table.flag("whole"),
    )
    table.close()
    return found


def _forbidden(table: Table) -> tuple[str, str]:
    found = table.text("text"), table.text("reason")
    table.close()
    return found


def _refusal(table: Table) -> tuple[dict[str, Any], str]:
    found = fields.equalities(table, "arguments"), table.text("reason")
    table.close()
    return found


def _undo(table: Table, given: set[str]) -> Undo:
    redo = table.raw("redo", ())
    found = Undo(
        tuple(fields.strings(table, "exists")),
        tuple(fields.strings(table, "absent")),
        _steps(table, "calls", given | {"result"}),
        _steps(table, "redo", given | {"result"}) if redo else None,
        _reads(table, "needs", given),
        _reads(table, "redo_needs", given),
        table.text("refuse", ""),
    )
    if bool(found.steps) == bool(found.refuse):
        raise ConfigurationError(f"{table.source} needs either calls or refuse")
    table.close()
    return found


def _steps(table: Table, key: str, given: set[str]) -> tuple[Step, ...]:
    return tuple(_step(entry, given) for entry in fields.tables_of(table, key))


def _step(table: Table, given: set[str]) -> Step:
    found = Step(table.text("tool"), fields.template(table, "arguments", given, {}), table.text("unless_empty", ""))
    table.close()
    return found


def _example(table: Table) -> Example:
    given = {"settings", "scratch"}
    found = Example(
        fields.template(table, "arguments", given, {}), _steps(table, "setup", given), table.text("name", "an example")
    )
    table.close()
    return found


def _expect(table: Table, before: Sequence[Read], after: Sequence[Read], given: set[str]) -> dict[str, Any]:
    raw = table.raw("expect", {})
    if not isinstance(raw, Mapping):
        raise table.wrong("expect", "a table")
    compared = {read.name for read in before if read.compare is Compare.ALWAYS}
    if raw and (after or raw.keys() != compared):
        raise table.wrong("expect", f"a table with what each compared read finds afterwards: {', '.join(compared)}")
    for name, template in raw.items():
        fields.check(table, f"expect.{name}", template, given)
    return dict(raw)


def _uses_result(undo: Iterable[Undo]) -> bool:
    steps = [step for way in undo for step in (*way.steps, *(way.redo or ()))]
    return any(uses(step.arguments, "result") for step in steps)


def _check_conditions(table: Table, tool: Tool) -> None:
    names = {read.name for read in tool.before}
    for way in tool.undo:
        for name in (*way.exists, *way.absent):
            if name not in names:
                raise table.wrong("undo", f"about reads in before: {', '.join(sorted(names))}; {name!r} is none")
