"""Pooling of hidden states to one vector for a text, as a checkpoint specifies it.

Reads the small files of embedding models in the layout of sentence-transformers: ``modules.json``,
the folder of its pooling module and ``config_sentence_transformers.json``. Computes incrementally
on rows in host memory, and keeps only one.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit.interfaces.prompt import Span
from vlmkit.kit.checkpoint import Checkpoint

Mode = Literal["last", "mean", "cls"]
Vector = NDArray[np.float32]

MODES: dict[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
}
HINT = "such vectors would not be those of the model's authors; generating is not affected"


@dataclass(frozen=True, slots=True)
class Pooling:
    """How to pool hidden states; the default suits models that were trained to answer.

    Attributes:
        mode: the rows to pool: ``last``, ``mean`` of all, or ``cls`` for the first.
        normalises: whether the vector is scaled to unit length.
        prefix: text that is prepended to each plain text.
    """

    mode: Mode = "last"
    normalises: bool = True
    prefix: str = ""

    def rows(self, num_tokens: int) -> Span:
        """Return the positions of a text whose hidden states are needed."""
        return Span(
            num_tokens - 1 if self.mode == "last" else 0, 1 if self.mode == "cls" else num_tokens
        )


@dataclass(slots=True)
class Pooled:
    """Accumulates the vector of one text.

    Attributes:
        pooling: how to pool.
    """

    pooling: Pooling
    _sum: NDArray[np.float64] | None = field(default=None, init=False)
    _num_rows: int = field(default=0, init=False)

    def add(self, rows: NDArray[Any]) -> None:
        """Add the next needed hidden states ``[rows, hidden]``.

        Rows of an atomic chunk may follow after the needed ones; they are ignored.
        """
        if self.pooling.mode == "cls":
            rows = rows[: 1 - self._num_rows]
        total = rows.sum(axis=0, dtype=np.float64)
        self._sum = total if self._sum is None else self._sum + total
        self._num_rows += len(rows)

    def vector(self) -> Vector:
        """Return the vector ``[hidden]``."""
        if self._sum is None:
            raise ValueError("no row was added")
        mean = self._sum / self._num_rows
        if self.pooling.normalises:
            mean /= max(float(np.linalg.norm(mean)), 1e-12)
        vector: Vector = mean.astype(np.float32)
        return vector


def read_pooling(checkpoint: Checkpoint) -> Pooling:
    """Return the pooling that a checkpoint specifies.

    Without ``modules.json``, the folder ``1_Pooling`` is used. Without either, the vector is the
    last token's hidden state, scaled to unit length.

    Raises:
        CheckpointError: the files specify something that is not supported.
    """
    folders = {"Pooling": "1_Pooling"}
    normalises = True
    if modules := checkpoint.read_json_list("modules.json"):
        folders = {_kind(module): str(_entry(module).get("path", "")) for module in modules}
        normalises = "Normalize" in folders
        unknown = sorted(folders.keys() - {"Transformer", "Pooling", "Normalize"})
        if unknown or "Pooling" not in folders:
            problem = f"the module {unknown[0]!r}" if unknown else "no Pooling module"
            raise CheckpointError(
                f"modules.json of model {checkpoint.name!r} has {problem}", hint=HINT
            )
    file = f"{folders['Pooling']}/config.json"
    stated = checkpoint.read_json(file)
    if modules and not stated:
        raise CheckpointError(f"model {checkpoint.name!r} says nothing in {file!r}", hint=HINT)
    mode = _mode(checkpoint.name, stated) if stated else "last"
    return Pooling(mode, normalises, _prefix(checkpoint, stated))


def _mode(name: str, stated: dict[str, Any]) -> Mode:
    """Return the one enabled pooling mode."""
    named = stated.get("pooling_mode")
    chosen = [
        key for key, value in stated.items() if key.startswith("pooling_mode_") and value is True
    ]
    if isinstance(named, str | list):
        chosen = [named] if isinstance(named, str) else [str(each) for each in named]
    if len(chosen) != 1 or chosen[0] not in MODES:
        raise CheckpointError(
            f"model {name!r} pools by {', '.join(chosen) or 'nothing'!r}, expected one of cls, "
            "mean and the last token",
            hint=HINT,
        )
    return MODES[chosen[0]]


def _prefix(checkpoint: Checkpoint, stated: dict[str, Any]) -> str:
    """Return the default prompt that the checkpoint prepends to a text."""
    config = checkpoint.read_json("config_sentence_transformers.json")
    prompts, default = config.get("prompts"), config.get("default_prompt_name")
    prefix = prompts.get(default) if isinstance(prompts, dict) else None
    if prefix and stated.get("include_prompt") is False:
        raise CheckpointError(
            f"model {checkpoint.name!r} leaves its prompt {default!r} out of the pooling", hint=HINT
        )
    return str(prefix or "")


def _entry(module: Any) -> dict[str, Any]:
    return module if isinstance(module, dict) else {}


def _kind(module: Any) -> str:
    """Return the last part of a module's type, such as ``Pooling``."""
    return str(_entry(module).get("type", "")).rpartition(".")[-1]
