"""What a user can set for the engine and for the vision encoder. Nothing here imports torch."""

from typing import Literal

import msgspec

from vlmkit.settings.bounds import (
    CacheTokens,
    Fraction,
    Gibibytes,
    Positive,
    Sequences,
    SequenceTokens,
    Threads,
)

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
CacheDtype = Literal["auto", "int8"]
QuantizedLayers = Literal["auto", "packed", "dense"]
Rounding = Literal["int8", "int4"]
RoundedPart = Literal["head", "tower"]


class ComputeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and how precisely a model computes; engine and encoder share one copy if equal.

    Attributes:
        device: ``auto`` takes cuda, then mps, then cpu; or a name such as ``cuda:1``.
        dtype: ``auto`` is the checkpoint's own; on a CPU, the fastest that keeps it and fits into
            memory: float32 for a bfloat16 checkpoint on a CPU without units for bfloat16.
        weights: name of the reader of quantized weights; ``auto`` takes the preferred one that can
            read the checkpoint. Other plugins may offer some.
        num_threads: CPU threads that torch may use, for the whole process, 1,024 at most;
            None leaves it alone.
    """

    device: str = "auto"
    dtype: Dtype = "auto"
    weights: str = "auto"
    num_threads: Threads | None = None


class EncoderSettings(ComputeSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the vision encoder.

    Attributes:
        max_batch_images: most images computed in one call of the tower.
    """

    max_batch_images: Positive = 8


class EngineSettings(ComputeSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the LLM engine.

    Attributes:
        cache_tokens: tokens that the cache holds, 67,108,864 at most; None derives it from
            ``cache_gib``.
        cache_gib: memory for the cache; None takes a part of what is free. A CPU's is resident only
            where tokens were written.
        memory_fraction: on a CUDA device, the part of the memory that is free after the weights
            were read, for cache, steps and image batches. The largest step and image batch are
            computed once at load; the cache gets what they leave. ``cache_tokens`` and
            ``cache_gib`` state the cache instead.
        cache_dtype: precision of keys and values; ``auto`` is the model's. ``int8`` stores 8 bits,
            with a scale for each token, head and layer: about twice the tokens of half precision
            in the same memory. Answers change a little. Recurrent states, and rows of images for
            cross-attention, keep the model's precision.
        block_tokens: tokens in a cache block; prefixes are shared in multiples of it.
        prefix_cache: whether computed prefixes are reused by later prompts.
        max_sequence_tokens: longest sequence, 16,777,216 at most; None is what the checkpoint was
            made for, and where longer sequences are rotated otherwise, what it was first made for.
        max_sequences: most sequences with room in the cache, 65,536 at most.
        max_chunk_tokens: most tokens of one sequence in one step; an image block that may not be
            cut has to fit.
        packed_weights: on a CPU, bring linear layers into the layout that small batches read
            fastest, one group a step, once two sequences were served.
        quantized_layers: form of the linear layers of a quantized checkpoint. ``dense`` expands
            them. On a CPU, ``packed`` keeps integers of 2 to 8 bits where one of torch's operators
            can hold them, in bfloat16. ``auto`` packs what is faster so, of models in bfloat16. On
            a CUDA device, ``packed`` keeps them for a Triton kernel, which is compared with dense
            weights at load; ``auto`` expands them.
        quantize: round the linear layers of a plain checkpoint while they are read, one at a time:
            ``int8`` with a scale for each output, or ``int4`` in groups of 128. Embedding, head,
            image tower, projector and experts stay plain. Layers stay packed: on a CPU in bfloat16,
            and on a CUDA device with ``quantized_layers = "packed"``. ``"dense"`` expands them.
        quantize_also: parts whose linear layers are rounded, too: ``head``, and ``tower`` for image
            tower and projector.
        attention: name of the attention backend; ``auto`` takes the preferred one for each form of
            layer. Other plugins may offer some.
        cuda_graphs: on a CUDA device, repeat decode steps of similar size as one CUDA graph, which
            is compared with the step without it first. Models with recurrent layers, and with
            layers that attend to images, have none.
        overlap_steps: on a CUDA device, start the next step of decodes before the tokens of the
            last one are read. Models with recurrent layers do not.
        compile: compute decode steps by code of ``torch.compile``, which needs a compiler on this
            machine and takes seconds to minutes. It is compared with the model as it is first.
            Weights stay unpacked on a CPU. Models with recurrent layers, and with layers that
            attend to images, have none.
        self_check: at load, compare paged and chunked computation with the plain model, of a text
            and of two small pictures. A cache of 8 bits is compared less strictly, with the text.
    """

    cache_tokens: CacheTokens | None = None
    cache_gib: Gibibytes | None = None
    memory_fraction: Fraction = 0.9
    cache_dtype: CacheDtype = "auto"
    block_tokens: Positive = 16
    prefix_cache: bool = True
    max_sequence_tokens: SequenceTokens | None = None
    max_sequences: Sequences = 64
    max_chunk_tokens: Positive = 2048
    packed_weights: bool = True
    quantized_layers: QuantizedLayers = "auto"
    quantize: Rounding | None = None
    quantize_also: tuple[RoundedPart, ...] = ()
    attention: str = "auto"
    cuda_graphs: bool = True
    overlap_steps: bool = True
    compile: bool = False
    self_check: bool = True

    @property
    def states_cache(self) -> bool:
        """Whether the size of the cache is stated."""
        return self.cache_tokens is not None or self.cache_gib is not None

    @property
    def packs_weights(self) -> bool:
        """Whether weights may be packed while sequences are served; code would be compiled anew."""
        return self.packed_weights and not self.compile

    @property
    def has_int8_cache(self) -> bool:
        """Whether keys and values are stored in 8 bits."""
        return self.cache_dtype == "int8"
