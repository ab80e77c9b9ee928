"""A model and its context in the library: cells of the cache, and batches of tokens.

Knows ids and positions, and neither sequences nor work items. Not for several threads at once.
"""

import functools
import os
from collections.abc import Sequence as Seq
from ctypes import (
    POINTER,
    c_float,
    c_int8,
    c_int32,
    c_uint8,
    cast as c_cast,
    create_string_buffer,
)
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError, EngineError, OutOfMemory
from vlmkit_llama import declarations as c
from vlmkit_llama.library import Library
from vlmkit_llama.settings import EngineSettings

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
FULL, NO_MEMORY = 1, -2
AXES, NUM_AXES = 3, 4  # that are used, and that the library reads


class Part(NamedTuple):
    """The next tokens of one sequence, or rows of features in their place.

    Attributes:
        seq_id: the library's id of the sequence.
        positions: ``[tokens]`` of tokens; ``[tokens, 3]`` of rows, on each axis.
        tokens: their ids, or the rows ``[tokens, hidden]``.
        num_rows: how many of the last tokens have a row of results.
        is_whole: whether the tokens attend to each other in both directions.
    """

    seq_id: int
    positions: Integers
    tokens: Seq[int] | Floats
    num_rows: int
    is_whole: bool = False

    @property
    def has_features(self) -> bool:
        """Whether it has rows of features in place of tokens."""
        return isinstance(self.tokens, np.ndarray)


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
                f"the library llama.cpp cannot load {file.name!r}: {last_error(library)}",
                hint='engine.use = "torch" reads some other files',
            )
        if reason := self._unsupported():
            functions.llama_model_free(self.handle)
            raise CheckpointError(f"{file.name!r} {reason}, which the engine llama does not run")

    @functools.cached_property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        functions = self.library.functions
        return int(functions.llama_vocab_n_tokens(functions.llama_model_get_vocab(self.handle)))

    @functools.cached_property
    def has_windows(self) -> bool:
        """Whether layers attend to the last tokens only."""
        return int(self.library.functions.llama_model_n_swa(self.handle)) > 0

    @functools.cached_property
    def is_recurrent(self) -> bool:
        """Whether layers have a state of all earlier tokens."""
        functions = self.library.functions
        return bool(
            functions.llama_model_is_recurrent(self.handle)
            or functions.llama_model_is_hybrid(self.handle)
        )

    @functools.cached_property
    def has_axes(self) -> bool:
        """Whether a position has a time, a row and a column."""
        return int(self.library.functions.llama_model_rope_type(self.handle)) in c.ROPE_WITH_AXES

    @functools.cached_property
    def feature_size(self) -> int:
        """Columns of the features of images."""
        return int(self.library.functions.llama_model_n_embd_inp(self.handle))

    @functools.cached_property
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
        if functions.llama_model_has_encoder(self.handle):
            return "has an encoder of texts"
        return "is a diffusion model" if functions.llama_model_is_diffusion(self.handle) else ""


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
        params.n_ubatch = params.n_batch  # a whole image in one computation
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
        self._batch = _Batch(self.max_batch_tokens, NUM_AXES if model.has_axes else 1)
        self._has_states = False

    @property
    def num_tokens(self) -> int:
        """Cells of the cache; the library rounds up what was asked for."""
        return int(self._functions.llama_n_ctx(self._handle))

    def copy(self, source: int, target: int, start: int, stop: int = -1) -> None:
        """Let a sequence refer to cells of another one, of positions ``[start, stop)``.

        -1 is the end. The state of a recurrent layer is that of the end, from wherever.
        """
        self._functions.llama_memory_seq_cp(self._memory, source, target, start, stop)

    def remove(self, seq_id: int, start: int, stop: int = -1) -> None:
        """Remove a sequence from its cells of positions ``[start, stop)``; -1 is the end.

        Raises:
            EngineError: the library cannot.
        """
        if not self._functions.llama_memory_seq_rm(self._memory, seq_id, start, stop):
            raise EngineError("the library llama.cpp cannot remove tokens from its cache")

    def save(self, seq_id: int) -> bytearray:
        """Return what the cells of a sequence hold.

        Raises:
            MemoryError: there is too little memory.
            EngineError: the library cannot.
        """
        size = self.state_bytes(seq_id)
        saved = bytearray(size)
        view = (c_uint8 * size).from_buffer(saved)
        if self._functions.llama_state_seq_get_data(self._handle, view, size, seq_id) != size:
            raise EngineError("the library llama.cpp cannot save tokens of its cache")
        return saved

    def load(self, seq_id: int, saved: bytearray) -> None:
        """Give a sequence without cells those that :meth:`save` returned.

        Raises:
            EngineError: the library cannot, such as for lack of free cells.
        """
        view = (c_uint8 * len(saved)).from_buffer(saved)
        if not self._functions.llama_state_seq_set_data(self._handle, view, len(saved), seq_id):
            raise EngineError("the library llama.cpp cannot restore saved tokens in its cache")

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
            parts: the tokens, at most one part for each sequence; all of tokens or all of
                features. A whole part comes alone.
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
        num_rows = self._batch.fill(parts)
        is_whole = any(part.is_whole for part in parts)
        if is_whole:
            self._functions.llama_set_causal_attn(self._handle, False)
        code = self._functions.llama_decode(self._handle, self._batch.value)
        if is_whole:
            self._functions.llama_set_causal_attn(self._handle, True)
        if code == NO_MEMORY:
            raise OutOfMemory("this step")
        if code:
            what = "has no room for the tokens" if code == FULL else f"failed with code {code}"
            raise EngineError(f"the library llama.cpp {what}")
        if has_states:  # each token has one
            pointer = self._functions.llama_get_embeddings(self._handle)
            wanted = self._batch.wanted
            shape = (len(wanted), self._model.hidden_size)
            return np.ctypeslib.as_array(pointer, shape)[wanted]
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
        num_axes: numbers in the position of a row of features; the library keeps a fourth one.

    Attributes:
        value: what the library reads.
    """

    def __init__(self, num_tokens: int, num_axes: int) -> None:
        self._tokens = np.zeros(num_tokens, np.int32)
        self._token_pointer = _pointer(self._tokens, c_int32)
        self._positions = np.zeros(num_axes * num_tokens, np.int32)
        self._ids = np.zeros(num_tokens, np.int32)
        self._rows = np.zeros(num_tokens, np.int8)
        self._num_ids = np.ones(num_tokens, np.int32)
        self._num_axes = num_axes
        self._features: Floats | None = None
        size = self._ids.itemsize
        self._places = self._ids.ctypes.data + size * np.arange(num_tokens, dtype=np.uintp)
        self.value = c.Batch(
            pos=_pointer(self._positions, c_int32),
            n_seq_id=_pointer(self._num_ids, c_int32),
            seq_id=_pointer(self._places, POINTER(c_int32)),
            logits=_pointer(self._rows, c_int8),
        )

    @property
    def wanted(self) -> NDArray[np.bool_]:
        """Which tokens have rows."""
        found: NDArray[np.bool_] = self._rows[: self.value.n_tokens] != 0
        return found

    def fill(self, parts: Seq[Part]) -> int:
        """Write parts into it; return their number of rows."""
        end = 0
        for part in parts:
            begin, end = end, end + len(part.tokens)
            self._ids[begin:end] = part.seq_id
            self._rows[begin:end] = 0
            self._rows[end - part.num_rows : end] = 1
        self.value.n_tokens = end
        if parts and parts[0].has_features:
            self._take_features(parts, end)
        else:
            self._take_tokens(parts)
        return sum(part.num_rows for part in parts)

    def _take_tokens(self, parts: Seq[Part]) -> None:
        end = 0
        for part in parts:
            begin, end = end, end + len(part.tokens)
            self._tokens[begin:end] = part.tokens
            self._positions[begin:end] = part.positions
        self.value.token = self._token_pointer
        self.value.embd = None

    def _take_features(self, parts: Seq[Part], num: int) -> None:
        """Write rows, and their positions axis by axis."""
        rows = [np.asarray(part.tokens, np.float32) for part in parts]
        self._features = np.ascontiguousarray(rows[0] if len(rows) == 1 else np.concatenate(rows))
        positions = np.concatenate([part.positions for part in parts])
        axes = self._positions[: self._num_axes * num].reshape(self._num_axes, num)
        axes[:AXES] = positions.T[: self._num_axes]
        axes[AXES:] = 0
        self.value.token = None
        self.value.embd = _pointer(self._features, c_float)


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return c_cast(array.ctypes.data, POINTER(kind))


def last_error(library: Library) -> str:
    """Return the error message of the library from which others follow."""
    return library.errors[0] if library.errors else "it does not say why"
