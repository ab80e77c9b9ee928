"""Models that lie in one folder, by short names: ``yourname/tiny`` is the folder ``tiny`` in it.

The folder is named by the variable ``MODEL_STORE``; a share of a team's, say.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import vlmkit
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext, Registry

VLMKIT_API = (1, 0)
PREFIX = "yourname/"
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
"""What a model's folder may be called: nothing that leads out of the store."""


def store() -> Path:
    """Return the folder that holds the models."""
    return Path(os.environ.get("MODEL_STORE", "~/models")).expanduser()


def models() -> Iterator[str]:
    """Yield the references of all models in the store."""
    if store().is_dir():
        for folder in sorted(store().iterdir()):
            if FOLDER.fullmatch(folder.name) and (folder / "config.json").is_file():
                yield PREFIX + folder.name


def cannot_serve(reference: str) -> str | None:
    """Say why a reference is not one of a model in the store; None where it is."""
    return None if reference.startswith(PREFIX) else f"it has only models named {PREFIX}..."


def _build(context: BuildContext) -> Checkpoint:
    """Return the model's files.

    Raises:
        CheckpointError: there is no such model in the store.
    """
    reference = context.reference
    name = reference.removeprefix(PREFIX)
    if FOLDER.fullmatch(name) is None or reference not in models():
        known = ", ".join(models()) or "none"
        raise CheckpointError(
            f"model {reference!r} is not in the store {str(store())!r}", hint=f"there are: {known}"
        )
    return Checkpoint(reference, store() / name, context.revision)


@vlmkit.hookimpl
def vlmkit_register_models(registry: Registry[Checkpoint]) -> None:
    """Offer every model of the store."""
    registry.add(
        "yourname",
        _build,
        cannot_serve=cannot_serve,
        priority=1,  # a hub takes such references too
        list_models=models,
        description="models in the folder that MODEL_STORE names",
    )
