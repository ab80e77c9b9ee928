"""Which tokens end an answer, by what a checkpoint says in several places."""

from collections.abc import Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint

GENERATION = "generation_config.json"

# Tokens with which the families end a turn; those that a vocabulary has end an answer, too.
END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
)


def end_tokens(checkpoint: Checkpoint, tokenizer: Any, added: Mapping[str, int]) -> frozenset[int]:
    """Return what generation_config.json says, else what config.json says; and turn ends.

    Args:
        checkpoint: the model's files.
        tokenizer: that of transformers, which knows one end token.
        added: the added tokens of the vocabulary, by their texts.

    Raises:
        CheckpointError: what a file says are no token ids.
    """
    ids = _stated(checkpoint)
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    ids |= {added[token] for token in END_OF_TURN if token in added}
    return frozenset(ids)


def _stated(checkpoint: Checkpoint) -> set[int]:
    file = GENERATION
    stated = checkpoint.read_json(file).get("eos_token_id")
    if stated is None:
        file = "config.json"
        config = checkpoint.answering
        text = config.get("text_config") or {}
        stated = config.get("eos_token_id", text.get("eos_token_id"))
    listed = stated if isinstance(stated, list) else [stated]
    ids = {i for i in listed if type(i) is int}
    if len(ids) < len({repr(i) for i in listed if i is not None}):
        raise CheckpointError(
            f"eos_token_id in {file!r} of model {checkpoint.name!r} is {stated!r}, and whole "
            "numbers are expected",
            hint="write the token's id there, as tokenizer.json has it",
        )
    return ids
