"""The hooks of vlmkit-testing. Only the build functions import heavy modules."""

from typing import TYPE_CHECKING, Any

from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry

if TYPE_CHECKING:
    import click

VLMKIT_API = (1, 0)


def _build_check(_: BuildContext) -> "click.Command":
    from vlmkit_testing.commands.check_plugin import check

    return check


def _build_new(_: BuildContext) -> "click.Command":
    from vlmkit_testing.commands.new_plugin import new

    return new


def _build_verify(_: BuildContext) -> "click.Command":
    from vlmkit_testing.commands.verify import verify

    return verify


@hookimpl
def vlmkit_register_commands(registry: Registry[Any]) -> None:
    """Offer ``vlmkit plugins check``, ``vlmkit plugins new`` and ``vlmkit verify``."""
    registry.add(
        "plugins check",
        _build_check,
        description="Run the contracts that the provider NAME must keep.",
    )
    registry.add(
        "plugins new",
        _build_new,
        description="Write the project of a plugin of kind KIND into FOLDER.",
    )
    registry.add(
        "verify",
        _build_verify,
        description="Compare MODEL's encoders, and its answers cached and in a batch.",
    )
