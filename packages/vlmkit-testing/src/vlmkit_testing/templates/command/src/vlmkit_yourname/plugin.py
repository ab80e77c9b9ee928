"""``vlmkit yourname MODEL FOLDER``: asks a model the same of every picture in a folder."""

from typing import TYPE_CHECKING

import vlmkit
from vlmkit.plugins.registry import BuildContext, Registry

if TYPE_CHECKING:
    import click

VLMKIT_API = (1, 0)


def _build(_: BuildContext) -> "click.Command":
    from vlmkit_yourname.command import describe

    return describe


@vlmkit.hookimpl
def vlmkit_register_commands(registry: "Registry[click.Command]") -> None:
    """Offer ``vlmkit yourname``."""
    registry.add("yourname", _build, description="Ask the same of every picture in a folder.")
