"""Traces a decoder with its head into an ONNX graph over a cache of slots.

A slot is one sequence's preallocated part of the cache: room for its keys and values in each layer.
The graph computes one step of a batch of sequences, each in its own slot.

Traces the family's own code: norms, rotation, feed-forward, experts, scaling of logits. Only
attention is replaced. The modules are already quantized.
"""

# ruff: noqa: SLF001 - tracing of experts needs a private table of transformers

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
from vlmkit_onnx.export.decoder_rewrites import rewrite_decoder
from vlmkit_onnx.export.decoder_traits import DecoderTraits
from vlmkit_onnx.export.deepstack import deepstack_arguments, dense_deepstack
from vlmkit_onnx.export.frequencies import short_text_frequencies
from vlmkit_onnx.export.token_linear import expand_layers
from vlmkit_onnx.export.tracing import tracing
from vlmkit_onnx.export.views import Parts, replaced_attention

OPSET = 21  # the first with quantization in blocks
ANY = torch.export.Dim.DYNAMIC


class SlotDecoder(nn.Module):
    """Embeddings, positions and a cache -> logits and states of chosen tokens, and the cache."""

    def __init__(self, parts: Parts, traits: DecoderTraits) -> None:
        super().__init__()
        self.decoder = parts.decoder
        self.head = parts.head
        self.traits = traits
        self.attention = SlotAttention(traits.layers)

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

        A row belongs to one token. ``logits_indices`` and ``hidden_indices`` choose the tokens,
        counted over the whole batch. Both outputs are float32.

        The cache has the keys of the first layer, its values, the keys of the second layer, and so
        on. The arguments have the shapes of :func:`example_inputs`.
        """
        dtype = past[0].dtype
        masks = None
        if bias is not None:
            full, windowed = bias[0], bias[-1]  # the same mask if no layer has a window
            masks = (full.to(dtype), windowed.to(dtype))
        levels = None if deepstack is None else deepstack.to(dtype)
        self.attention.begin(SlotInputs(past, seqlens_k, total_sequence_length, masks, levels))
        out = self.decoder(
            inputs_embeds=inputs_embeds.to(dtype, copy=True),  # CTRL scales them in place
            position_ids=position_ids,
            use_cache=False,
            **deepstack_arguments(self.traits.deepstack_layers, levels),
        )
        hidden = out.last_hidden_state
        flat = hidden.reshape(-1, hidden.shape[-1])
        rows = flat.index_select(0, logits_indices)
        logits = self.head(inputs_embeds=rows[None]).logits[0].float()
        states = flat.index_select(0, hidden_indices).float()
        present = self.attention.present
        return logits, states, [tensor for index in sorted(present) for tensor in present[index]]


def export_decoder(parts: Parts, traits: DecoderTraits, path: Path) -> bool:
    """Write the graph to ``path``, and its weights beside it.

    Returns:
        Whether the graph selects experts.

    Raises:
        CheckpointError: the family's code cannot be traced.
    """
    model = trace_decoder(parts, traits)
    onnx_ir.save(model, path, external_data=f"{path.name}.data")
    return any(node.op_type == "TopK" for node in model.graph.all_nodes())


def trace_decoder(parts: Parts, traits: DecoderTraits) -> onnx_ir.Model:
    """Return the fused and rewritten graph, which shares its weights with the modules.

    Raises:
        CheckpointError: the family's code cannot be traced.
    """
    module = SlotDecoder(parts, traits).eval()
    inputs, dynamic_axes = example_inputs(traits, parts.dtype)
    try:
        with (
            torch.no_grad(),
            _prepared(parts, module.attention, traits.deepstack_layers),
            tracing(),
        ):
            graph = _to_onnx(module, inputs, dynamic_axes)
            fuse_for_onnxruntime(graph, "cpu")
    except VlmkitError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"the decoder of model type {parts.text_config.model_type!r} cannot be traced",
            hint="`vlmkit --debug ...` shows where; please report the model type",
        ) from error
    rewrite_decoder(graph)
    expand_layers(graph)
    return graph


def _to_onnx(
    module: SlotDecoder, inputs: dict[str, Any], dynamic_axes: dict[str, Any]
) -> onnx_ir.Model:
    """Return the graph as torch exports it, with the exporter's mistakes corrected."""
    program = torch.export.export(module, (), inputs, dynamic_shapes=dynamic_axes, strict=False)
    apply_fx_node_fixes("onnx", program.graph_module)
    made = torch.onnx.export(
        program,
        (),
        kwargs=inputs,
        input_names=input_names(module.traits),
        output_names=output_names(module.traits),
        opset_version=OPSET,
        custom_translation_table=exporter_onnx._ONNX_TRANSLATION_TABLE,
        verbose=False,
    )
    if made is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    missing_constants.restore_constants(made.model)
    exporter_onnx.apply_onnx_ir_fixes(made)
    return made.model


