"""The parts of a text side, resolved by transformers or read from a saved file.

Holds and resolves the parts; :mod:`vlmkit_hf.text_side.tokenizer` uses them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.images.side import ImageSide
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.templates.sources import template_sources

GENERATION = "generation_config.json"

# Tokens with which families end a message. Those in the vocabulary also end an answer.
END_OF_MESSAGE = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParts:
    """The parts of one model's text side.

    Attributes:
        backend: converts text to tokens and back.
        named: special tokens by the names that templates use.
        bos: the begin-of-sequence token; None if there is none.
        eos: the end-of-sequence token; None if there is none.
        eos_ids: the tokens that end an answer.
        templates: chat templates by name.
        images: prepares images; None if the model takes none.
    """

    backend: Tokenizer
    named: Mapping[str, str | Sequence[str]]
    bos: str | None
    eos: str | None
    eos_ids: frozenset[int]
    templates: Mapping[str, str]
    images: ImageSide | None

    @property
    def added(self) -> dict[str, int]:
        """The ids of the added tokens, by text."""
        added = sorted(self.backend.get_added_tokens_decoder().items())
        return {token.content: number for number, token in added}


def resolve_parts(checkpoint: Checkpoint, settings: HfTokenizerSettings) -> TextParts:
    """Resolve the parts of a text side with transformers.

    Raises:
        CheckpointError: the files have no tokenizer, or a processor that is not supported.
        ConfigError: the chat template of the settings cannot be read.
    """
    from vlmkit_hf.images.processors.loading import load_processor, takes_images
    from vlmkit_hf.text_side.loading import load_tokenizer

    tokenizer = load_tokenizer(checkpoint)
    images: ImageSide | None = None
    if takes_images(checkpoint):
        images = ImageSide(load_processor(checkpoint, tokenizer), checkpoint)
    return TextParts(
        backend=tokenizer.backend_tokenizer,
        named=tokenizer.special_tokens_map,
        bos=tokenizer.bos_token,
        eos=tokenizer.eos_token,
        eos_ids=end_tokens(checkpoint, tokenizer, tokenizer.get_added_vocab()),
        templates=template_sources(checkpoint, tokenizer, settings),
        images=images,
    )


def end_tokens(checkpoint: Checkpoint, tokenizer: Any, added: Mapping[str, int]) -> frozenset[int]:
    """Return the end tokens of generation_config.json or else config.json, and message ends.

    Args:
        checkpoint: the model's files.
        tokenizer: the tokenizer of transformers, which has one end token.
        added: the ids of the added tokens, by text.

    Raises:
        CheckpointError: a file has something else than token ids.
    """
    ids = _stated(checkpoint)
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    ids |= {added[token] for token in END_OF_MESSAGE if token in added}
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
