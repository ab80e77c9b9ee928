"""What a constraint worker builds: a model's compiler of constraints, and nothing else."""

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vlmkit.config.structs import Config
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit.settings.plugins import PluginSettings

if TYPE_CHECKING:
    from vlmkit.running.constraint_trials.worker import ConstraintWorker
    from vlmkit.running.renderers.wire import Frame

Part = tuple[str, dict[str, Any]]
"""A provider's name, and its settings."""


class ConstraintPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a constraint worker builds.

    Attributes:
        plugins: whose code is run; of other settings it has none, which may be secrets.
        reference: what the user called the model.
        name: of the checkpoint.
        path: its folder.
        revision: of it.
        compiler: who compiles constraints.
        token_bytes: what each token adds to a text.
    """

    plugins: PluginSettings
    reference: str
    name: str
    path: str
    revision: str | None
    compiler: Part
    token_bytes: list[bytes]

    @property
    def checkpoint(self) -> Checkpoint:
        """The model's files."""
        return Checkpoint(self.name, Path(self.path), self.revision)


def constraint_worker(compiler: Part, config: Config, context: BuildContext) -> "ConstraintWorker":
    """Return what tries constraints; no process is started yet.

    Args:
        compiler: its provider.
        config: all settings.
        context: what the model's parts are built from.
    """
    from vlmkit.running.constraint_trials.worker import ConstraintWorker
    from vlmkit.running.renderers.wire import Frame

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
