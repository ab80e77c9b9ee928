"""Writes the token table, which stays outside the graph: rows are read from its file on demand."""

import copy
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from vlmkit.errors import CheckpointError
from vlmkit_onnx.export.views import Parts
from vlmkit_onnx.folder.manifest import Embeddings

DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})
TOLERANCE = 1e-6


def write_table(parts: Parts, folder: Path) -> Embeddings:
    """Write the table in its own type; return how its rows become embeddings.

    Raises:
        CheckpointError: the family does more than multiply rows by a number.
    """
    module = parts.embedding
    stated = Embeddings(scale=_scale_of(module))
    table = table_of(parts)
    ids = sample_ids(len(table), 16)
    if not torch.allclose(embed(parts, ids), table[ids].float() * stated.scale, rtol=TOLERANCE):
        raise CheckpointError(
            f"model type {parts.config.model_type!r} embeds tokens in a way of its own, and "
            "cannot be exported"
        )
    if table.dtype not in DTYPES:
        table = table.float()
    save_file({stated.tensor: table.contiguous()}, folder / stated.file)
    return stated


def embed(parts: Parts, ids: torch.Tensor) -> torch.Tensor:
    """Return the embeddings ``[tokens, hidden]`` of token ids by the family's own code, in float32.

    Converts only the requested rows.
    """
    few = copy.copy(parts.embedding)
    # A copy of the module with a table of these rows only.
    few._parameters = {**few._parameters, "weight": nn.Parameter(table_of(parts)[ids].float())}  # noqa: SLF001
    few.padding_idx = None  # type: ignore[assignment]
    scale = getattr(few, "scalar_embed_scale", None)
    if scale is not None:  # its tensor has the checkpoint's type
        few._buffers = {**few._buffers, "embed_scale": torch.tensor(scale)}  # noqa: SLF001
    with torch.no_grad():
        rows: torch.Tensor = few(torch.arange(len(ids)))
    return rows


def sample_ids(num_tokens: int, count: int) -> torch.Tensor:
    """Return ids from all parts of a vocabulary."""
    return (7 + 37 * torch.arange(count)) % num_tokens


def table_of(parts: Parts) -> torch.Tensor:
    """Return the token table ``[vocab, hidden]``, unscaled.

    Raises:
        CheckpointError: the model has none.
    """
    weight = getattr(parts.embedding, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        raise CheckpointError(f"model type {parts.config.model_type!r} has no table of embeddings")
    return weight.detach()


def _scale_of(module: nn.Module) -> float:
    for name in ("scalar_embed_scale", "embed_scale"):
        if (value := getattr(module, name, None)) is not None:
            return float(value)
    return 1.0
