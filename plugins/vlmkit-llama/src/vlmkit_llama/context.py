"""A model and its context in the library: cells of the cache, and batches of tokens.

Knows ids and positions, and neither sequences nor work items. Not for several threads at once.
"""

import os
from collections.abc import Sequence as Seq
from ctypes import POINTER, c_int8, c_int32, cast as c_cast, create_string_buffer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError, EngineError, OutOfMemory
from vlmkit_llama import declarations as c
from vlmkit_llama.library import Library
from vlmkit_llama.settings import EngineSettings

Floats = NDArray[np.float32]
FULL, NO_MEMORY = 1, -2


class Part(NamedTuple):
    """The next tokens of one sequence.

    Attributes:
        seq_id: the library's id of the sequence.
        start: position of the first token.
        token_ids: the tokens.
        num_rows: how many of the last tokens have a row of results.
    """

    seq_id: int
    start: int
    token_ids: Seq[int]
    num_rows: int


class LoadedModel:
    """The weights of a file.

    Args:
        library: computes with them.
        file: the GGUF file.

    Raises:
        CheckpointError: the library cannot read the file, or the model is of an unsupported kind.
    """

    def __init__(self, library: Library, file: Path) -> None:
        self.library = library
        functions = library.functions
        library.errors.clear()
        params = functions.llama_model_default_params()
        self.handle = functions.llama_model_load_from_file(os.fsencode(file), params)
        if not self.handle:
            raise CheckpointError(
                f"the library llama.cpp cannot load {file.name!r}: {_last_error(library)}",
                hint='engine.use = "torch" reads some other files',
            )
        if reason := self._unsupported():
            functions.llama_model_free(self.handle)
            raise CheckpointError(f"{file.name!r} {reason}, which the engine llama does not run")

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        functions = self.library.functions
        return int(functions.llama_vocab_n_tokens(functions.llama_model_get_vocab(self.handle)))

    @property
    def has_windows(self) -> bool:
        """Whether layers attend to the last tokens only."""
        return int(self.library.functions.llama_model_n_swa(self.handle)) > 0

    @property
    def hidden_size(self) -> int:
        """Columns of the hidden states."""
        return int(self.library.functions.llama_model_n_embd_out(self.handle))

    @property
    def description(self) -> str:
        """Architecture, size and types, such as ``qwen2 0.5B Q8_0``."""
        text = create_string_buffer(128)
        self.library.functions.llama_model_desc(self.handle, text, len(text))
        return text.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Free the weights."""
        self.library.functions.llama_model_free(self.handle)

    def _unsupported(self) -> str:
        functions = self.library.functions
        kinds = {
            "has recurrent layers": ("llama_model_is_recurrent", "llama_model_is_hybrid"),
            "has an encoder of texts": ("llama_model_has_encoder",),
            "is a diffusion model": ("llama_model_is_diffusion",),
        }
        found = (why for why, names in kinds.items() if self._is_any(functions, names))
        return next(found, "")

    def _is_any(self, functions: Any, names: tuple[str, ...]) -> bool:
        return any(getattr(functions, name)(self.handle) for name in names)


class Context:
    """The cache of a model, and its computation.

    Args:
        model: the weights.
        settings: of the engine.
        num_tokens: cells of the cache.
        num_ids: ids of sequences, each below this number.
        num_threads: CPU threads.

    Raises:
        OutOfMemory: there is too little memory for the cache.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: EngineSettings,
        num_tokens: int,
        num_ids: int,
        num_threads: int,
    ) -> None:
        self._model, self._functions = model, model.library.functions
        made = self._functions.llama_context_default_params()
        params = made.params
        params.n_ctx, params.n_seq_max = num_tokens, num_ids
        params.n_batch = max(params.n_ubatch, settings.max_chunk_tokens, settings.max_sequences)
        params.n_threads = params.n_threads_batch = num_threads
        params.type_k = params.type_v = c.TYPES[settings.cache_dtype]
        if settings.cache_dtype == "f32":  # flash attention rounds keys and values to 16 bits
            params.flash_attn_type = c.NO_FLASH_ATTENTION
        params.kv_unified = True  # otherwise no prefix can be shared without a copy
        params.pooling_type = c.NO_POOLING  # a file may name another one, for its embeddings
        self._handle = self._functions.llama_init_from_model(model.handle, made)
        if not self._handle:
            raise OutOfMemory(f"a cache of {num_tokens} tokens")
        self._memory = self._functions.llama_get_memory(self._handle)
        self.max_batch_tokens = int(self._functions.llama_n_batch(self._handle))
        self._batch = _Batch(self.max_batch_tokens)
        self._has_states = False

    @property
    def num_tokens(self) -> int:
        """Cells of the cache; the library rounds up what was asked for."""
        return int(self._functions.llama_n_ctx(self._handle))

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Let a sequence refer to cells of another one, of positions ``[start, stop)``."""
        self._functions.llama_memory_seq_cp(self._memory, source, target, start, stop)

    def remove(self, seq_id: int, start: int, stop: int = -1) -> None:
        """Remove a sequence from its cells of positions ``[start, stop)``; -1 is the end.

        Raises:
            EngineError: the library cannot.
        """
        if not self._functions.llama_memory_seq_rm(self._memory, seq_id, start, stop):
            raise EngineError("the library llama.cpp cannot remove tokens from its cache")

    def positions(self, seq_id: int) -> tuple[int, int]:
        """Return the first and the last position in the cache of a sequence; -1 without any."""
        return (
            int(self._functions.llama_memory_seq_pos_min(self._memory, seq_id)),
            int(self._functions.llama_memory_seq_pos_max(self._memory, seq_id)),
        )

    def state_bytes(self, seq_id: int) -> int:
        """Return the size of a saved state of a sequence, which grows with its cells."""
        return int(self._functions.llama_state_seq_get_size(self._handle, seq_id))

    def compute(self, parts: Seq[Part], *, has_states: bool = False) -> Floats:
        """Compute at most ``max_batch_tokens`` tokens, and return the rows in their order.

        Args:
            parts: the tokens, at most one part for each sequence.
            has_states: return hidden states and not logits.

        Returns:
            ``[rows, vocab]`` or ``[rows, hidden]``. The memory is the library's, until the next
            call.

        Raises:
            OutOfMemory: there is too little memory.
            EngineError: the library rejects the batch.
        """
        if has_states != self._has_states:
            self._functions.llama_set_embeddings(self._handle, has_states)
            self._has_states = has_states
        wanted = self._batch.fill(parts)
        code = self._functions.llama_decode(self._handle, self._batch.value)
        if code == NO_MEMORY:
            raise OutOfMemory("this step")
        if code:
            what = "has no room for the tokens" if code == FULL else f"failed with code {code}"
            raise EngineError(f"the library llama.cpp {what}")
        if has_states:  # each token has one
            pointer = self._functions.llama_get_embeddings(self._handle)
            shape = (len(wanted), self._model.hidden_size)
            return np.ctypeslib.as_array(pointer, shape)[wanted]
        num_rows = int(wanted.sum())
        if not num_rows:
            return np.empty((0, self._model.vocab_size), np.float32)
        pointer = self._functions.llama_get_logits(self._handle)
        return np.ctypeslib.as_array(pointer, (num_rows, self._model.vocab_size))

    def close(self) -> None:
        """Free the cache."""
        self._functions.llama_free(self._handle)


class _Batch:
    """The memory of one batch.

    Args:
        num_tokens: the most tokens of it.

    Attributes:
        value: what the library reads.
    """

    def __init__(self, num_tokens: int) -> None:
        self._tokens = np.zeros(num_tokens, np.int32)
        self._positions = np.zeros(num_tokens, np.int32)
        self._ids = np.zeros(num_tokens, np.int32)
        self._rows = np.zeros(num_tokens, np.int8)
        self._num_ids = np.ones(num_tokens, np.int32)
        size = self._ids.itemsize
        self._places = self._ids.ctypes.data + size * np.arange(num_tokens, dtype=np.uintp)
        self.value = c.Batch(
            token=_pointer(self._tokens, c_int32),
            pos=_pointer(self._positions, c_int32),
            n_seq_id=_pointer(self._num_ids, c_int32),
            seq_id=_pointer(self._places, POINTER(c_int32)),
            logits=_pointer(self._rows, c_int8),
        )

    def fill(self, parts: Seq[Part]) -> NDArray[np.bool_]:
        """Write tokens into it; return which of them have rows."""
        end = 0
        for part in parts:
            begin, end = end, end + len(part.token_ids)
            self._tokens[begin:end] = part.token_ids
            self._positions[begin:end] = np.arange(part.start, part.start + end - begin)
            self._ids[begin:end] = part.seq_id
            self._rows[begin:end] = 0
            self._rows[end - part.num_rows : end] = 1
        self.value.n_tokens = end
        wanted: NDArray[np.bool_] = self._rows[:end] != 0
        return wanted


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return c_cast(array.ctypes.data, POINTER(kind))


def _last_error(library: Library) -> str:
    return library.errors[0] if library.errors else "it does not say why"
