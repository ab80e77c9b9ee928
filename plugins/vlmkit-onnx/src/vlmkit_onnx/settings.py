"""What a user can set for the engine and for the vision encoder. Imports nothing heavy."""

from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import CacheTokens, Gibibytes, Positive, SequenceTokens, Threads
from vlmkit_onnx.folder.manifest import Precision, TowerPrecision

# The patterns are in the config's JSON schema, too, where there is no \Z; and $ alone lets a line
# break pass at the end in Python.
Device = Annotated[
    str,
    Meta(
        pattern=r"^(auto|cpu|cuda(:[0-9]+)?)(?!\n)$",
        description="auto, cpu, cuda or a CUDA device with its number",
        examples=["cuda:1"],
    ),
]
Variant = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9_]{1,32}(?!\n)$",
        description="1 to 32 small letters, digits and '_'",
        examples=["q4"],
    ),
]


class ComputeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a model computes.

    Attributes:
        device: ``auto`` is the CPU; ``cuda`` or ``cuda:1`` needs a graph in half precision.
        num_threads: CPU threads of one computation, at most 1,024; None takes one for each core,
            and a single one for a graph with weights under 4 MiB.
        variant: which files of an onnx-community folder to take, such as ``q4`` or ``fp16``; None
            takes what runs best here.
    """

    device: Device = "auto"
    num_threads: Threads | None = None
    variant: Variant | None = None


class EncoderSettings(ComputeSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the vision encoder.

    Attributes:
        max_batch_images: most images computed in one call of the tower.
        precision: of the tower's linear layers; a safetensors checkpoint's is exported in it. None
            takes a graph as it is, and exports in ``w8a8`` for CPUs, if features stay near. Beside
            an engine whose ``precision`` is ``fp32``, which means all parts, it is ``fp32``.
    """

    max_batch_images: Positive = 8
    precision: TowerPrecision | None = None


class EngineSettings(ComputeSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the LLM engine.

    Attributes:
        precision: of the graphs; a safetensors checkpoint is exported in it. None takes graphs as
            they are, and exports in ``w8a8``, or with the integers of a quantized checkpoint.
        cache_tokens: tokens that the cache holds, 67,108,864 at most; None derives it from
            ``cache_gib``.
        cache_gib: memory for the cache. On a CUDA device, where it is set aside at once, the
            default of ``max_sequence_tokens`` follows from it.
        prefix_cache: whether computed prefixes are reused by later prompts.
        max_sequence_tokens: longest sequence, 16,777,216 at most; None is what the model was made
            for.
        max_sequences: most sequences with a slot in the cache.
        max_chunk_tokens: most tokens of a prompt in one step; while answers run, the scheduler's
            budget of time allows fewer. Parts that may not be cut are longer where they must be.
        self_check: at load, answer about three small pictures, and compare the vision tower with
            what it computed when it was exported.
    """

    precision: Precision | None = None
    cache_tokens: CacheTokens | None = None
    cache_gib: Gibibytes = 4.0
    prefix_cache: bool = True
    max_sequence_tokens: SequenceTokens | None = None
    max_sequences: Annotated[int, Meta(ge=1, le=256)] = 16
    max_chunk_tokens: Positive = 256
    self_check: bool = True
