"""A model whose files a Python package carries."""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib.resources.abc import Traversable
from pathlib import Path

from vlmkit.checkpoints.folder import model_folder
from vlmkit.errors import CheckpointError, PluginError
from vlmkit.kit.checkpoint import Checkpoint

PackagedPath = str | os.PathLike[str] | Traversable
"""Where a packaged model's files are; ``importlib.resources.files`` returns the last."""


def check_packaged(name: str, path: object) -> None:
    """Refuse what says nothing of where a packaged model is.

    Raises:
        PluginError: it is no path, or one that depends on where a program was started.
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
    """Return the ``cannot_serve`` of a provider of one model: its name is asked for, or nothing."""
    reason = f"it has only the model {name!r}"
    return lambda reference: None if reference.rpartition(":")[2] == name else reason


def packaged_model(name: str, path: PackagedPath, plugin: str) -> Checkpoint:
    """Return the files of a model that a distribution carries.

    Args:
        name: of the model.
        path: its folder.
        plugin: the distribution, for errors.

    Raises:
        CheckpointError: they are not there, or not as files of their own.
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
