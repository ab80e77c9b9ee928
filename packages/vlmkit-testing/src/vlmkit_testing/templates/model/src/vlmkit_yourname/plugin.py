"""Models that lie in one folder, by short names: ``yourname://tiny`` is the folder ``tiny`` in it.

The folder is named by the variable ``MODEL_STORE``; a share of a team's, say.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import vlmkit
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.model_uri import shown
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)
SCHEME = "yourname"
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
"""What a model's folder may be called: nothing that leads out of the store."""


def store() -> Path:
    """Return the folder that holds the models."""
    return Path(os.environ.get("MODEL_STORE", "~/models")).expanduser().resolve()


def models() -> Iterator[str]:
    """Yield the references of all models in the store."""
    if store().is_dir():
        for folder in sorted(store().iterdir()):
            if FOLDER.fullmatch(folder.name) and (folder / "config.json").is_file():
                yield f"{SCHEME}://{folder.name}"


def _build(context: BuildContext) -> Checkpoint:
    """Return the model's files.

    Raises:
        CheckpointError: there is no such model in the store, or a revision was asked for.
    """
    reference = context.reference
    known = list(models())
    if reference not in known:
        raise CheckpointError(
            f"model {shown(reference)!r} is not in the store {str(store())!r}",
            hint=f"there are: {', '.join(known) or 'none'}",
        )
    if context.revision is not None:
        raise CheckpointError(
            f"model {reference!r} has no revision {context.revision!r}",
            hint="a folder has none: leave it out",
        )
    return Checkpoint(reference, store() / reference.removeprefix(f"{SCHEME}://"))


@vlmkit.hookimpl
def vlmkit_register_models(registry: Registry[Checkpoint]) -> None:
    """Offer every model of the store; a reference that begins so is nobody else's."""
    registry.add(
        "yourname",
        _build,
        schemes=(SCHEME,),
        list_models=models,
        description="models in the folder that MODEL_STORE names",
    )
