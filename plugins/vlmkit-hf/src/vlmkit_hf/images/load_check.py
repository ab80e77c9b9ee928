"""Checks at load that an image side treats images as its family's processor does.

Compares token ids on a text with grey images. Explains what is wrong with a checkpoint that fails.
"""

import logging
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import PIL.Image

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit_hf.images.calls import ProcessorCalls
from vlmkit_hf.images.facts import (
    ImageFacts,
    apply_layout,
    family_token,
    grey_image,
    stated_field,
    stated_token,
    written_token,
)
from vlmkit_hf.images.prepared import PreparedImage, expand_slots
from vlmkit_hf.images.processors.parts import spaced
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import Limits, Sizing
from vlmkit_hf.tokens.text_encoder import TextEncoder

log = logging.getLogger(__name__)

Prepare = Callable[[Image, Limits], PreparedImage]


def compared_first_token(
    processor: Any,
    checkpoint: Checkpoint,
    facts: ImageFacts,
    prepare: Prepare,
    encoder: TextEncoder,
) -> str:
    """Compare token ids with the processor's own call on a text with two images.

    Uses one image if the model takes only one.

    Returns:
        The token that the processor's ids start with in addition to ours; may be empty.

    Raises:
        CheckpointError: they differ otherwise, so this family needs more than is implemented.
    """
    pictures, text = _probe(processor, facts)
    try:
        layout = apply_layout(processor, text, len(pictures)) or text
        layout = spaced(layout, facts.spaced_after)
        prepared = [prepare(Image.open(picture), {}) for picture in pictures]
        ours = expand_slots(layout, facts.placeholder, prepared, encoder)
        made = processor(
            text=[text], images=pictures, return_tensors="np", add_special_tokens=False
        )
        theirs = np.asarray(made["input_ids"])[0].tolist()
    except MemoryError:
        raise
    except Exception as error:  # a processor may raise anything
        known = _written_ids(processor, facts, encoder)
        wrong = known and wrong_token(processor, checkpoint, known)
        raise wrong or unsupported(processor, checkpoint) from error
    tokenizer = processor.tokenizer
    first: str = tokenizer.bos_token or tokenizer.eos_token or ""
    if first and theirs == [tokenizer.convert_tokens_to_ids(first), *ours]:
        return first
    if ours != theirs:
        raise unsupported(processor, checkpoint)
    return ""


def _probe(processor: Any, facts: ImageFacts) -> tuple[list[PIL.Image.Image], str]:
    """Return grey images and a text with them."""
    pictures = [grey_image(64, 48), grey_image(40, 88)]
    shown = getattr(processor, "framed_image", facts.placeholder)
    return (pictures[:1], f"{shown}a b") if facts.leads else (pictures, f"{shown}a{shown} b")


def _written_ids(processor: Any, facts: ImageFacts, encoder: TextEncoder) -> set[int]:
    """Return the tokens that a processor writes for an image; empty if they are unknown."""
    try:
        expansion = encoder.expand(
            ProcessorCalls(processor, facts).process(grey_image(64, 48), {})[1]
        )
    except Exception:  # noqa: BLE001 - the processor fails for another reason
        return set()
    return set(expansion.token_ids) if expansion else set()


def matches_sizing(sizing: Sizing, prepare: Prepare, owner: str) -> bool:
    """Tell whether images have as many tokens as the sizing says, with and without limits.

    Args:
        sizing: computes numbers of tokens.
        prepare: preprocesses an image under some limits.
        owner: the model's name, for the log.
    """
    for picture in (grey_image(64, 48), grey_image(40, 88)):
        image, size = Image.open(picture), Size(picture.height, picture.width)
        try:
            num_tokens = sizing.num_tokens(size, {})
            for most in {num_tokens, -(-num_tokens // 3), 1}:
                limits = sizing.fit(size, most, {})
                prepared = prepare(image, limits)
                if prepared.num_features != sizing.num_tokens(size, limits):
                    return False
        except MemoryError:
            raise
        except Exception:  # a processor may raise anything
            log.debug("limits of images of %r cannot be used", owner, exc_info=True)
            return False
    return True


def refuse_missing_token(processor: Any, checkpoint: Checkpoint) -> None:
    """Refuse a config without an image token if the family's default is no token here.

    Raises:
        CheckpointError: the default token is no control token here.
    """
    config = checkpoint.answering
    token = family_token(config) if stated_token(config) is None else None
    if token is None or token in processor.tokenizer.get_added_vocab().values():
        return
    raise CheckpointError(
        f"config.json of model {checkpoint.name!r} does not say which token stands for an "
        f"image: {token}, as transformers would have it, is no control token here",
        hint=f'write it there, such as "image_token_id": {written_token(processor)}, which is '
        f"{processor.image_token!r}",
    )


def wrong_token(
    processor: Any, checkpoint: Checkpoint, known: Collection[int] | None = None
) -> CheckpointError | None:
    """Return an error if the processor does not write the image token of config.json.

    Args:
        processor: the family's processor.
        checkpoint: the model's files.
        known: the tokens that the processor writes for an image; None for the whole vocabulary.
    """
    stated = stated_field(checkpoint.answering)
    if stated is None:
        return None
    field, token = stated
    if known is None:
        known = set(processor.tokenizer.get_vocab().values())
    if token in known:
        return None
    own = written_token(processor)
    return CheckpointError(
        f"config.json of model {checkpoint.name!r}: {field!r} is {token}, which is no token that "
        "its processor writes for an image",
        hint=f"the processor writes {own}, which is {processor.image_token!r}",
    )


def unsupported(processor: Any, checkpoint: Checkpoint) -> CheckpointError:
    """Return the error for a processor of an unsupported kind."""
    kind = type(processor).__name__
    return CheckpointError(
        f"the processor of {checkpoint.name!r} ({kind}) treats images in a way that vlmkit-hf "
        "does not know"
    )
