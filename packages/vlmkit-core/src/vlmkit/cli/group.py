"""Groups of commands that plugins can extend.

Plugins are loaded only for the list of commands, and for a name that the core does not have. For
commands of vlmkit in other distributions, only those distributions are loaded. A broken plugin does
not break the command line.
"""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from vlmkit.errors import PluginError, PluginUnavailable, VlmkitError
from vlmkit.kit.install_command import install_command, is_installed
from vlmkit.plugins.names import OWN_PLUGINS, OWNERS_OF_COMMANDS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from vlmkit.plugins.loader import Plugins
    from vlmkit.plugins.provider import Provider
    from vlmkit.plugins.registry import Registry


SYNONYMS = {
    "add": ("add", "pull", "new"),
    "create": ("add", "new"),
    "delete": ("rm", "revoke"),
    "describe": ("info",),
    "download": ("pull",),
    "get": ("pull",),
    "inspect": ("info",),
    "ls": ("list",),
    "new": ("new", "add"),
    "remove": ("rm", "revoke"),
    "run": ("ask", "chat"),
    "show": ("info", "show"),
    "start": ("serve",),
    "uninstall": ("rm",),
}
"""Names of commands in other programs, with the corresponding names here."""


@dataclass(frozen=True)
class _PluginCommands:
    """The commands of plugins, and the errors of plugins that could not be loaded."""

    plugins: "Plugins"
    problems: tuple[str, ...] = ()

    @property
    def commands(self) -> "Registry[click.Command]":
        """The registry of commands."""
        return self.plugins.commands