def example_inputs(
    traits: DecoderTraits, dtype: torch.dtype
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs to trace with, and their dynamic axes.

    Two sequences of three tokens, in slots for 32 tokens.
    """
    num_sequences, seq, slot, hidden = 2, 3, 32, traits.hidden_size
    position_axes = [3] if traits.num_position_axes == 3 else []
    sequence_axis = len(position_axes)
    past = [
        torch.zeros(num_sequences, layer.num_kv_heads, slot, layer.head_size, dtype=dtype)
        for layer in traits.layers
        for _ in ("key", "value")
    ]
    inputs: dict[str, Any] = {
        "inputs_embeds": torch.randn(num_sequences, seq, hidden),
        "position_ids": torch.arange(seq).expand(*position_axes, num_sequences, seq).contiguous(),
        "seqlens_k": torch.full((num_sequences,), seq - 1, dtype=torch.int32),
        "total_sequence_length": torch.tensor(seq, dtype=torch.int32),
        "logits_indices": torch.arange(3),
        "hidden_indices": torch.arange(2, 6),
        "past": past,
    }
    dynamic_axes: dict[str, Any] = {
        "inputs_embeds": {0: ANY, 1: ANY},
        "position_ids": {sequence_axis: ANY, sequence_axis + 1: ANY},
        "seqlens_k": {0: ANY},
        "total_sequence_length": None,
        "logits_indices": {0: ANY},
        "hidden_indices": {0: ANY},
        "past": [{0: ANY, 2: ANY}] * len(past),
    }
    if names := bias_names(traits):
        inputs["bias"] = [torch.zeros(num_sequences, 1, seq, seq) for _ in names]
        dynamic_axes["bias"] = [{0: ANY, 2: ANY, 3: ANY}] * len(names)
    if traits.num_deepstack:
        inputs["deepstack"] = torch.zeros(traits.num_deepstack, num_sequences, seq, hidden)
        dynamic_axes["deepstack"] = {1: ANY, 2: ANY}
    return inputs, dynamic_axes


def input_names(traits: DecoderTraits) -> list[str]:
    """Return the graph's inputs in the order of :meth:`SlotDecoder.forward`."""
    names = ["inputs_embeds", "position_ids", "seqlens_k", "total_sequence_length"]
    names += ["logits_indices", "hidden_indices"]
    names += [*(f"past_key_values.{name}" for name in _cache_names(traits))]
    names += bias_names(traits)
    return [*names, "deepstack"] if traits.num_deepstack else names


def output_names(traits: DecoderTraits) -> list[str]:
    """Return the graph's outputs in order."""
    return ["logits", "hidden_states", *(f"present.{name}" for name in _cache_names(traits))]


def bias_names(traits: DecoderTraits) -> list[str]:
    """Return the names of the masks that the runtime computes and passes in.

    Empty if the graph builds the masks. The second mask is for layers with a window.
    """
    if not traits.takes_bias:
        return []
    return ["attention_bias", "attention_bias_local"] if traits.window else ["attention_bias"]


def _cache_names(traits: DecoderTraits) -> Iterator[str]:
    for index in range(len(traits.layers)):
        yield f"{index}.key"
        yield f"{index}.value"


@contextmanager
def _prepared(
    parts: Parts, slot_attention: SlotAttention, layers: tuple[int, ...]
) -> Iterator[None]:
    """Patch the decoder and the exporters of torch for tracing; undo all patches afterwards."""

    def deepstack() -> torch.Tensor | None:
        return None if slot_attention.inputs is None else slot_attention.inputs.deepstack

    with ExitStack() as stack:
        stack.enter_context(replaced_attention(parts.decoder, slot_attention))
        stack.enter_context(dense_deepstack(parts.decoder, layers, deepstack))
        stack.enter_context(short_text_frequencies(parts.decoder))
        stack.enter_context(apply_patches("dynamo"))
        stack.enter_context(apply_patches("onnx"))
        yield
