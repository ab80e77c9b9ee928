"""Inputs and outputs of decoder graphs of other exporters, without the cache.

Two drivers share it, and differ in how the cache is stored. A graph with an unlisted input, such as
a state of fixed size, is refused when it loads.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit_onnx.decoders.cache_nodes import cache_pairs, cache_state
from vlmkit_onnx.decoders.decoder import DecoderSpec, Floats, Tokens
from vlmkit_onnx.folder.layout import DecoderGraph
from vlmkit_onnx.sessions.node_types import BOOLEANS, FLOATS, INTEGERS, Dtypes
from vlmkit_onnx.sessions.runtime import onnxruntime

NUM_DIMENSIONS = {
    "input_ids": (2,),
    "inputs_embeds": (3,),
    "attention_mask": (2,),
    "position_ids": (2, 3),
    "num_logits_to_keep": (0, 1),
    "use_cache_branch": (0, 1),
}
"""Known inputs besides the cache, by vlmkit's names, with their numbers of axes."""
TYPES: dict[str, Dtypes] = {"inputs_embeds": FLOATS, "use_cache_branch": BOOLEANS}

Feeds = dict[str, NDArray[Any]]


class ForeignDecoder:
    """The inputs and outputs of a decoder graph.

    Args:
        graph: states their names.
        session: of the graph.

    Attributes:
        spec: the declarations of the graph.
        states: what a slot stores, by the names of the cache inputs.
        present: the outputs that hold the new cache, by the names of the inputs.
        logits: the name of the output with the logits.
        logits_dtype: of its numbers.

    Raises:
        CheckpointError: an input is unknown or missing, or an array has an unexpected shape.
    """

    def __init__(self, graph: DecoderGraph, session: onnxruntime.InferenceSession) -> None:
        self._file = graph.file.name
        self._names = dict(graph.names)
        self._inputs = {node.name: node for node in session.get_inputs()}
        self._outputs = {node.name: node for node in session.get_outputs()}
        self.present = cache_pairs(graph, self._inputs, self._outputs)
        self.states = {name: cache_state(graph, self._inputs[name]) for name in self.present}
        self.logits = self._names.get("logits", "logits")
        self._refuse_uneven()
        self._refuse_unknown()
        self.spec = self._spec()
        self.logits_dtype = FLOATS[self._outputs[self.logits].type]

    def takes(self, word: str) -> bool:
        """Return whether the graph has an input, by vlmkit's name."""
        return self._names.get(word, word) in self._inputs

    def feeds(self, tokens: Tokens, mask: NDArray[np.bool_], *, has_past: bool) -> Feeds:
        """Return all inputs except the cache.

        Args:
            tokens: the new tokens, ``[rows, seq]``.
            mask: ``[rows, past + seq]``, true for tokens of the row.
            has_past: whether any row has a token in the cache.
        """
        made: dict[str, Any] = {"attention_mask": mask}
        if self.spec.takes_embeddings:
            made["inputs_embeds"] = tokens.embeddings
        else:
            made["input_ids"] = tokens.ids
        axes = self.spec.num_position_axes
        if axes:
            made["position_ids"] = tokens.positions if axes == 3 else tokens.positions[0]
        if self.takes("num_logits_to_keep"):
            made["num_logits_to_keep"] = np.ones(self._num_axes("num_logits_to_keep") * (1,))
        if self.takes("use_cache_branch"):
            made["use_cache_branch"] = np.full(self._num_axes("use_cache_branch") * (1,), has_past)
        return {self._names.get(word, word): self._cast(word, made[word]) for word in made}

    def last_row(self, logits: NDArray[Any]) -> Floats:
        """Return a copy of each row's last logits, ``[rows, vocab]``."""
        return logits[:, -1].astype(np.float32)

    def _cast(self, word: str, array: NDArray[Any]) -> NDArray[Any]:
        node = self._inputs[self._names.get(word, word)]
        return np.ascontiguousarray(array, TYPES.get(word, INTEGERS)[node.type]).reshape(
            array.shape
        )  # ascontiguousarray turns scalars into rows

    def _num_axes(self, word: str) -> int:
        return len(self._inputs[self._names.get(word, word)].shape)

    def _refuse_uneven(self) -> None:
        (first, expected), *others = self.states.items()
        for name, state in others:
            if state != expected:
                node, other = self._inputs[name], self._inputs[first]
                raise CheckpointError(
                    f"input {name!r} of {self._file!r} is {node.type} {node.shape}, and {first!r} "
                    f"is {other.type} {other.shape}: expected the same heads in all layers"
                )

    def _refuse_unknown(self) -> None:
        words = {self._names.get(word, word): word for word in NUM_DIMENSIONS}
        for name, node in self._inputs.items():
            if name in self.present:
                continue
            if name not in words:
                raise CheckpointError(
                    f"{self._file!r} needs input {name!r}, which vlmkit cannot give"
                )
            word = words[name]
            if (
                node.type not in TYPES.get(word, INTEGERS)
                or len(node.shape) not in NUM_DIMENSIONS[word]
            ):
                raise CheckpointError(
                    f"input {name!r} of {self._file!r} is {node.type} {node.shape}, which no "
                    f"{word!r} is"
                )
        if not self.takes("attention_mask"):
            raise CheckpointError(f"{self._file!r} has no input 'attention_mask'")
        if self.takes("input_ids") == self.takes("inputs_embeds"):
            raise CheckpointError(
                f"{self._file!r} takes neither or both of token ids and embeddings, expected one"
            )

    def _spec(self) -> DecoderSpec:
        node = self._outputs.get(self.logits)
        if node is None:
            raise CheckpointError(f"{self._file!r} has no output {self.logits!r}")
        vocab = node.shape[-1] if len(node.shape) == 3 else None
        if node.type not in FLOATS or not isinstance(vocab, int) or vocab < 1:
            raise CheckpointError(
                f"output {self.logits!r} of {self._file!r} is {node.type} {node.shape}, expected "
                "floats [batch, tokens, vocabulary]"
            )
        hidden = 0
        if self.takes("inputs_embeds"):
            width = self._inputs[self._names.get("inputs_embeds", "inputs_embeds")].shape[-1]
            if not isinstance(width, int) or width < 1:
                raise CheckpointError(f"{self._file!r} does not say how wide its embeddings are")
            hidden = width
        return DecoderSpec(
            num_layers=len(self.present) // 2,
            vocab_size=vocab,
            hidden_size=hidden,
            num_position_axes=self._num_position_axes(),
        )

    def _num_position_axes(self) -> int:
        if not self.takes("position_ids"):
            return 0
        shape = self._inputs[self._names.get("position_ids", "position_ids")].shape
        if len(shape) == 3 and shape[0] != 3:
            raise CheckpointError(
                f"the positions of {self._file!r} are {shape}, expected 3 axes of them or one"
            )
        return 3 if len(shape) == 3 else 1


def part_of(tokens: Tokens, rows: slice = slice(None), columns: slice = slice(None)) -> Tokens:
    """Return some rows of some tokens, without extras."""
    embeddings = tokens.embeddings
    return Tokens(
        tokens.ids[rows, columns],
        None if embeddings is None else embeddings[rows, columns],
        tokens.positions[:, rows, columns],
    )
