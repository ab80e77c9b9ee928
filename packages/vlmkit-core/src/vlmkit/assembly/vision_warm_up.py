"""Runs an engine's self-check with images while a model is loaded, before the first request.

Builds prompts for three small images in the same way as for requests, and passes them to the engine
(:class:`vlmkit.interfaces.engine.VisionSelfCheck`). A passed check is recorded, and repeated only
if files, settings, packages or the machine change. The engine decides what is correct; the
tokenizer decides the sizes of images.
"""

import math
from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np

from vlmkit.errors import CheckpointError, ImageError, OutOfMemory, RequestError, VlmkitError
from vlmkit.interfaces.engine import Engine, VisionSelfCheck
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Array, Prompt
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit import selfcheck_records
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.message import ImagePart, Message

PICTURES = (((96, 96), (64,)), ((64, 176), (256, 64)), ((128, 128), (256, 64)))
"""Height and width of each image, and the numbers of tokens to request, in order of preference.

A square image of many tokens is cut into equally many rows and columns of tiles, without padding:
some families compute such an image in another way.
"""

MAX_NUMBERS = 2**20  # elements of an image's arrays; if it has more, fewer tokens are requested

ENLARGED = 4  # factor for the sides of an image that a processor finds too small
FEW_NUMBERS = 64  # elements of an array that describes size or tiles; larger ones hold pixels
NUM_AROUND = 16  # tokens of text before and after an image; templates may begin with thousands
BLOCK = 4  # side of a block of one colour in pixels; single pixels would average to grey
HINT = 'media_encoder.use = "none" serves its text; engine.self_check = false does not try it'


def warm_up_vision(
    engine: Engine,
    encoder: MediaEncoder,
    tokenizer: Tokenizer,
    checkpoint: Checkpoint,
    *,
    built_with: object = "",
    on_stage: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the self-check of an engine that has one.

    Args:
        engine: the engine to check.
        encoder: the media encoder.
        tokenizer: builds the prompts.
        checkpoint: the model that the components were built from.
        built_with: the providers of the components, with their settings.
        on_stage: called with the name of the stage if the check runs.

    Raises:
        CheckpointError: the model cannot answer about images, or its answers are wrong.
        OutOfMemory: there is too little memory for a small image.
    """
    if "image" not in encoder.media_kinds:
        return
    name = engine.trial_name if isinstance(engine, VisionSelfCheck) else None
    if not isinstance(engine, VisionSelfCheck) or name is None:
        return
    try:
        prompts = list(_prompts(tokenizer))
        record = _record_path(checkpoint, prompts, (name, built_with))
        if not prompts or (selfcheck_records.read(record) is not None):
            return
        on_stage("first pictures")
        engine.try_media(prompts, encoder)
    except (CheckpointError, OutOfMemory):
        raise
    except ImageError as error:  # it has a cause if a family's code failed
        raise (
            _fails(checkpoint)
            if error.__cause__
            else CheckpointError(
                f"model {checkpoint.name!r} cannot answer about pictures: {error}", hint=HINT
            )
        ) from error
    except RequestError as error:
        raise CheckpointError(
            f"model {checkpoint.name!r} is of a family that answers about pictures, and no prompt "
            f"can hold one: {error}",
            hint=HINT,
        ) from error
    except VlmkitError as error:
        raise CheckpointError(
            f"model {checkpoint.name!r} cannot answer about pictures: {error}",
            hint=error.hint or HINT,
        ) from error
    except Exception as error:  # a family's code may raise anything
        raise _fails(checkpoint) from error
    selfcheck_records.write(record)


def _fails(checkpoint: Checkpoint) -> CheckpointError:
    return CheckpointError(
        f"model {checkpoint.name!r} cannot answer about pictures: the code of model type "
        f"{checkpoint.model_type!r} fails at one",
        hint=HINT,
    )


def _prompts(tokenizer: Tokenizer) -> Iterator[Prompt]:
    """Yield a short prompt for each image; only one if the model sees all in the same size.

    Raises:
        RequestError: the tokenizer refuses the prompt.
    """
    known: list[object] = []
    for number, (size, token_counts) in enumerate(PICTURES):
        try:
            prompt = _affordable(tokenizer, picture(*size, seed=number), token_counts)
        except ImageError:
            larger = picture(*(ENLARGED * side for side in size), seed=number)
            prompt = _affordable(tokenizer, larger, token_counts)
        except RequestError as error:
            if error.code == "no_chat_template":  # images need a conversation
                return
            raise
        (slot,) = prompt.media
        shown = slot.num_features, {name: _outline(array) for name, array in slot.inputs.items()}
        if shown not in known:
            yield _shortened(prompt)
        known.append(shown)


def _outline(array: Array) -> tuple[object, ...]:
    """Return an array's shape, and its values if it is small enough to describe sizes or tiles."""
    is_small = math.prod(array.shape) <= FEW_NUMBERS
    return array.shape, np.from_dlpack(array).tolist() if is_small else None


def _affordable(tokenizer: Tokenizer, shown: Image, token_counts: Seq[int]) -> Prompt:
    """Return a prompt with the first number of tokens that keeps the arrays small, or the last."""
    if "image_detail" not in tokenizer.honours:
        return _prompt(tokenizer, shown, PLAIN_IMAGE)
    for num_tokens in token_counts:
        prompt = _prompt(tokenizer, shown, ImageOptions(wanted_tokens=num_tokens))
        arrays = prompt.media[0].inputs.values()
        if sum(math.prod(array.shape) for array in arrays) <= MAX_NUMBERS:
            break
    return prompt


def _prompt(tokenizer: Tokenizer, shown: Image, options: ImageOptions) -> Prompt:
    prompt = tokenizer.prompt([Message.of("user", "What is it?", [ImagePart(shown, options)])])
    if len(prompt.media) != 1:
        raise RequestError(f"its prompt has {len(prompt.media)} places for a picture")
    return prompt


def _shortened(prompt: Prompt) -> Prompt:
    """Return the part of a prompt around its image."""
    (slot,) = prompt.media
    start = max(0, slot.start - NUM_AROUND)
    moved = replace(slot, start=slot.start - start, stop=slot.stop - start)
    return Prompt(prompt.token_ids[start : slot.stop + NUM_AROUND], (moved,))


def picture(height: int, width: int, *, seed: int = 0) -> Image:
    """Return an image of blocks of random colours, the same for the same seed."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (-(-height // BLOCK), -(-width // BLOCK), 3), dtype=np.uint8)
    pixels = blocks.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)[:height, :width]
    return Image.open(np.ascontiguousarray(pixels))


def _record_path(checkpoint: Checkpoint, prompts: Seq[Prompt], built_with: object) -> Path | None:
    """Return the path of the record of a passed check; None if it cannot exist."""
    facts = [repr(built_with)]
    facts += [f"{prompt.token_ids} {prompt.media[0].digest!r}" for prompt in prompts]
    return selfcheck_records.record_path(checkpoint.path, "first-looks", facts)
