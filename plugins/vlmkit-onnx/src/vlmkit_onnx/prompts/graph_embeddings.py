"""Embeddings by a graph from token ids to rows, for models whose exporter wrote such a graph.

Merges no image rows, even if the graph could; the engine does.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit_onnx.sessions.node_types import FLOATS, INTEGERS
from vlmkit_onnx.sessions.runtime import onnxruntime

ROWS = ("image_features", "audio_features")  # optional inputs, which stay empty
PLAIN_TOKEN = 0


class GraphEmbeddings:
    """Looks up embeddings with a graph.

    Args:
        session: of the graph.
        names: the graph's names of inputs and outputs that differ from ``input_ids``,
            ``inputs_embeds`` and ``image_features``.
        image_token: the placeholder of an image, which is never passed to the graph.

    Raises:
        CheckpointError: the graph needs other inputs, or returns no rows of a fixed width.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        names: Mapping[str, str],
        image_token: int | None = None,
    ) -> None:
        self._session = session
        self._image_token = image_token
        self._output = names.get("inputs_embeds", "inputs_embeds")
        outputs = {node.name: node for node in session.get_outputs()}
        node = outputs.get(self._output)
        width = node.shape[-1] if node is not None and len(node.shape) == 3 else None
        if node is None or node.type not in FLOATS or not isinstance(width, int):
            raise CheckpointError(
                f"a graph of embeddings has no output {self._output!r} of rows of a fixed width"
            )
        self.hidden_size = width
        inputs = {node.name: node for node in session.get_inputs()}
        ids = inputs.pop(names.get("input_ids", "input_ids"), None)
        if ids is None or ids.type not in INTEGERS or len(ids.shape) != 2:
            raise CheckpointError("a graph of embeddings takes no token ids [batch, tokens]")
        self._input, self._id_dtype = ids.name, INTEGERS[ids.type]
        known = {names.get(word, word) for word in ROWS}
        for name, row in inputs.items():
            if name not in known or row.type not in FLOATS:
                raise CheckpointError(f"a graph of embeddings needs {name!r}, which is not known")
        self._no_rows = {
            name: np.zeros(_empty(row.shape, width), FLOATS[row.type])
            for name, row in inputs.items()
        }

    def __call__(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return ``[n, hidden]`` for ids ``[n]``; arbitrary rows for placeholders of images."""
        if self._image_token is not None:
            token_ids = np.where(token_ids == self._image_token, PLAIN_TOKEN, token_ids)
        feeds = {self._input: token_ids[None].astype(self._id_dtype), **self._no_rows}
        (rows,) = self._session.run([self._output], feeds)
        return np.asarray(rows[0], np.float32)

    def close(self) -> None:
        """Release the graph."""
        del self._session


def _empty(shape: list[int | str | None], width: int) -> tuple[int, ...]:
    """Return the shape of an array without rows; the last axis is their width."""
    sizes = [axis if isinstance(axis, int) else 0 for axis in shape[:-1]]
    last = shape[-1] if shape else width
    return (*sizes, last if isinstance(last, int) else width)
