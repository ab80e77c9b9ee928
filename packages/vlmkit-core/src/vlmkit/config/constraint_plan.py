"""What a constraint worker builds: a model's compiler of constraints, and nothing else."""

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import msgspec

from vlmkit.config.structs import Config
from vlmkit.config.worker_plan import Part, WorkerPlan
from vlmkit.plugins.registry import BuildContext

if TYPE_CHECKING:
    from vlmkit.running.constraints.sandbox.worker import ConstraintWorker
    from vlmkit.running.prompting.renderers.messages import Frame


class ConstraintPlan(WorkerPlan, frozen=True, kw_only=True):
    """What a constraint worker builds.

    Attributes:
        compiler: who compiles constraints.
        token_bytes: what each token adds to a text.
    """

    compiler: Part
    token_bytes: list[bytes]


def constraint_worker(compiler: Part, config: Config, context: BuildContext) -> "ConstraintWorker":
    """Return what tries constraints; no process is started yet.

    Args:
        compiler: its provider.
        config: all settings.
        context: what the model's parts are built from.
    """
    from vlmkit.running.constraints.sandbox.worker import ConstraintWorker
    from vlmkit.running.prompting.renderers.messages import Frame

    def plan(token_bytes: Seq[bytes]) -> "Frame":
        files = context.files
        made = ConstraintPlan(
            plugins=config.plugins,
            reference=context.reference,
            name=files.name,
            path=str(files.path),
            revision=files.revision,
            compiler=compiler,
            token_bytes=list(token_bytes),
        )
        return Frame(msgspec.msgpack.encode(made))

    return ConstraintWorker(plan, config.pipeline.prepare_timeout_s)
