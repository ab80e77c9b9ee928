"""The cache inputs and outputs of a decoder graph, and what a slot stores for them.

Derived from the graph's declarations, for every driver. The drivers run the graph.
"""

from collections.abc import Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit_onnx.folder.layout import DecoderGraph
from vlmkit_onnx.sessions.node_types import FLOATS
from vlmkit_onnx.slots.memory import SlotMemory, StateShape

MAX_LAYERS = 1024


def cache_pairs(
    graph: DecoderGraph, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> dict[str, str]:
    """Return the cache's outputs by its inputs, layer by layer, key before value.

    Args:
        graph: states their names.
        inputs: of the graph, by name.
        outputs: of the graph, by name.

    Raises:
        CheckpointError: one of them is missing.
    """
    pairs: dict[str, str] = {}
    for layer in range(MAX_LAYERS):
        if graph.past_key % layer not in inputs:
            break
        pairs[graph.past_key % layer] = graph.present_key % layer
        pairs[graph.past_value % layer] = graph.present_value % layer
    if not pairs:
        raise CheckpointError(f"{graph.file.name!r} has no input {graph.past_key % 0!r}")
    for past, present in pairs.items():
        if past not in inputs:
            raise CheckpointError(f"{graph.file.name!r} has no input {past!r}")
        if present not in outputs:
            raise CheckpointError(f"{graph.file.name!r} has no output {present!r}")
    return pairs


def cache_state(graph: DecoderGraph, node: Any) -> StateShape:
    """Return what a slot stores for one cache input.

    Args:
        graph: may state the width of a key if the input does not.
        node: the input, from a session.

    Raises:
        CheckpointError: it is not a cache of floats that grows by tokens, or its size is unknown.
    """
    if node.type not in FLOATS or len(node.shape) != 4 or isinstance(node.shape[2], int):
        raise CheckpointError(
            f"input {node.name!r} of {graph.file.name!r} is {node.type} {node.shape}, expected "
            "floats [batch, heads, tokens, width] of any number of tokens"
        )
    num_heads, width = node.shape[1], node.shape[3]
    width = width if isinstance(width, int) else graph.head_dim
    if not isinstance(num_heads, int) or width is None or num_heads < 1 or width < 1:
        raise CheckpointError(
            f"input {node.name!r} of {graph.file.name!r} does not say how many heads there are, or "
            "how wide they are"
        )
    return StateShape((num_heads, 0, width), FLOATS[node.type])


def cached_token_bytes(
    graph: DecoderGraph, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> int:
    """Return the bytes that one token takes in the caches of all layers; arguments as above.

    Raises:
        CheckpointError: as for the functions above.
    """
    pairs = cache_pairs(graph, inputs, outputs)
    return sum(cache_state(graph, inputs[name]).token_bytes for name in pairs)


def bind_cache(
    binding: Any, pairs: Mapping[str, str], memory: SlotMemory, first_slot: int, num_slots: int
) -> None:
    """Bind the cache of adjacent slots as inputs and as outputs."""
    for past, present in pairs.items():
        location = memory.location(past, first_slot, num_slots)
        binding.bind_input(past, *location)
        binding.bind_output(present, *location)
