"""Traces a decoder with its head into an ONNX graph over a cache of slots.

The family's own code is what is traced: norms, rotation, feed-forward, experts, scaling of logits.
Only attention is ours. Quantization has happened before, in the modules themselves.
"""

# ruff: noqa: SLF001 - the one private table of transformers that the tracing of experts needs

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch import nn
from transformers.exporters import exporter_onnx
from transformers.exporters.onnxruntime_fusions import fuse_for_onnxruntime
from transformers.exporters.utils import apply_fx_node_fixes, apply_patches

from vlmkit.errors import CheckpointError, VlmkitError
from vlmkit_onnx.export import missing_constants
from vlmkit_onnx.export.attention import SlotAttention, SlotInputs
from vlmkit_onnx.export.decoder_rewrites import tidy
from vlmkit_onnx.export.decoder_traits import Anatomy
from vlmkit_onnx.export.deepstack import arguments, dense
from vlmkit_onnx.export.frequencies import first_frequencies
from vlmkit_onnx.export.token_linear import write_out
from vlmkit_onnx.export.tracing import tracing
from vlmkit_onnx.export.views import Parts, attention

OPSET = 21  # the first that rounds in blocks
ANY = torch.export.Dim.DYNAMIC


class SlotDecoder(nn.Module):
    """Embeddings, positions and a cache -> logits and states of chosen rows, and the cache."""

    def __init__(self, parts: Parts, anatomy: Anatomy) -> None:
        super().__init__()
        self.decoder = parts.decoder
        self.head = parts.head
        self.anatomy = anatomy
        self.board = SlotAttention(anatomy.layers)

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        position_ids: torch.Tensor,
        seqlens_k: torch.Tensor,
        total_sequence_length: torch.Tensor,
        logits_indices: torch.Tensor,
        hidden_indices: torch.Tensor,
        past: list[torch.Tensor],
        bias: list[torch.Tensor] | None = None,
        deepstack: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Return logits ``[rows, vocab]``, hidden states ``[rows, hidden]``, and the cache.

        Both are float32 and of rows of their own; the cache is each layer's keys and values in
        turn. Shapes of the arguments are those of :func:`example`.
        """
        dtype = past[0].dtype
        masks = None
        if bias is not None:
            masks = (bias[0].to(dtype), bias[-1].to(dtype))
        levels = None if deepstack is None else deepstack.to(dtype)
        self.board.begin(SlotInputs(past, seqlens_k, total_sequence_length, masks, levels))
        out = self.decoder(
            inputs_embeds=inputs_embeds.to(dtype, copy=True),
            position_ids=position_ids,
            use_cache=False,
            **arguments(self.anatomy.deepstack_layers, levels),
        )
        hidden = out.last_hidden_state
        flat = hidden.reshape(-1, hidden.shape[-1])
        rows = flat.index_select(0, logits_indices)
        logits = self.head(inputs_embeds=rows[None]).logits[0].float()
        states = flat.index_select(0, hidden_indices).float()
        present = self.board.present
        return logits, states, [tensor for index in sorted(present) for tensor in present[index]]


def export_decoder(parts: Parts, anatomy: Anatomy, path: Path) -> bool:
    """Write ``path`` and, beside it, its weights.

    Returns:
        Whether the graph chooses among experts.

    Raises:
        CheckpointError: the family's code cannot be traced.
    """
    model = trace(parts, anatomy)
    onnx_ir.save(model, path, external_data=f"{path.name}.data")
    return any(node.op_type == "TopK" for node in model.graph.all_nodes())


def trace(parts: Parts, anatomy: Anatomy) -> onnx_ir.Model:
    """Return the graph, fused and tidied, its weights still those of the modules.

    Raises:
        CheckpointError: the family's code cannot be traced.
    """
    module = SlotDecoder(parts, anatomy).eval()
    inputs, shapes = example(anatomy, parts.dtype)
    try:
        with torch.no_grad(), _prepared(parts, module.board, anatomy.deepstack_layers), tracing():
            graph = _trace(module, inputs, shapes)
            fuse_for_onnxruntime(graph, "cpu")
    except VlmkitError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"the decoder of model type {parts.text_config.model_type!r} cannot be traced",
            hint="`vlmkit --debug ...` shows where; please report the model type",
        ) from error
    tidy(graph)
    write_out(graph)
    return graph


def _trace(module: SlotDecoder, inputs: dict[str, Any], shapes: dict[str, Any]) -> onnx_ir.Model:
    program = torch.export.export(module, (), inputs, dynamic_shapes=shapes, strict=False)
    apply_fx_node_fixes("onnx", program.graph_module)
    made = torch.onnx.export(
        program,
        (),
        kwargs=inputs,
        input_names=input_names(module.anatomy),
        output_names=output_names(module.anatomy),
        opset_version=OPSET,
        custom_translation_table=exporter_onnx._ONNX_TRANSLATION_TABLE,
        verbose=False,
    )
    if made is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    missing_constants.take_back(made.model)
    exporter_onnx.apply_onnx_ir_fixes(made)
    return made.model


def example(anatomy: Anatomy, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs to trace with, and which of their axes are free.

    Two rows of three tokens, in slots of 32.
    """
    rows, seq, slot, hidden = 2, 3, 32, anatomy.hidden_size
    axes = [3] if anatomy.num_position_axes == 3 else []
    first = len(axes)
    past = [
        torch.zeros(rows, layer.num_kv_heads, slot, layer.head_size, dtype=dtype)
        for layer in anatomy.layers
        for _ in range(2)
    ]
    inputs: dict[str, Any] = {
        "inputs_embeds": torch.randn(rows, seq, hidden),
        "position_ids": torch.arange(seq).expand(*axes, rows, seq).contiguous(),
        "seqlens_k": torch.full((rows,), seq - 1, dtype=torch.int32),
        "total_sequence_length": torch.tensor(seq, dtype=torch.int32),
        "logits_indices": torch.arange(3),
        "hidden_indices": torch.arange(2, 6),
        "past": past,
    }
    shapes: dict[str, Any] = {
        "inputs_embeds": {0: ANY, 1: ANY},
        "position_ids": {first: ANY, first + 1: ANY},
        "seqlens_k": {0: ANY},
        "total_sequence_length": None,
        "logits_indices": {0: ANY},
        "hidden_indices": {0: ANY},
        "past": [{0: ANY, 2: ANY}] * len(past),
    }
    if names := bias_names(anatomy):
        inputs["bias"] = [torch.zeros(rows, 1, seq, seq) for _ in names]
        shapes["bias"] = [{0: ANY, 2: ANY, 3: ANY}] * len(names)
    if anatomy.num_deepstack:
        inputs["deepstack"] = torch.zeros(anatomy.num_deepstack, rows, seq, hidden)
        shapes["deepstack"] = {1: ANY, 2: ANY}
    return inputs, shapes


