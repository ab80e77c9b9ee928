"""The vision tower of a model and its projector in the library: layouts and features of images.

Uses the vocabulary of the model's file, and none of its weights. Does not know prompts.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError, EngineError, ImageError
from vlmkit_llama import declarations as c
from vlmkit_llama.context import Floats, Integers, last_error
from vlmkit_llama.files import ModelFiles
from vlmkit_llama.layout import ROW, ImageLayout, line
from vlmkit_llama.library import Library
from vlmkit_quantized import gguf_projector

MAX_SIDE = 2**16
BREAK_ROW = "v.token_embd.img_break"


class Projector:
    """A vision tower with its projector. ``layout`` may be called in several threads at once.

    Args:
        library: computes with it.
        files: of the model, checked.
        num_threads: CPU threads.
        is_exact: whether to compute without flash attention, which rounds to 16 bits.
        is_warmed_up: whether to encode an image now, so that the first request does not wait for
            memory.

    Attributes:
        file: the ``mmproj`` file.

    Raises:
        CheckpointError: the library cannot read a file, or there is no such file.
    """

    def __init__(
        self,
        library: Library,
        files: ModelFiles,
        *,
        num_threads: int,
        is_exact: bool,
        is_warmed_up: bool,
    ) -> None:
        if files.projector is None:
            raise CheckpointError(f"no 'mmproj' file lies beside {files.file.name!r}")
        self.file, self._width = files.projector, files.feature_size
        self._break_row = _break_row(self.file)
        self._library, self._media = library, library.media
        self._vocabulary = _load_vocabulary(library, files.file)
        made = self._media.mtmd_context_params_default()
        made.params.n_threads = num_threads
        made.params.print_timings = False
        made.params.warmup = is_warmed_up
        if is_exact:
            made.params.flash_attn_type = c.NO_FLASH_ATTENTION
        library.errors.clear()
        self._handle = self._media.mtmd_init_from_file(
            os.fsencode(self.file), self._vocabulary, made
        )
        if not self._handle or not self._media.mtmd_support_vision(self._handle):
            problem = last_error(library) if not self._handle else "it has no vision tower"
            self._free()
            raise CheckpointError(
                f"the library llama.cpp cannot load {self.file.name!r}: {problem}",
                hint="take the 'mmproj' file of this model, written by a current converter",
            )
        self._is_whole = bool(self._media.mtmd_decode_use_non_causal(self._handle, None))
        self.has_axes = bool(self._media.mtmd_decode_use_mrope(self._handle))
        self._users, self._is_closed, self._is_free = 0, False, threading.Condition()

    def layout(self, width: int, height: int) -> ImageLayout:
        """Return the tokens of an image by its size in pixels.

        Raises:
            ImageError: the library rejects the size.
            EngineError: the projector was closed.
        """
        with self._chunks(width, height, None) as chunks:
            return self._layout_of(list(chunks))

    def encode(self, pixels: NDArray[np.uint8]) -> Floats:
        """Return the features of an image ``[height, width, 3]``: ``[rows, hidden]``.

        Not for several threads at once.

        Raises:
            ImageError: the library rejects the image.
            EngineError: the projector was closed.
        """
        height, width = pixels.shape[:2]
        pixels = np.ascontiguousarray(pixels)
        found = []
        with self._chunks(width, height, pixels.ctypes.data) as chunks:
            for chunk in chunks:
                if self._media.mtmd_input_chunk_get_type(chunk) != c.IMAGE_CHUNK:
                    continue
                rows = self._encoded(chunk, width, height)
                if self._break_row is not None:
                    rows[np.isnan(rows).all(1)] = self._break_row
                found.append(rows)
        return np.concatenate(found) if len(found) != 1 else found[0]

    def _encoded(self, chunk: int, width: int, height: int) -> Floats:
        if self._media.mtmd_encode_chunk(self._handle, chunk):
            raise _refused(width, height)
        num = int(self._media.mtmd_input_chunk_get_n_tokens(chunk))
        rows = self._media.mtmd_get_output_embd(self._handle)
        return np.ctypeslib.as_array(rows, (num, self._width)).copy()

    def close(self) -> None:
        """Free the weights, as soon as no other thread uses them."""
        with self._is_free:
            self._is_closed = True
            self._is_free.wait_for(lambda: not self._users)
            self._free()

    def _free(self) -> None:
        if self._handle:
            self._media.mtmd_free(self._handle)
            self._handle = None
        if self._vocabulary:
            self._library.functions.llama_model_free(self._vocabulary)
            self._vocabulary = None

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._is_free:
            if self._is_closed:
                raise EngineError("the vision tower was closed")
            self._users += 1
        try:
            yield
        finally:
            with self._is_free:
                self._users -= 1
                self._is_free.notify_all()

    @contextmanager
    def _chunks(self, width: int, height: int, pixels: int | None) -> Iterator[Iterator[int]]:
        """Yield the parts of an image, which belong to the library; without pixels, by its size."""
        if not 0 < min(width, height) <= max(width, height) < MAX_SIDE:
            raise _refused(width, height)
        media = self._media
        marker = c.MEDIA_DEFAULTS["media_marker"]
        text = c.MediaText(marker, len(marker), add_special=False, parse_special=True)
        with self._used():
            bitmap = media.mtmd_bitmap_init(width, height, pixels)
            chunks = media.mtmd_input_chunks_init()
            try:
                if media.mtmd_tokenize(
                    self._handle, chunks, byref(text), byref(c_void_p(bitmap)), 1
                ):
                    raise _refused(width, height)
                num = media.mtmd_input_chunks_size(chunks)
                yield (media.mtmd_input_chunks_get(chunks, index) for index in range(num))
            finally:
                media.mtmd_input_chunks_free(chunks)
                media.mtmd_bitmap_free(bitmap)

    def _layout_of(self, chunks: list[int]) -> ImageLayout:
        token_ids: list[int] = []
        positions: list[Integers] = []
        spans: list[tuple[int, int]] = []
        position = 0
        for chunk in chunks:
            if self._media.mtmd_input_chunk_get_type(chunk) != c.IMAGE_CHUNK:
                known = [token for token in self._tokens(chunk) if token >= 0]
                token_ids += known
                positions.append(line(position, len(known)))
                position += len(known)
                continue
            num = int(self._media.mtmd_input_chunk_get_n_tokens(chunk))
            if self._is_whole:
                spans.append((len(token_ids), len(token_ids) + num))
            token_ids += [ROW] * num
            positions.append(self._positions(chunk, num) + np.int32(position))
            position += int(self._media.mtmd_input_chunk_get_n_pos(chunk))
        positions.append(line(position, 1))
        return ImageLayout(
            np.array(token_ids, np.int32),
            np.concatenate(positions),
            np.array(spans, np.int32).reshape(-1, 2),
        )

    def _tokens(self, chunk: int) -> list[int]:
        """Return the markers of a part of text; -1 for one that the vocabulary lacks."""
        num = c_size_t()
        found = self._media.mtmd_input_chunk_get_tokens_text(chunk, byref(num))
        return list(found[: num.value])

    def _positions(self, chunk: int, num: int) -> Integers:
        if not self.has_axes:
            return line(0, num)
        tokens = self._media.mtmd_input_chunk_get_tokens_image(chunk)
        place = self._media.mtmd_image_tokens_get_decoder_pos
        found = (place(tokens, 0, index) for index in range(num))
        return np.array([(each.t, each.y, each.x) for each in found], np.int32)


def _break_row(file: Path) -> Floats | None:
    """Return the row that the library adds after each row of an image of Pixtral; None for others.

    The library adds it to memory that nothing was written to, times zero. Where that memory holds
    no number, the result is none either, so such rows are replaced.
    """
    tensor = gguf_projector.read(file).tensors.get(BREAK_ROW)
    return None if tensor is None else tensor.floats().reshape(-1)


def _load_vocabulary(library: Library, file: Path) -> Any:
    """Load the vocabulary of a model, without its weights.

    Raises:
        CheckpointError: the library cannot read the file.
    """
    library.errors.clear()
    made = library.functions.llama_model_default_params()
    made.params.vocab_only = True
    handle = library.functions.llama_model_load_from_file(os.fsencode(file), made)
    if not handle:
        raise CheckpointError(
            f"the library llama.cpp cannot load {file.name!r}: {last_error(library)}"
        )
    return handle


def _refused(width: int, height: int) -> ImageError:
    return ImageError(f"the model's image processor cannot take an image of {width}x{height}")
