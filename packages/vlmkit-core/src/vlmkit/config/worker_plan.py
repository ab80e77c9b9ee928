"""What every worker process of a model is given: whose code it runs, and the model's files."""

from pathlib import Path
from typing import Any

import msgspec

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.settings.plugins import PluginSettings

Part = tuple[str, dict[str, Any]]
"""A provider's name, and its settings."""


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker process builds; each kind of worker adds its parts.

    Attributes:
        plugins: whose code is run; of other settings it has none, which may be secrets.
        reference: what the user called the model.
        name: of the checkpoint.
        path: its folder.
        revision: of it.
    """

    plugins: PluginSettings
    reference: str
    name: str
    path: str
    revision: str | None

    @property
    def checkpoint(self) -> Checkpoint:
        """The model's files."""
        return Checkpoint(self.name, Path(self.path), self.revision)
