"""Shows a model its first pictures while it is loaded, so that nobody's request has to.

Makes three small pictures into prompts as requests are made into prompts, and lets the engine try
itself with them (:class:`vlmkit.interfaces.engine.VisionSelfCheck`). A model that did so once,
with the same files, settings and packages on the same machine, is not tried again. The engine knows
what is right; the tokenizer knows how large pictures are shown.
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
"""Height and width of each, and how many tokens it is to take where that can be chosen.

A square picture of many tokens is cut into as many rows of tiles as columns, and nothing is padded:
some families compute such a picture in another way.
"""

MAX_NUMBERS = 2**20  # of a picture's arrays; where it has more, it is to take fewer tokens

ENLARGED = 4  # each side of a picture that a processor finds too small
FEW_NUMBERS = 64  # of an array that may tell a picture's size or tiles; others are of pixels
NUM_AROUND = 16  # tokens of text before and behind an image; templates may begin with thousands
BLOCK = 4  # pixels of one colour: single ones would be averaged to grey
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
    """Let an engine that wants it try itself with pictures.

    Args:
        engine: is tried.
        encoder: of its media.
        tokenizer: makes prompts.
        checkpoint: what they were built from.
        built_with: which providers, with which settings.
        on_stage: told if pictures are shown.

    Raises:
        CheckpointError: no picture can be answered about, or the answer would be wrong.
        OutOfMemory: there is no room for a small picture.
    """
    if "image" not in encoder.media_kinds:
        return
    name = engine.trial_name if isinstance(engine, VisionSelfCheck) else None
    if not isinstance(engine, VisionSelfCheck) or name is None:
        return
    try:
        prompts = list(_prompts(tokenizer))
        seen = _place(checkpoint, prompts, (name, built_with))
        if not prompts or (selfcheck_records.read(seen) is not None):
            return
        on_stage("first pictures")
        engine.try_media(prompts, encoder)
    except (CheckpointError, OutOfMemory):
        raise
    except ImageError as error:  # with a cause where a family's code fails
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
    selfcheck_records.write(seen)


def _fails(checkpoint: Checkpoint) -> CheckpointError:
    return CheckpointError(
        f"model {checkpoint.name!r} cannot answer about pictures: the code of model type "
        f"{checkpoint.model_type!r} fails at one",
        hint=HINT,
    )


def _prompts(tokenizer: Tokenizer) -> Iterator[Prompt]:
    """Yield a short prompt for each picture; one for all where all are shown in one size.

    Raises:
        RequestError: the tokenizer makes none.
    """
    known: list[object] = []
    for number, (size, wishes) in enumerate(PICTURES):
        try:
            prompt = _affordable(tokenizer, picture(*size, seed=number), wishes)
        except ImageError:
            larger = picture(*(ENLARGED * side for side in size), seed=number)
            prompt = _affordable(tokenizer, larger, wishes)
        except RequestError as error:
            if error.code == "no_chat_template":  # pictures come in conversations alone
                return
            raise
        (slot,) = prompt.media
        shown = slot.num_features, {name: _outline(array) for name, array in slot.inputs.items()}
        if shown not in known:
            yield _shortened(prompt)
        known.append(shown)


def _outline(array: Array) -> tuple[object, ...]:
    """Return an array's shape, and all of it where it is small enough to tell sizes or tiles."""
    is_small = math.prod(array.shape) <= FEW_NUMBERS
    return array.shape, np.from_dlpack(array).tolist() if is_small else None


def _affordable(tokenizer: Tokenizer, shown: Image, wishes: Seq[int]) -> Prompt:
    """Return a prompt by the first wish that keeps a tower's work small, or else by the last."""
    if "image_detail" not in tokenizer.honours:
        return _prompt(tokenizer, shown, PLAIN_IMAGE)
    for wish in wishes:
        prompt = _prompt(tokenizer, shown, ImageOptions(wanted_tokens=wish))
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
    """Return the part of a prompt that is around its image."""
    (slot,) = prompt.media
    start = max(0, slot.start - NUM_AROUND)
    own = replace(slot, start=slot.start - start, stop=slot.stop - start)
    return Prompt(prompt.token_ids[start : slot.stop + NUM_AROUND], (own,))


def picture(height: int, width: int, *, seed: int = 0) -> Image:
    """Return a picture of blocks of random colours, always the same."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (-(-height // BLOCK), -(-width // BLOCK), 3), dtype=np.uint8)
    pixels = blocks.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)[:height, :width]
    return Image.open(np.ascontiguousarray(pixels))


def _place(checkpoint: Checkpoint, prompts: Seq[Prompt], built_with: object) -> Path | None:
    """Return the note that is there once this model went through; None where none can be."""
    facts = [repr(built_with)]
    facts += [f"{prompt.token_ids} {prompt.media[0].digest!r}" for prompt in prompts]
    return selfcheck_records.record_path(checkpoint.path, "first-looks", facts)
