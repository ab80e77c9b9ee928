"""What a user can set for the engine. Imports nothing heavy."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import CacheTokens, Gibibytes, Positive, SequenceTokens, Threads
from vlmkit.settings.paths import InputFile


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the LLM engine.

    Attributes:
        library: the file of the library, ``libllama.so``, ``libllama.dylib`` or ``llama.dll``, of a
            build of llama.cpp. Empty takes that of the package xllamacpp.
        num_threads: CPU threads of one computation, at most 1,024; None takes one for each core.
        cache_tokens: tokens that the cache holds, 67,108,864 at most; None derives it from
            ``cache_gib``. It is rounded up to a multiple of 256.
        cache_gib: memory for the cache and for recurrent states, which is allocated at load.
            Prefixes of ended sequences take at most as much again.
        cache_dtype: precision of keys and values. ``f32`` takes twice the memory, and computes
            without flash attention, which rounds to 16 bits.
        prefix_cache: whether computed prefixes are reused by later prompts; never if layers have a
            window or a recurrent state.
        max_sequence_tokens: longest sequence, 16,777,216 at most; None is what the model was made
            for.
        max_sequences: most sequences with room in the cache, 128 at most.
        max_chunk_tokens: most tokens of a prompt in one step.
    """

    library: InputFile = ""
    num_threads: Threads | None = None
    cache_tokens: CacheTokens | None = None
    cache_gib: Gibibytes = 2.0
    cache_dtype: Literal["f16", "f32"] = "f16"
    prefix_cache: bool = True
    max_sequence_tokens: SequenceTokens | None = None
    max_sequences: Annotated[int, Meta(ge=1, le=128)] = 16
    max_chunk_tokens: Positive = 512


class EncoderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the media encoder.

    Attributes:
        num_threads: CPU threads of one computation, at most 1,024; None takes those of the engine.
    """

    num_threads: Threads | None = None


class TokenizerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the tokenizer of models with images.

    Attributes:
        chat_template: path of a Jinja file to use in place of the chat template of the file.
        library: the file of the library; empty takes that of the engine. Processes that prepare
            prompts have no engine: set it for them.
    """

    chat_template: InputFile | None = None
    library: InputFile = ""
