"""The plan of a default pipeline, with which another process builds the same one."""

import os

import msgspec

from vlmkit.config.renderer_plan import WorkerProcesses
from vlmkit.config.structs import Config, ModelEntry
from vlmkit.config.worker_plan import ModelFiles, WorkerPlan
from vlmkit.kit.checkpoint import Checkpoint


class PipelinePlan(WorkerPlan, frozen=True, kw_only=True):
    """What a process needs to build the pipeline of a model.

    It has all settings of the model's components, and no tables of plugins, such as ``[server]``.

    Attributes:
        entry: the model.
        config: the settings of the core, without those of other models.
        workers: the worker processes of a served model; None for other models.
    """

    entry: ModelEntry
    config: Config
    workers: WorkerProcesses | None

    def to_bytes(self) -> bytes:
        """Return the plan as MessagePack."""
        return msgspec.msgpack.encode(self, enc_hook=os.fspath)

    @classmethod
    def from_bytes(cls, data: bytes) -> "PipelinePlan":
        """Return the plan that :meth:`to_bytes` encoded.

        Raises:
            msgspec.DecodeError: the data is not a plan.
        """
        return msgspec.msgpack.decode(data, type=cls)


def pipeline_plan(
    entry: ModelEntry, config: Config, checkpoint: Checkpoint, workers: WorkerProcesses | None
) -> PipelinePlan:
    """Return the plan of the pipeline of a model."""
    own = {name: getattr(config, name) for name in Config.__struct_fields__}
    return PipelinePlan(
        plugins=config.plugins,
        reference=entry.model,
        files=ModelFiles.of(checkpoint),
        entry=entry,
        config=Config(**own | {"model": None, "models": ()}),
        workers=workers,
    )
