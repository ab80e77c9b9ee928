"""Embeddings from a token table that stays on disk.

The file is mapped, not loaded. Rows are converted on demand.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit.kit.safetensors_header import StoredTensor, read_header
from vlmkit_onnx.folder.layout import TokenTable

Floats = NDArray[np.float32]
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


class Embeddings(Protocol):
    """Turns token ids into rows."""

    def __call__(self, token_ids: NDArray[np.int64]) -> Floats:
        """Return ``[n, hidden]`` for ids ``[n]``."""
        ...


class TableEmbeddings:
    """Rows of a safetensors tensor ``[vocab, hidden]``.

    Args:
        table: its file and tensor.

    Raises:
        CheckpointError: the table is absent, or not a matrix of floats.
    """

    def __init__(self, table: TokenTable) -> None:
        self._scale = np.float32(table.scale)
        try:
            header, first_byte = read_header(table.file)
            tensor = header[table.tensor]
            self._is_bfloat = tensor.dtype == "BF16"
            self._rows = _map(table, DTYPES[tensor.dtype], tensor, first_byte)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{table.file.name!r} holds no table {table.tensor!r} of embeddings",
                hint="export the model again: vlmkit export MODEL DIR",
            ) from error

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens and width."""
        return self._rows.shape[0], self._rows.shape[1]

    def __call__(self, token_ids: NDArray[np.int64]) -> Floats:
        """Return ``[n, hidden]`` for ids ``[n]``."""
        rows = self._rows[token_ids]
        if self._is_bfloat:  # the upper half of a float32
            rows = (rows.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(rows, np.float32) * self._scale


def _map(
    table: TokenTable, dtype: np.dtype[Any], tensor: StoredTensor, first_byte: int
) -> NDArray[Any]:
    num_rows, width = tensor.shape
    if min(num_rows, width) < 1:
        raise ValueError(tensor.shape)
    start, _ = tensor.data_offsets
    # A plain array over the map: indexing a memmap is slower.
    return np.asarray(np.memmap(table.file, dtype, "r", first_byte + start, (num_rows, width)))
