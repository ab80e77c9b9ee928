"""One model's image side: pictures to arrays, tokens and a digest, each picture on its own.

Everything is asked of the family's own processor, one image at a time, so that an image's arrays
never depend on what else is in a conversation. Whether that adds up to what the processor makes of
a whole conversation is checked once, when the model is loaded.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np
import PIL.Image

from vlmkit.errors import CheckpointError, ImageError
from vlmkit.interfaces.prompt import Array
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.stage import NO_STAGE, Stage
from vlmkit.types.transform import Transform
from vlmkit_hf.images.facts import (
    ImageFacts,
    facts_of,
    family_token,
    grey,
    laid_out,
    stated_field,
    stated_token,
    written_token,
)
from vlmkit_hf.images.outline import Outlines
from vlmkit_hf.images.processors.parts import spaced
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import Limits, Sizing
from vlmkit_hf.images.sizing.find import find_sizing
from vlmkit_hf.images.transform import transform_of
from vlmkit_hf.templates.stand_ins import Segment
from vlmkit_hf.tokens.text_encoder import Expansion, TextEncoder

log = logging.getLogger(__name__)

NUM_COLOURS = 3


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """What one image contributes to a prompt; the fields are those of an MediaSlot."""

    expansion: Expansion
    digest: bytes
    inputs: Mapping[str, Array]
    num_features: int
    transform: Transform | None
    preprocess: Stage = NO_STAGE
    num_encoded: int = 0


class ImageSide:
    """Prepares images for one model; any number of threads may.

    Attributes:
        placeholder: what stands for an image in a text.
        banned_ids: tokens that stand for images, video and sound.
        needs_image: whether the processor takes no text alone.
        leads: whether an image stands before everything; there can be one.
        begins_with: the token that the processor puts before a text, whatever its tokenizer does.
        control_tokens: texts of the added tokens that the processor itself writes.

    Args:
        processor: the family's, see :mod:`vlmkit_hf.images.processors.loading`; or ours.
        checkpoint: the model's files.
        facts: what the processor said of itself, and was checked; None asks it.

    Raises:
        CheckpointError: the processor is of a kind that is not known here.
    """

    def __init__(
        self, processor: Any, checkpoint: Checkpoint, facts: ImageFacts | None = None
    ) -> None:
        self._processor = processor
        self._owner = checkpoint.name
        self._stated = stated_field(checkpoint.answering)
        self._is_checked = facts is not None
        tower = checkpoint.answering.get("vision_config")
        side = tower.get("patch_size") if isinstance(tower, Mapping) else None
        self._patch_side = side if type(side) is int and side > 0 else 0
        try:
            if facts is None:
                self._refuse_unsaid(checkpoint)
            self._facts = facts or facts_of(processor, checkpoint.answering)
            self._options: dict[str, Any] = dict(self._facts.options)
            called_with = {**self._options, **self._facts.own_options}
            self._sizing: Sizing | None = find_sizing(
                processor, called_with, self._facts.feature_token
            )
        except (CheckpointError, MemoryError):
            raise
        except Exception as error:  # a processor may raise anything
            raise self._wrong_token() or self._unknown() from error
        if not self._facts.has_sizes:
            self._sizing = None
        self.placeholder = self._facts.placeholder
        self.banned_ids = frozenset(self._facts.banned_ids)
        self.needs_image = self._facts.needs_image
        self.leads = self._facts.leads
        self.begins_with = self._facts.begins_with
        self.control_tokens = frozenset(self._facts.control_tokens)
        # What is written down of a processor outlives the version that wrote it.
        self._fingerprint = f"{version('vlmkit-hf')} {self._facts.fingerprint}".encode()

    @property
    def processor(self) -> Any:
        """The family's."""
        return self._processor

    @property
    def facts(self) -> ImageFacts:
        """All that was found out of the processor, so that it need not be asked again."""
        return msgspec.structs.replace(
            self._facts, begins_with=self.begins_with, has_sizes=self.has_sizes
        )

    @property
    def has_sizes(self) -> bool:
        """Whether a picture can be shown in other sizes than the processor would choose."""
        return self._sizing is not None

    def layout(self, num_images: int) -> Callable[[str], str] | None:
        """Return what the processor does to a text as a whole; None for nothing."""
        if not num_images or not self._facts.lays_out:
            return None
        return lambda text: laid_out(self._processor, text, num_images) or text

    def spaced(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return runs of text with the spaces that the processor puts behind images."""
        if not self._facts.spaced_after:
            return list(segments)
        following = [segment.text for segment in segments[1:]] + [""]
        return [
            run
            if run.is_client
            else Segment(spaced(run.text, self._facts.spaced_after, next_), False)
            for run, next_ in zip(segments, following, strict=True)
        ]

    def limits(self, image: Image, options: ImageOptions) -> Limits:
        """Return what the image processor is called with, besides its own options, for one image.

        Raises:
            RequestError: the limits that are asked for are not known, or over the checkpoint's.
            ImageError: the image cannot be made as small as is asked for.
        """
        if self._sizing is None:
            return {}
        limits = self._sizing.limits(options.processor)
        if options.most_tokens is None:
            return limits
        size = Size(image.height, image.width)
        try:
            limits = self._sizing.fitted(size, options.most_tokens, limits)
            least = self._sizing.num_tokens(size, limits)
        except Exception as error:  # a processor may raise anything
            raise _refused(image) from error
        _check_tokens(image, least, options)
        return limits

    def prepare(
        self,
        image: Image,
        encoder: TextEncoder,
        limits: Limits | None = None,
        options: ImageOptions = PLAIN_IMAGE,
    ) -> PreparedImage:
        """Preprocess one image.

        Args:
            image: the picture.
            encoder: of the texts that the processor writes.
            limits: what :meth:`limits` gave.
            options: how large the image is wanted.

        Raises:
            ImageError: the family's processor cannot take it, or cannot make it so small.
        """
        called_with = {**self._options, **(limits or {})}
        began_s = time.time()
        try:
            arrays, written = self._process(image.to_pil(), limits or {})
            transform = transform_of(image, arrays, self._processor.image_processor, called_with)
        except MemoryError:
            raise
        except Exception as error:  # a processor may raise anything
            raise _refused(image) from error
        expansion, num_features = self._expanded(written, image, encoder, options)
        seen_with = json.dumps(limits, sort_keys=True).encode() if limits else b""
        digest = hashlib.sha256(self._fingerprint + image.digest + seen_with).digest()
        inputs = self._inputs(arrays) | self._types(expansion.token_ids)
        preprocess = Stage.since(began_s)
        num_encoded = self._num_patches(inputs) if num_features == 1 else 0
        return PreparedImage(
            expansion, digest, inputs, num_features, transform, preprocess, num_encoded
        )

    def _num_patches(self, inputs: Mapping[str, Array]) -> int:
        """Return how many patches a tower sees of a picture for which a single token stands."""
        pixels, side = inputs.get("pixel_values"), self._patch_side
        if pixels is None or not side:
            return 0
        return int(np.asarray(pixels).size) // (NUM_COLOURS * side**2)

    def outline(
        self,
        image: Image,
        encoder: TextEncoder,
        limits: Limits,
        options: ImageOptions = PLAIN_IMAGE,
    ) -> PreparedImage:
        """Return what an image has of :meth:`prepare` by its size alone: tokens.

        Raises:
            ImageError: as there.
        """
        try:
            written = self._outlines.written(Size(image.height, image.width), limits)
        except MemoryError:
            raise
        except Exception as error:  # a processor may raise anything
            raise _refused(image) from error
        expansion, num_features = self._expanded(written, image, encoder, options)
        return PreparedImage(expansion, b"", {}, num_features, None)

    @cached_property
    def _outlines(self) -> Outlines:
        return Outlines(self._processor, self._options, self._sizing, self._process)

    def _expanded(
        self, written: str, image: Image, encoder: TextEncoder, options: ImageOptions
    ) -> tuple[Expansion, int]:
        """Return an image's own tokens, and how many of them its features take."""
        expansion = encoder.expand(written)
        num_features = expansion.token_ids.count(self._facts.feature_id) if expansion else 0
        if expansion is None or num_features == 0:
            raise ImageError(
                f"the model's image processor leaves nothing of an image of "
                f"{image.width}x{image.height}"
            )
        _check_tokens(image, num_features, options)
        return expansion, num_features

    def check(self, encoder: TextEncoder) -> None:
        """Compare with the processor's own call on a text with two images, if none has yet.

        With one image, where there can be one.

        Raises:
            CheckpointError: they differ, so this family needs something that is not known here.
        """
        if self._is_checked:
            return
        pictures = [grey(64, 48), grey(40, 88)]
        shown = getattr(self._processor, "framed_image", self.placeholder)
        text = f"{shown}a{shown} b"
        if self.leads:
            pictures, text = pictures[:1], f"{shown}a b"
        try:
            layout = laid_out(self._processor, text, len(pictures)) or text
            layout = spaced(layout, self._facts.spaced_after)
            prepared = [self.prepare(Image.open(p), encoder) for p in pictures]
            ours = expand_slots(layout, self.placeholder, prepared, encoder)
            made = self._processor(
                text=[text], images=pictures, return_tensors="np", add_special_tokens=False
            )
            theirs = np.asarray(made["input_ids"])[0].tolist()
        except MemoryError:
            raise
        except Exception as error:  # a processor may raise anything
            raise self._wrong_token(encoder) or self._unknown() from error
        tokenizer = self._processor.tokenizer
        first = tokenizer.bos_token or tokenizer.eos_token
        if first and theirs == [tokenizer.convert_tokens_to_ids(first), *ours]:
            self.begins_with = first
        elif ours != theirs:
            raise self._unknown()
        if self._sizing is not None and not self._is_as_it_seems(self._sizing, encoder):
            log.info("images of %r are shown in one size: its limits are not known", self._owner)
            self._sizing = None

    def _is_as_it_seems(self, sizing: Sizing, encoder: TextEncoder) -> bool:
        """Tell whether pictures have as many tokens as the limits say, with and without them."""
        for picture in (grey(64, 48), grey(40, 88)):
            image, size = Image.open(picture), Size(picture.height, picture.width)
            try:
                num_tokens = sizing.num_tokens(size, {})
                for most in {num_tokens, -(-num_tokens // 3), 1}:
                    limits = sizing.fitted(size, most, {})
                    prepared = self.prepare(image, encoder, limits)
                    if prepared.num_features != sizing.num_tokens(size, limits):
                        return False
            except MemoryError:
                raise
            except Exception:  # a processor may raise anything
                log.debug("limits of images of %r cannot be used", self._owner, exc_info=True)
                return False
        return True

    def _refuse_unsaid(self, checkpoint: Checkpoint) -> None:
        """Refuse a config.json that leaves an image's token to the family, of another vocabulary.

        Raises:
            CheckpointError: it is so.
        """
        config, processor = checkpoint.answering, self._processor
        token = family_token(config) if stated_token(config) is None else None
        if token is None or token in processor.tokenizer.get_added_vocab().values():
            return
        raise CheckpointError(
            f"config.json of model {checkpoint.name!r} does not say which token stands for an "
            f"image: {token}, as transformers would have it, is no control token here",
            hint=f'write it there, such as "image_token_id": {written_token(processor)}, which is '
            f"{processor.image_token!r}",
        )

    def _wrong_token(self, encoder: TextEncoder | None = None) -> CheckpointError | None:
        """Return that config.json states a token of images which none of the processor's is.

        Args:
            encoder: of the texts that the processor writes; None looks at the vocabulary alone.
        """
        if self._stated is None:
            return None
        field, token = self._stated
        if encoder is None:
            known = set(self._processor.tokenizer.get_vocab().values())
        else:
            try:
                expansion = encoder.expand(self._process(grey(64, 48), {})[1])
            except Exception:  # noqa: BLE001 - the processor fails for another reason
                return None
            known = set(expansion.token_ids) if expansion else {token}
        if token in known:
            return None
        own = written_token(self._processor)
        return CheckpointError(
            f"config.json of model {self._owner!r}: {field!r} is {token}, which is no token that "
            "its processor writes for an image",
            hint=f"the processor writes {own}, which is {self._processor.image_token!r}",
        )

    def _unknown(self) -> CheckpointError:
        kind = type(self._processor).__name__
        return CheckpointError(
            f"the processor of {self._owner!r} ({kind}) treats images in a way that vlmkit-hf does "
            "not know"
        )

    def _process(self, picture: PIL.Image.Image, limits: Limits) -> tuple[Mapping[str, Any], str]:
        layout = self._processor.prepare_inputs_layout(images=[picture], text=[self.placeholder])
        arrays, replacements = self._processor._process_images(  # noqa: SLF001 - no public way
            layout[0], **{**self._options, **self._facts.own_options, **limits}
        )
        (written,) = replacements
        return arrays, written

    def _inputs(self, arrays: Mapping[str, Any]) -> dict[str, Array]:
        wanted = self._facts.input_names
        return {name: _array(arrays[name]) for name in arrays if name in wanted}

    def _types(self, token_ids: Sequence[int]) -> dict[str, Array]:
        """Return which tokens are told to be the image's, where not only those of features are."""
        if not self._facts.types_tokens:
            return {}
        types = np.isin(token_ids, self._facts.image_ids).astype(np.int64)
        is_plain = np.array_equal(types, np.equal(token_ids, self._facts.feature_id))
        return {} if is_plain else {"mm_token_type_ids": types}


def expand_slots(
    text: str, placeholder: str, prepared: Sequence[PreparedImage], encoder: TextEncoder
) -> list[int]:
    """Return the ids of a trusted text in which each placeholder becomes its image's tokens."""
    segments: list[Segment | None] = []
    runs = text.split(placeholder)
    for run, image in zip(runs, [*prepared, None], strict=True):
        segments.append(Segment(run, is_client=False))
        if image is not None:
            segments.append(Segment(image.expansion.head, is_client=False))
            segments.append(None)
            segments.append(Segment(image.expansion.tail, is_client=False))
    images = iter(prepared)
    ids: list[int] = []
    for token_id in encoder.encode(segments):
        ids.extend(next(images).expansion.token_ids if token_id < 0 else (token_id,))
    return ids


def _refused(image: Image) -> ImageError:
    return ImageError(
        f"the model's image processor cannot take an image of {image.width}x{image.height}"
    )


def _check_tokens(image: Image, least: int, options: ImageOptions) -> None:
    """Refuse an image that has more tokens than it may have."""
    if options.max_tokens is not None and least > options.max_tokens:
        raise ImageError(
            f"max_image_tokens is {options.max_tokens}, and this model needs {least} at least for "
            f"an image of {image.width}x{image.height}",
            code="image_over_budget",
        )


def _array(value: Any) -> Array:
    array = np.ascontiguousarray(np.asarray(value))
    made: Array = array.astype(np.int64) if array.dtype.kind in "iu" else array
    return made