def input_names(anatomy: Anatomy) -> list[str]:
    """Return the graph's inputs in the order of :meth:`SlotDecoder.forward`."""
    names = ["inputs_embeds", "position_ids", "seqlens_k", "total_sequence_length"]
    names += ["logits_indices", "hidden_indices"]
    names += [*(f"past_key_values.{part}" for part in _parts_of(anatomy))]
    names += bias_names(anatomy)
    return [*names, "deepstack"] if anatomy.num_deepstack else names


def output_names(anatomy: Anatomy) -> list[str]:
    """Return the graph's outputs in order."""
    return ["logits", "hidden_states", *(f"present.{part}" for part in _parts_of(anatomy))]


def bias_names(anatomy: Anatomy) -> list[str]:
    """Return the names of the masks that the host makes."""
    if not anatomy.takes_bias:
        return []
    return ["attention_bias", "attention_bias_local"] if anatomy.window else ["attention_bias"]


def _parts_of(anatomy: Anatomy) -> Iterator[str]:
    for index in range(len(anatomy.layers)):
        yield f"{index}.key"
        yield f"{index}.value"


@contextmanager
def _prepared(parts: Parts, board: SlotAttention, layers: tuple[int, ...]) -> Iterator[None]:
    """Set up everything for tracing, and put it back."""
    rows = lambda: None if board.inputs is None else board.inputs.deepstack  # noqa: E731
    with ExitStack() as stack:
        stack.enter_context(attention(parts.decoder, board))
        stack.enter_context(dense(parts.decoder, layers, rows))
        stack.enter_context(first_frequencies(parts.decoder))
        stack.enter_context(apply_patches("dynamo"))
        stack.enter_context(apply_patches("onnx"))
        yield
