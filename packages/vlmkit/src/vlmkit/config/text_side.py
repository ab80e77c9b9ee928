"""What a renderer builds: a model's text side and whatever opens its files, and nothing else."""

from pathlib import Path
from typing import Any

import msgspec

from vlmkit.config.structs import Config
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.seams.engine import EngineLimits
from vlmkit.settings.pipeline import PipelineSettings

Part = tuple[str, dict[str, Any]]
"""A provider's name, and its settings."""


class TextSide(msgspec.Struct, frozen=True, kw_only=True):
    """What a renderer builds.

    Attributes:
        config: names the plugins.
        reference: what the user called the model.
        name: of the checkpoint.
        path: its folder.
        revision: of it.
        model: how the server lists it.
        tokenizer: who makes tokens.
        media_loaders: who opens files, in order.
        modalities: what messages may hold.
        limits: of the engine.
        bounds: what is refused of one request.
        memory_bytes: that the renderer may take.
        num_threads: that decode the images of a request.
    """

    config: Config
    reference: str
    name: str
    path: str
    revision: str | None
    model: str
    tokenizer: Part
    media_loaders: list[Part]
    modalities: tuple[str, ...]
    limits: EngineLimits
    bounds: PipelineSettings
    memory_bytes: int
    num_threads: int

    @property
    def checkpoint(self) -> Checkpoint:
        """The model's files."""
        return Checkpoint(self.name, Path(self.path), self.revision)
