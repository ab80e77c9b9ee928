"""The list of commands: those that come with vlmkit, and those of plugins.

Plugins are loaded only where a command may be theirs: for the list, and for a name that is none of
ours. What is wrong with a plugin never keeps the command line from working.
"""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from vlmkit.errors import PluginError, VlmkitError

if TYPE_CHECKING:
    from vlmkit.plugins.loader import Plugins
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
"""What people call commands elsewhere, and how these may be called here."""


@dataclass(frozen=True)
class _Offer:
    """The commands of plugins, and what kept others from being among them."""

    plugins: "Plugins"
    problems: tuple[str, ...]

    @property
    def commands(self) -> "Registry[click.Command]":
        """What plugins offer."""
        return self.plugins.commands


class Subcommands(click.Group):
    """A group that names the nearest command where one is misspelt."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name."""
        is_known = args[0] in self.commands or args[0].startswith("-")
        if is_known or ctx.resilient_parsing:  # a shell asks how the line may go on
            return super().resolve_command(ctx, args)
        raise _unknown(args[0], [*self.commands], (), ctx)


class CommandGroup(click.Group):
    """A group to which plugins add commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; those of plugins are not built for it."""
        super().format_commands(ctx, formatter)
        commands = _offer().commands
        rows = [(commands.key(offered), offered.description) for offered in commands]
        if rows:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, built if it is a plugin's."""
        name = args[0]
        if name in self.commands or name.startswith("-"):
            return super().resolve_command(ctx, args)
        offer = _offer()
        is_offered = offer.commands.offers(name)
        if not is_offered and ctx.resilient_parsing:  # a shell asks how the line may go on
            return None, None, args[1:]
        if not is_offered:
            names = map(offer.commands.key, offer.commands)
            raise _unknown(name, [*self.commands, *names], offer.problems, ctx)
        return name, _built(name, offer.plugins), args[1:]


def _offer() -> _Offer:
    """Load the plugins, or none but the built-in ones where the config cannot be read."""
    from vlmkit.assembly import load_plugins
    from vlmkit.cli.streams import apart
    from vlmkit.config import Config, read_config
    from vlmkit.config.providers import described
    from vlmkit.settings.plugins import PluginSettings

    problems = []
    with apart():
        try:
            plugins = load_plugins(read_config().config, diagnoses=True)
        except VlmkitError as error:
            plugins = load_plugins(Config(plugins=PluginSettings(only=_listed())))
            problems.append(described(error))
    problems += [f"{source}: {described(error)}" for source, error in plugins.broken.items()]
    return _Offer(plugins, tuple(problems))


def _listed() -> tuple[str, ...] | None:
    """Return the distributions that may be loaded; none where nobody can tell."""
    from vlmkit.config import read_config

    try:
        listed = read_config().config.plugins.only
    except VlmkitError:
        return ()
    return None if listed is None else ()


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
    name: str, known: list[str], problems: tuple[str, ...], context: click.Context
) -> click.UsageError:
    """Return click's words for a command that nobody has, with what may be the reason."""
    meant = [each for each in SYNONYMS.get(name, ()) if each in known]
    near = meant or difflib.get_close_matches(name, known, n=1)
    text = f"no such command {name!r}" + (f". Did you mean {near[0]!r}?" if near else "")
    if problems:
        text += f"; could not be loaded: {'; '.join(problems)}"
    return click.UsageError(text, context)


@click.command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(context: click.Context, *, names: tuple[str, ...]) -> None:
    """Show what vlmkit does, or a COMMAND of it."""
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
