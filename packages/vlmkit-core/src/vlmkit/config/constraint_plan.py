"""The plan of a constraint worker, which builds only a model's constraint compiler."""

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import msgspec

from vlmkit.config.structs import Config
from vlmkit.config.worker_plan import ModelFiles, Part, WorkerPlan
from vlmkit.plugins.registry import BuildContext

if TYPE_CHECKING:
    from vlmkit.running.constraints.sandbox.worker import ConstraintWorker
    from vlmkit.wire.frames import Frame


class ConstraintPlan(WorkerPlan, frozen=True, kw_only=True):
    """The parts that a constraint worker builds.

    Attributes:
        compiler: the provider of the constraint compiler.
        token_bytes: the bytes that each token adds to a text, by token id.
    """

    compiler: Part
    token_bytes: list[bytes]


def constraint_worker(compiler: Part, config: Config, context: BuildContext) -> "ConstraintWorker":
    """Return a worker that tries constraints; starts no process yet.

    Args:
        compiler: the provider of the constraint compiler.
        config: all settings.
        context: the build context of the model.
    """
    from vlmkit.running.constraints.sandbox.worker import ConstraintWorker
    from vlmkit.wire.frames import Frame

    def plan(token_bytes: Seq[bytes]) -> "Frame":
        files = context.files
        worker_plan = ConstraintPlan(
            plugins=config.plugins,
            reference=context.reference,
            files=ModelFiles.of(files),
            compiler=compiler,
            token_bytes=list(token_bytes),
        )
        return Frame(msgspec.msgpack.encode(worker_plan))

    return ConstraintWorker(plan, config.pipeline.prepare_timeout_s)
