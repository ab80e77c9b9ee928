"""The common part of the plans of worker processes: the plugins, and the model's files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.settings.plugins import PluginSettings

A = TypeVar("A")
B = TypeVar("B")
Part = tuple[str, dict[str, Any]]
"""The name of a provider, and its settings."""


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without what was read of it.

    Attributes:
        name: the name of the checkpoint.
        path: the folder of the checkpoint.
        revision: the revision of the checkpoint.
        file: the single file of the checkpoint; None for other models.
        projector: the file with its vision tower, if its source selected one of several.
    """

    name: str
    path: str
    revision: str | None
    file: str | None
    projector: str | None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Return the files of a checkpoint."""
        return cls(
            name=checkpoint.name,
            path=str(checkpoint.path),
            revision=checkpoint.revision,
            file=_map(str, checkpoint.file),
            projector=_map(str, checkpoint.projector),
        )

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of these files."""
        file, projector = _map(Path, self.file), _map(Path, self.projector)
        path = Path(self.path)
        return Checkpoint(self.name, path, self.revision, file=file, projector=projector)


def _map(kind: Callable[[A], B], value: A | None) -> B | None:
    return None if value is None else kind(value)


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a worker process; each kind of worker adds its parts.

    It has no other settings of the server, which may be secrets.

    Attributes:
        plugins: the plugins to load.
        reference: the user's reference of the model.
        files: the model's files.
    """

    plugins: PluginSettings
    reference: str
    files: ModelFiles