class CommandGroup(click.Group):
    """A group of commands that plugins can extend.

    A plugin's command in a subgroup has two words as its name, the group's name first.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; does not build those of plugins."""
        prefix, commands = _prefix(ctx), _load_commands().commands
        of_plugins = {
            commands.key(each).removeprefix(prefix): each
            for each in commands
            if each.name.startswith(prefix) and " " not in each.name.removeprefix(prefix)
        }
        names = [*self.commands, *of_plugins]
        width = formatter.width - 6 - max(map(len, names), default=0)  # as in click
        own = {
            name: command.get_short_help_str(width)
            for name, command in self.commands.items()
            if not command.hidden
        }
        own |= {name: each.description for name, each in of_plugins.items() if _is_own(each)}
        others = {name: each.description for name, each in of_plugins.items() if not _is_own(each)}
        for title, rows in (("Commands", own), ("Commands of plugins", others)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(sorted(rows.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, built if it is a plugin's."""
        name = args[0]
        if name in self.commands or name.startswith("-"):
            return super().resolve_command(ctx, args)
        full = _prefix(ctx) + name
        loaded = _load_owner(full) or _load_commands()
        is_found = loaded.commands.offers(full)
        if not is_found and ctx.resilient_parsing:  # a shell asks for completions
            return None, None, args[1:]
        if not is_found:
            raise _unknown(name, full, [*self.commands], loaded, ctx)
        return name, _built(full, loaded.plugins), args[1:]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return the completions, including commands of vlmkit in other distributions."""
        from click.shell_completion import CompletionItem

        prefix = _prefix(ctx)
        added = [
            CompletionItem(name.removeprefix(prefix))
            for name, owner in OWNERS_OF_COMMANDS.items()
            if owner in OWN_PLUGINS and name.startswith(prefix + incomplete) and is_installed(owner)
        ]
        added = [item for item in added if " " not in item.value]
        return [*super().shell_complete(ctx, incomplete), *added]


def _prefix(context: click.Context) -> str:
    """Return the prefix of a group's commands in the registry."""
    return "" if context.parent is None else f"{context.info_name} "


def _is_own(offered: "Provider[click.Command]") -> bool:
    return offered.plugin in OWN_PLUGINS


def _load_owner(command: str) -> _PluginCommands | None:
    """Load only the distribution that owns a command of vlmkit; None if it has no such command."""
    from vlmkit.cli.streams import reserved_stdout
    from vlmkit.config.plugin_loading import load_plugins
    from vlmkit.settings.plugins import PluginSettings

    if OWNERS_OF_COMMANDS.get(command) not in OWN_PLUGINS:
        return None
    with reserved_stdout():
        loaded = _PluginCommands(load_plugins(PluginSettings(only=())))
    return loaded if loaded.commands.offers(command) else None


def _load_commands() -> _PluginCommands:
    """Load all plugins; only those of vlmkit if the config of plugins is invalid."""
    from vlmkit.cli.streams import reserved_stdout
    from vlmkit.config import read_layers
    from vlmkit.config.plugin_loading import load_plugins
    from vlmkit.config.providers import described
    from vlmkit.settings.plugins import PluginSettings

    problems = []
    with reserved_stdout():
        try:
            plugins = load_plugins(read_layers().plugins(), diagnoses=True)
        except VlmkitError as error:
            plugins = load_plugins(PluginSettings(only=()))
            problems.append(described(error))
    problems += [f"{source}: {described(error)}" for source, error in plugins.broken.items()]
    return _PluginCommands(plugins, tuple(problems))


def _built(name: str, plugins: "Plugins") -> click.Command:
    from vlmkit.plugins.registry import BuildContext

    commands: Registry[click.Command] = plugins.commands
    command = commands.build(name, {}, BuildContext(registries=plugins.by_kind))
    if not isinstance(command, click.Command):
        raise PluginError(
            f"command {name!r} from {commands.get(name).plugin!r} was built as "
            f"{type(command).__name__!r}, not as a click.Command"
        )
    return command


def _unknown(
    name: str, full: str, known: list[str], loaded: _PluginCommands, context: click.Context
) -> click.UsageError:
    """Return the error for an unknown command, with a suggestion and errors of broken plugins.

    Raises:
        PluginUnavailable: the command belongs to a distribution of vlmkit that does not provide it.
    """
    if owner := OWNERS_OF_COMMANDS.get(full):
        raise _missing(full, owner, loaded)
    prefix, commands = _prefix(context), loaded.commands
    names = [commands.key(each) for each in commands]
    known += [each.removeprefix(prefix) for each in names if each.startswith(prefix)]
    synonyms = [each for each in SYNONYMS.get(name, ()) if each in known]
    near = synonyms or difflib.get_close_matches(name, known, n=1)
    text = f"no such command {name!r}" + (f". Did you mean {near[0]!r}?" if near else "")
    if loaded.problems:
        text += f"; could not be loaded: {'; '.join(loaded.problems)}"
    return click.UsageError(text, context)


def _missing(command: str, owner: str, loaded: _PluginCommands) -> PluginUnavailable:
    """Return the error for a command of vlmkit that its distribution does not provide."""
    from vlmkit.config.providers import described

    subject = f"`vlmkit {command}` is a command of {owner}, which"
    found = next((plugin for plugin in loaded.plugins.found if plugin.source == owner), None)
    if found is None:
        return PluginUnavailable(f"{subject} is not installed", hint=install_command(owner))
    if found.blocked:
        return PluginUnavailable(f"{subject} VLMKIT_BLOCK excludes")
    hint = found.error.hint if isinstance(found.error, VlmkitError) else ""
    reason = described(found.error) if found.error else "it does not offer the command"
    return PluginUnavailable(f"{subject} could not be loaded: {reason}", hint=hint)


@click.command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(context: click.Context, *, names: tuple[str, ...]) -> None:
    """Show the help of vlmkit, or of a COMMAND."""
    shown = context.find_root()
    for name in names:
        group = shown.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{shown.command_path!r} has no commands", shown)
        _, command, _ = group.resolve_command(shown, [name])
        if command is None:
            raise click.UsageError(f"no such command {name!r}", shown)
        shown = click.Context(command, info_name=name, parent=shown)
    click.echo(shown.get_help())
