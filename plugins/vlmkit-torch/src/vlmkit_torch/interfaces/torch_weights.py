"""Readers of quantized weights, the kind ``torch_weights``. Importing this imports no torch.

A reader belongs to one checkpoint. It supplies plain weights one by one, under the names that the
checkpoint would have without quantization. The library transformers then renames, merges and
converts them as it does with the weights of a plain checkpoint.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class StoredWeight(Protocol):
    """One quantized weight, as the files hold it.

    It may have further members, such as integers, scales and groups, for what computes with them.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the plain weight, such as ``(out, in)`` of a linear layer."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors in safetensors files that it consists of, if any."""

    def dense(self) -> "torch.Tensor":
        """Return the plain weight, of any floating-point dtype, on the CPU.

        Defines the value of the weight: it is rounded to the precision of the model, once. Reads
        the files when it is called, and keeps nothing; the result is the caller's.
        """


class WeightReader:
    """Reads the quantized weights of one checkpoint; inherit it.

    ``build`` of the provider gets the checkpoint as ``context.files``. It may look at headers, but
    reads no weights. ``weights`` may also read small tensors, such as zero points.
    """

    def weights(self) -> Mapping[str, StoredWeight]:
        """Return the quantized weights, by the name that each has in a plain checkpoint.

        For example ``model.layers.0.mlp.up_proj.weight``. All tensors of the files that belong to
        none of them are read as they are.
        """
        return {}

    def transformers_config(self, stated: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the ``quantization_config`` with which transformers reads the weights itself.

        Args:
            stated: that of ``config.json``.

        Returns:
            None, if transformers is to build a plain model and ``weights`` has the weights.
        """
        del stated
        return None

    def prepare(self, auto: Any, config: Any) -> None:
        """Change the configuration of transformers before the model is read.

        Args:
            auto: the class that reads it.
            config: that of the model, with ``transformers_config``.
        """

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which transformers reads the model."""
        return nullcontext()

    def finish(self, model: Any) -> None:
        """Change the model after transformers read it, in place."""
