"""The common part of the plans of worker processes: the plugins, and the model's files."""

from pathlib import Path
from typing import Any

import msgspec

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.settings.plugins import PluginSettings

Part = tuple[str, dict[str, Any]]
"""The name of a provider, and its settings."""


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a worker process; each kind of worker adds its parts.

    It has no other settings of the server, which may be secrets.

    Attributes:
        plugins: the plugins to load.
        reference: the user's reference of the model.
        name: the name of the checkpoint.
        path: the folder of the checkpoint.
        revision: the revision of the checkpoint.
        file: the single file of the checkpoint; None for other models.
        projector: the file with its vision tower, if its source selected one of several.
    """

    plugins: PluginSettings
    reference: str
    name: str
    path: str
    revision: str | None
    file: str | None
    projector: str | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """The model's files."""
        file = None if self.file is None else Path(self.file)
        tower = None if self.projector is None else Path(self.projector)
        path = Path(self.path)
        return Checkpoint(self.name, path, self.revision, file=file, projector=tower)
