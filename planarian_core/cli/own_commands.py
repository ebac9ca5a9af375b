"""Planarian's own commands and where they are. One is loaded when it is named: the others would take longer than it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from planarian_core.cli import plugin_commands

_WHERE = {  # in the order in which they are needed: the help keeps it
    "doctor": "doctor:doctor",
    "demo": "demo:demo",
    "new": "sandboxes:new",
    "list": "sandboxes:list_",
    "run": "running:run",
    "shell": "shell:shell",
    "snapshot": "primitives:snapshot",
    "log": "log:log",
    "show": "show:show",
    "diff": "diff:diff",
    "rollback": "primitives:rollback",
    "restore": "restore:restore",
    "fork": "primitives:fork",
    "promote": "promote:promote",
    "apply": "apply:apply",
    "outcome": "evidence:outcome",
    "ledger": "evidence:ledger",
    "effects": "remote:effects",
    "approve": "remote:approve",
    "drill": "drill:drill",
    "hold": "reclaim:hold",
    "prune": "reclaim:prune",
    "policy": "sandboxes:policy",
    "export": "bundles:export",
    "import": "bundles:import_",
    "stop": "sandboxes:stop",
    "attach": "attach:attach",
    "recover": "doctor:recover",
    "rm": "sandboxes:rm",
}


class OwnCommands(Mapping[str, Any]):
    """The commands by name, as Typer makes them."""

    def __getitem__(self, name: str) -> Any:
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_WHERE)

    def __len__(self) -> int:
        return len(_WHERE)


@cache
def _made(name: str) -> Any:
    module, _, function = _WHERE[name].partition(":")
    callback = getattr(import_module(f"planarian_core.cli.{module}"), function)
    # What follows the command of ``run`` is that command's own, with or without ``--``.
    return plugin_commands.build(name, callback, allow_interspersed_args=name != "run")
