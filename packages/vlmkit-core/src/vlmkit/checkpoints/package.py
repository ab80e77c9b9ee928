"""Models whose files are part of a Python distribution."""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.resources.abc import Traversable
from pathlib import Path

from vlmkit.checkpoints.folder import model_folder
from vlmkit.errors import CheckpointError, PluginError
from vlmkit.kit.checkpoint import Checkpoint

PackagedPath = str | os.PathLike[str] | Traversable
"""The folder of a packaged model; ``importlib.resources.files`` returns a ``Traversable``."""


def check_packaged(name: str, path: object) -> None:
    """Check the folder that a plugin registers for a packaged model.

    Raises:
        PluginError: the value is not a path, or a path relative to the working directory.
    """
    if isinstance(path, str | os.PathLike):
        if not Path(os.fspath(path)).is_absolute():
            raise PluginError(
                f"model {name!r} has the folder {os.fspath(path)!r}, which is not absolute",
                hint=f"for example Path(__file__).with_name({os.fspath(path)!r})",
            )
    elif not isinstance(path, Traversable):
        raise PluginError(
            f"model {name!r} must be given a folder, not a value of type {type(path).__name__!r}"
        )


def only(name: str) -> Callable[[str], str | None]:
    """Return the ``cannot_serve`` function of a model source that has one model."""
    reason = f"it has only the model {name!r}"
    return lambda reference: None if reference.rpartition(":")[2] == name else reason


def packaged_model(name: str, path: PackagedPath, plugin: str) -> Checkpoint:
    """Return the checkpoint of a model in a distribution.

    Args:
        name: the name of the model.
        path: its folder.
        plugin: the distribution, for errors.

    Raises:
        CheckpointError: the files are missing, or are not in one folder on this disk.
    """
    who = f"packaged model {name!r} of {plugin!r}"
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(
            f"{who} lies in an archive, or in several folders, and not in one on this disk",
            hint="install the distribution with pip, which unpacks it",
        )
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(
            f"{who} lacks its folder {str(folder)!r}",
            hint="the distribution must name its files as data of the package",
        )
    return replace(model_folder(folder), name=name)
