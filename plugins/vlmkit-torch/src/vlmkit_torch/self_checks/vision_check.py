"""Checks at load that answers about images are those of the family's own code.

Compares the whole path of a small image (encoder, merging, positions and paged cache) with
``generate`` of transformers on the same pixels. Detects a processor that does not fit the tower, a
family that merges features in another way, and positions or masks that are read wrongly. The core
selects the images, and checks each model only once.
"""

import inspect
import logging
from collections.abc import Iterator, Sequence as Seq
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from vlmkit.errors import CheckpointError, ImageError, RequestError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.vision_selfcheck import answered
from vlmkit_torch.cross_attention.spec import cross_attention_spec
from vlmkit_torch.model.features import to_tensor
from vlmkit_torch.model.views import Views
from vlmkit_torch.prompts.prompt_reader import PromptReader
from vlmkit_torch.self_checks.cross_attention_reference import (
    cross_attention_mask,
    mask_before_first_image,
)
from vlmkit_torch.self_checks.text_check import TOLERANCE
from vlmkit_torch.vision.encoder import TorchVisionEncoder

log = logging.getLogger(__name__)

NUM_ANSWER_TOKENS = 3
OTHER_TOWER = 0.05  # of the largest logit, if the encoder has other weights than the engine
NOISE = 8  # times the effect of each pixel's last bit is still rounding


def check(
    engine: Engine,
    views: Views,
    reader: PromptReader,
    prompts: Seq[Prompt],
    encoder: MediaEncoder,
) -> None:
    """Answer each prompt both ways and compare.

    Raises:
        CheckpointError: the answers differ by more than rounding.
        ImageError: the tower fails at an image.
        VlmkitError: the engine or the encoder fails.
    """
    answer = views.text_tokens(NUM_ANSWER_TOKENS)
    for prompt in prompts:
        try:
            rows = answered(engine, encoder, prompt, answer[:-1])
        except ImageError:  # the tower fails at it
            raise
        except RequestError as error:  # the settings exclude this image, and may allow others
            log.info("a picture was not tried: %s", error)
            continue
        if rows is None:
            return  # only tests have such a small cache
        found = torch.stack([torch.as_tensor(row) for row in rows]).float()
        reference = _ReferenceAnswer(views, reader, prompt, answer)
        expected = reference.logits()
        difference = (found - expected.to(found.device)).abs().max().item()
        largest = expected.abs().max().item()
        if difference <= _tolerance(views, encoder) * max(largest, 1e-6):
            continue
        noise = (reference.logits(noise=True) - expected).abs().max().item()
        if not difference <= NOISE * noise:
            raise CheckpointError(
                f"what model type {views.model.config.model_type!r} answers about a picture of "
                f"{prompt.media[0].num_features} tokens differs from the family's own code by "
                f"{difference:.2g} where logits reach {largest:.2g}; it would answer wrong",
                hint='report the model type; media_encoder.use = "none" serves its text, and '
                "engine.self_check = false runs it all the same",
            )


def _tolerance(views: Views, encoder: MediaEncoder) -> float:
    own = TOLERANCE.get(views.model.dtype, max(TOLERANCE.values()))
    is_shared = isinstance(encoder, TorchVisionEncoder) and encoder.computes_with(views.model)
    return own if is_shared else max(own, OTHER_TOWER)


class _ReferenceAnswer:
    """A prompt's answer by the family's own code, computed from the pixels."""

    def __init__(
        self, views: Views, reader: PromptReader, prompt: Prompt, answer: Seq[int]
    ) -> None:
        self._views = views
        self._answer = answer
        (slot,) = prompt.media
        accepted = _arguments(views.model)
        self._text = reader.typed_ids(prompt)
        self._text["attention_mask"] = torch.ones_like(self._text["input_ids"])
        self._pixels = {
            name: to_tensor(slot.inputs[name], reader.device, reader.dtype)
            for name in slot.inputs
            if name in accepted and name not in self._text
        }
        if reader.cross_attention is not None:
            mask = cross_attention_mask(reader.cross_attention, views.model.config, prompt)
            self._pixels["cross_attention_mask"] = mask.to(reader.device)

    def logits(self, *, noise: bool = False) -> torch.Tensor:
        """Return ``[tokens, vocab]``; with noise, the last bit of each pixel differs."""
        model: Any = self._views.model
        pixels = {n: _with_noise(a) if noise else a for n, a in self._pixels.items()}
        with _family_code(self._views):
            made = model.generate(
                **self._text,
                **pixels,
                max_new_tokens=len(self._answer),
                prefix_allowed_tokens_fn=_ForcedTokens(
                    self._answer
                ),  # Janus accepts no logits processor
                output_logits=True,
                return_dict_in_generate=True,
            )
        return torch.cat(made.logits).float()


class _ForcedTokens:
    """Forces the tokens of an answer, whatever the logits."""

    def __init__(self, answer: Seq[int]) -> None:
        self._answer = iter(answer)

    def __call__(self, _: int, __: torch.Tensor) -> list[int]:
        return [next(self._answer)]


@contextmanager
def _family_code(views: Views) -> Iterator[None]:
    """Let a model compute by the family's own code; restore paged attention afterwards."""
    model: Any = views.model
    plain = GenerationConfig()  # type: ignore[no-untyped-call]
    own, model.generation_config = model.generation_config, plain
    views.set_attention("eager")
    try:
        with mask_before_first_image(views.decoder, cross_attention_spec(model)):
            yield
    finally:
        views.use_paged_attention()
        model.generation_config = own
        if "rope_deltas" in vars(views.base):
            views.base.rope_deltas = None  # of this prompt


def _arguments(model: Any) -> frozenset[str]:
    """Return the names of the arguments that ``generate`` accepts for a model."""
    names = inspect.signature(model.forward).parameters
    return frozenset({*names, *inspect.signature(model.prepare_inputs_for_generation).parameters})


def _with_noise(array: torch.Tensor) -> torch.Tensor:
    """Return numbers that differ by one rounding, up or down."""
    if not array.is_floating_point():
        return array
    generator = torch.Generator().manual_seed(0)
    up = torch.randint(0, 2, array.shape, generator=generator).to(array.device) * 2 - 1
    return (array + up * array * torch.finfo(array.dtype).eps).to(array.dtype)
