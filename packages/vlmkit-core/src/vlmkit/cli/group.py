"""The list of commands: those of the core, and those of plugins.

Plugins are loaded only where a command may be theirs: for the list, and for a name that the core
does not have. Vlmkit's own commands that other distributions have are found without loading any
other plugin. A broken plugin never keeps the command line from working.
"""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from vlmkit.errors import PluginError, PluginUnavailable, VlmkitError
from vlmkit.kit.install_command import install_command, is_installed
from vlmkit.plugins.names import OWN_PLUGINS, OWNERS_OF_COMMANDS

if TYPE_CHECKING:
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
"""What people call commands elsewhere, and how these may be called here."""


@dataclass(frozen=True)
class _Offer:
    """The commands of plugins, and what kept others from being among them."""

    plugins: "Plugins"
    problems: tuple[str, ...] = ()

    @property
    def commands(self) -> "Registry[click.Command]":
        """What plugins offer."""
        return self.plugins.commands


class CommandGroup(click.Group):
    """A group to which plugins add commands.

    A command of one of the groups inside has two words as its name, that of the group first.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; those of plugins are not built for it."""
        prefix, commands = _prefix(ctx), _offer().commands
        offered = {
            commands.key(each).removeprefix(prefix): each
            for each in commands
            if each.name.startswith(prefix) and " " not in each.name.removeprefix(prefix)
        }
        names = [*self.commands, *offered]
        width = formatter.width - 6 - max(map(len, names), default=0)  # as click has it
        own = {
            name: command.get_short_help_str(width)
            for name, command in self.commands.items()
            if not command.hidden
        }
        own |= {name: each.description for name, each in offered.items() if _is_own(each)}
        others = {name: each.description for name, each in offered.items() if not _is_own(each)}
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
        offer = _owner(full) or _offer()
        is_offered = offer.commands.offers(full)
        if not is_offered and ctx.resilient_parsing:  # a shell asks how the line may go on
            return None, None, args[1:]
        if not is_offered:
            raise _unknown(name, full, [*self.commands], offer, ctx)
        return name, _built(full, offer.plugins), args[1:]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may follow: also the commands of vlmkit's own that plugins have."""
        prefix = _prefix(ctx)
        added = [
            CompletionItem(name.removeprefix(prefix))
            for name, owner in OWNERS_OF_COMMANDS.items()
            if owner in OWN_PLUGINS and name.startswith(prefix + incomplete) and is_installed(owner)
        ]
        added = [item for item in added if " " not in item.value]
        return [*super().shell_complete(ctx, incomplete), *added]


def _prefix(context: click.Context) -> str:
    """Return what the names of a group's commands begin with among those of plugins."""
    return "" if context.parent is None else f"{context.info_name} "


def _is_own(offered: "Provider[click.Command]") -> bool:
    return offered.plugin in OWN_PLUGINS


def _owner(command: str) -> _Offer | None:
    """Load the one plugin that has a command of vlmkit's own; None where that does not have it."""
    from vlmkit.assembly.load import load_plugins
    from vlmkit.cli.streams import apart
    from vlmkit.settings.plugins import PluginSettings

    if OWNERS_OF_COMMANDS.get(command) not in OWN_PLUGINS:
        return None
    with apart():
        offer = _Offer(load_plugins(PluginSettings(only=())))
    return offer if offer.commands.offers(command) else None


def _offer() -> _Offer:
    """Load the plugins, or none but vlmkit's own where the config does not say which."""
    from vlmkit.assembly.load import load_plugins
    from vlmkit.cli.streams import apart
    from vlmkit.config import read_layers
    from vlmkit.config.providers import described
    from vlmkit.settings.plugins import PluginSettings

    problems = []
    with apart():
        try:
            plugins = load_plugins(read_layers().plugins(), diagnoses=True)
        except VlmkitError as error:
            plugins = load_plugins(PluginSettings(only=()))
            problems.append(described(error))
    problems += [f"{source}: {described(error)}" for source, error in plugins.broken.items()]
    return _Offer(plugins, tuple(problems))


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
    name: str, full: str, known: list[str], offer: _Offer, context: click.Context
) -> click.UsageError:
    """Return click's words for a command that nobody has, with what may be the reason.

    Raises:
        PluginUnavailable: it is one of vlmkit's own, of a distribution that does not offer it.
    """
    if owner := OWNERS_OF_COMMANDS.get(full):
        raise _missing(full, owner, offer)
    prefix, commands = _prefix(context), offer.commands
    names = [commands.key(each) for each in commands]
    known += [each.removeprefix(prefix) for each in names if each.startswith(prefix)]
    meant = [each for each in SYNONYMS.get(name, ()) if each in known]
    near = meant or difflib.get_close_matches(name, known, n=1)
    text = f"no such command {name!r}" + (f". Did you mean {near[0]!r}?" if near else "")
    if offer.problems:
        text += f"; could not be loaded: {'; '.join(offer.problems)}"
    return click.UsageError(text, context)


def _missing(command: str, owner: str, offer: _Offer) -> PluginUnavailable:
    """Return why a command of vlmkit's own cannot be had from the distribution that has it."""
    from vlmkit.config.providers import described

    subject = f"`vlmkit {command}` is a command of {owner}, which"
    found = next((plugin for plugin in offer.plugins.found if plugin.source == owner), None)
    if found is None:
        return PluginUnavailable(f"{subject} is not installed", hint=install_command(owner))
    if found.blocked:
        return PluginUnavailable(f"{subject} VLMKIT_BLOCK leaves out")
    hint = found.error.hint if isinstance(found.error, VlmkitError) else ""
    reason = described(found.error) if found.error else "it does not offer the command"
    return PluginUnavailable(f"{subject} could not be loaded: {reason}", hint=hint)


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
