"""Commands that plugins add through ``planarian_commands``; loaded only when a name isn't one of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planarian_core.hookspecs import CommandGroup
    from planarian_core.plugin_manager import PluginManager


@dataclass
class PluginCommands:
    """Callbacks by name, and what is wrong with others."""

    callbacks: dict[str, Callable[..., Any] | CommandGroup] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def collect(plugins: PluginManager, own: Iterable[str]) -> PluginCommands:
    """Ask the plugins. A name that is taken, by us or by two plugins, is reported and offered by none of them."""
    found = PluginCommands()
    taken = set(own)
    twice: set[str] = set()
    try:
        results = plugins.hook.planarian_commands()
    except Exception as error:  # foreign code
        found.problems.append(f"a plugin could not offer its commands: {type(error).__name__}: {error}")
        return found
    for commands in results:
        for name, callback in commands.items():
            if name in taken:
                found.problems.append(f"a plugin offers a command {name!r}, which planarian has itself")
            elif name in found.callbacks:
                twice.add(name)
            else:
                found.callbacks[name] = callback
    for name in sorted(twice):
        del found.callbacks[name]
        found.problems.append(f"two plugins offer a command {name!r}: uninstall one of them")
    return found


def load(own: Iterable[str]) -> PluginCommands:
    """The commands of the installed plugins; whatever is wrong with them is a problem in the result."""
    from planarian_core.config import default_home
    from planarian_core.plugin_manager import PluginManager

    try:
        plugins = PluginManager(default_home())
    except Exception as error:  # foreign code, or two backends of one name; our own commands must still work
        return PluginCommands(problems=[f"plugins can't be loaded: {error}"])
    found = collect(plugins, own)
    found.problems += [f"the plugin {broken.name} can't be loaded: {broken.error}" for broken in plugins.broken]
    return found


def build(name: str, offered: Callable[..., Any] | CommandGroup, **settings: Any) -> Any:
    """The command, or the group of commands, as Typer makes it; ``settings`` are those of a command's context."""
    import typer

    from planarian_core.hookspecs import CommandGroup

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    if not isinstance(offered, CommandGroup):
        app.command(name, context_settings=settings)(offered)
        return typer.main.get_command(app)
    app.callback(help=offered.summary, no_args_is_help=True)(_no_options)
    for command, callback in offered.commands.items():
        app.command(command)(callback)
    group = typer.main.get_command(app)
    group.name = name
    return group


def _no_options() -> None:
    """Makes a group of even a single command."""
