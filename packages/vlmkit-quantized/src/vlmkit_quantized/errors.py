"""The error inside this package: what is wrong with a checkpoint."""

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.objection import Objection

UNQUANTIZED = "load the model that it was made from"


class FormatError(Exception):
    """A checkpoint is not one that a format supports, or contradicts itself.

    Attributes:
        problem: a sentence about the checkpoint, or the predicate of one about a layer.
        layer: the layer that it is about; empty for the checkpoint.
        hint: the remedy; empty if another model is.

    Args:
        problem: the problem.
        layer: the layer.
        hint: the remedy; empty if another model is.
    """

    def __init__(self, problem: str, layer: str = "", *, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.layer = layer
        self.hint = hint

    def __str__(self) -> str:
        return f"its layer {self.layer!r} {self.problem}" if self.layer else self.problem

    def objection(self) -> Objection:
        """Return it as the reason of a provider."""
        return Objection(str(self), hint=self.hint or UNQUANTIZED)

    def of(self, checkpoint: Checkpoint) -> CheckpointError:
        """Return it as an error of a checkpoint."""
        general = f"its config.json and its weights may contradict each other; {UNQUANTIZED}"
        return self._of(checkpoint, general)

    def of_file(self, checkpoint: Checkpoint) -> CheckpointError:
        """Return it as an error of a checkpoint of one file, which has its config, too."""
        return self._of(checkpoint, UNQUANTIZED)

    def _of(self, checkpoint: Checkpoint, general_hint: str) -> CheckpointError:
        hint = self.hint or general_hint
        return CheckpointError(f"model {checkpoint.name!r} cannot be read: {self}", hint=hint)
