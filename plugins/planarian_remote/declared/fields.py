"""Fields of a declaration's tables that the common reader of configuration doesn't know: templates, tables, lists of
tables, and texts that may hold placeholders and so aren't filled from the environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planarian_remote.configuration import Table
from planarian_remote.declared.templates import roots


def template(table: Table, key: str, given: set[str], default: Any) -> Any:
    """A template that uses no roots but ``given`` ones (``call``, ``before.NAME``)."""
    found = table.raw(key, _NONE if default is None else default)
    if found is _NONE:
        return None
    check(table, key, found, given)
    return found


_NONE: Any = object()


def check(table: Table, key: str, template: Any, given: set[str]) -> None:
    """ConfigurationError for what isn't a template, or uses other roots."""
    try:
        used = roots(template)
    except ValueError as error:
        raise table.wrong(key, f"a template: {error}") from error
    for path in sorted(used):
        if path not in given and path.split(".")[0] not in given:
            known = ", ".join(f"${{{name}}}" for name in sorted(given))
            raise table.wrong(key, f"a template of {known}; ${{{path}}} isn't known there")


def table_of(table: Table, key: str, raw: Any) -> Table:
    """A table within another."""
    if not isinstance(raw, Mapping):
        raise table.wrong(key, "a table")
    return Table(key, raw, f"[{table.source.strip('[]')}.{key}]")


def tables_of(table: Table, key: str) -> list[Table]:
    """A list of tables."""
    raw = table.raw(key, ())
    if isinstance(raw, str | Mapping) or not isinstance(raw, Sequence):
        raise table.wrong(key, "a list of tables")
    return [table_of(table, f"{key}.{number}", entry) for number, entry in enumerate(raw)]


def strings(table: Table, key: str) -> list[str]:
    """As they stand: not filled from the environment, because they may hold placeholders."""
    raw = table.raw(key, ())
    if isinstance(raw, str) or not isinstance(raw, Sequence) or not all(isinstance(value, str) for value in raw):
        raise table.wrong(key, "a list of strings")
    return list(raw)


def beginnings(table: Table) -> tuple[str, ...]:
    """``missing``: how errors begin that say that an object isn't there."""
    found = tuple(strings(table, "missing"))
    if "" in found:
        raise table.wrong("missing", "how errors begin; an empty text would be every error")
    return found


def string_table(table: Table, key: str) -> dict[str, str]:
    """As it stands, like :func:`strings`."""
    raw = table.raw(key, {})
    if not isinstance(raw, Mapping) or not all(isinstance(value, str) for value in raw.values()):
        raise table.wrong(key, "a table of strings")
    return dict(raw)


def equalities(table: Table, key: str) -> dict[str, Any]:
    """Arguments and the values that they must be equal to."""
    raw = table.raw(key, {})
    if not isinstance(raw, Mapping):
        raise table.wrong(key, "a table of arguments and values")
    return dict(raw)
