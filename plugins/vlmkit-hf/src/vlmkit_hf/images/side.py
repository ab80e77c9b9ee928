"""The image side of one model: images to arrays, tokens and digests, one image at a time.

The family's processor does the work, with one image per call, so that an image's arrays never
depend on the rest of the conversation. A check at load compares the result with the processor's
own call on a whole conversation.
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
    apply_layout,
    family_token,
    grey_image,
    read_facts,
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
    """The contribution of one image to a prompt; the fields are those of a MediaSlot."""

    expansion: Expansion
    digest: bytes
    inputs: Mapping[str, Array]
    num_features: int
    transform: Transform | None
    preprocess: Stage = NO_STAGE
    num_encoded: int = 0


class ImageSide:
    """Prepares the images of one model; thread-safe.

    Attributes:
        placeholder: the text that stands for an image.
        banned_ids: the placeholder tokens of images, video and sound.
        needs_image: whether the processor refuses text without an image.
        leads: whether the image stands before the begin-of-sequence token; there can be only one.
        begins_with: the token that the processor itself puts before a text; may be empty.
        control_tokens: the added tokens, by text, that the processor writes.

    Args:
        processor: see :mod:`vlmkit_hf.images.processors.loading` and :mod:`..standalone.processor`.
        checkpoint: the model's files.
        facts: saved properties of the processor; None reads and checks them.

    Raises:
        CheckpointError: the processor is of an unsupported kind.
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
                self._refuse_missing_token(checkpoint)
            self._facts = facts or read_facts(processor, checkpoint.answering)
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
        # Saved facts outlive the version that saved them.
        self._fingerprint = f"{version('vlmkit-hf')} {self._facts.fingerprint}".encode()

    @property
    def processor(self) -> Any:
        """The family's processor."""
        return self._processor

    @property
    def facts(self) -> ImageFacts:
        """The properties of the processor, complete after :meth:`check`."""
        return msgspec.structs.replace(
            self._facts, begins_with=self.begins_with, has_sizes=self.has_sizes
        )

    @property
    def has_sizes(self) -> bool:
        """Whether requests can limit the size of an image."""
        return self._sizing is not None

    def layout(self, num_images: int) -> Callable[[str], str] | None:
        """Return the processor's change of a whole text; None if it changes nothing."""
        if not num_images or not self._facts.lays_out:
            return None
        return lambda text: apply_layout(self._processor, text, num_images) or text

    def spaced(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return segments with the spaces that the processor puts after images."""
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
        """Return the image processor's additional arguments for one image.

        Raises:
            RequestError: the request has unsupported limits, or exceeds those of the checkpoint.
            ImageError: the image cannot be made as small as requested.
        """
        if self._sizing is None:
            return {}
        limits = self._sizing.limits(options.processor)
        if options.most_tokens is None:
            return limits
        size = Size(image.height, image.width)
        try:
            limits = self._sizing.fit(size, options.most_tokens, limits)
            min_tokens = self._sizing.num_tokens(size, limits)
        except Exception as error:  # a processor may raise anything
            raise _refused(image) from error
        _check_tokens(image, min_tokens, options)
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
            image: the image.
            encoder: encodes the processor's texts.
            limits: the result of :meth:`limits`.
            options: the request's options of the image.

        Raises:
            ImageError: the processor refuses the image, or cannot make it small enough.
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
        """Return the number of patches of an image that a single token represents."""
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
        """Return an image's tokens as of :meth:`prepare`, from its size alone and without pixels.

        Raises:
            ImageError: as for :meth:`prepare`.
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
        """Return an image's tokens, and how many of them stand for features."""
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
        """Compare with the processor's own call on a text with two images, unless already checked.

        Uses one image if the model takes only one.

        Raises:
            CheckpointError: they differ, so this family needs more than is implemented.
        """
        if self._is_checked:
            return
        pictures = [grey_image(64, 48), grey_image(40, 88)]
        shown = getattr(self._processor, "framed_image", self.placeholder)
        text = f"{shown}a{shown} b"
        if self.leads:
            pictures, text = pictures[:1], f"{shown}a b"
        try:
            layout = apply_layout(self._processor, text, len(pictures)) or text
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
        if self._sizing is not None and not self._matches_sizing(self._sizing, encoder):
            log.info("images of %r are shown in one size: its limits are not known", self._owner)
            self._sizing = None

    def _matches_sizing(self, sizing: Sizing, encoder: TextEncoder) -> bool:
        """Tell whether images have as many tokens as the sizing says, with and without limits."""
        for picture in (grey_image(64, 48), grey_image(40, 88)):
            image, size = Image.open(picture), Size(picture.height, picture.width)
            try:
                num_tokens = sizing.num_tokens(size, {})
                for most in {num_tokens, -(-num_tokens // 3), 1}:
                    limits = sizing.fit(size, most, {})
                    prepared = self.prepare(image, encoder, limits)
                    if prepared.num_features != sizing.num_tokens(size, limits):
                        return False
            except MemoryError:
                raise
            except Exception:  # a processor may raise anything
                log.debug("limits of images of %r cannot be used", self._owner, exc_info=True)
                return False
        return True

    def _refuse_missing_token(self, checkpoint: Checkpoint) -> None:
        """Refuse a config without an image token if the family's default is no token here.

        Raises:
            CheckpointError: the default token is no control token here.
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
        """Return an error if the processor does not write the image token of config.json.

        Args:
            encoder: encodes the processor's texts; None checks the vocabulary alone.
        """
        if self._stated is None:
            return None
        field, token = self._stated
        if encoder is None:
            known = set(self._processor.tokenizer.get_vocab().values())
        else:
            try:
                expansion = encoder.expand(self._process(grey_image(64, 48), {})[1])
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
        """Return the token types of an image, if they mark more than its feature tokens."""
        if not self._facts.types_tokens:
            return {}
        types = np.isin(token_ids, self._facts.image_ids).astype(np.int64)
        is_plain = np.array_equal(types, np.equal(token_ids, self._facts.feature_id))
        return {} if is_plain else {"mm_token_type_ids": types}


def expand_slots(
    text: str, placeholder: str, prepared: Sequence[PreparedImage], encoder: TextEncoder
) -> list[int]:
    """Return the ids of a trusted text, with each placeholder replaced by its image's tokens."""
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


def _check_tokens(image: Image, min_tokens: int, options: ImageOptions) -> None:
    """Refuse an image that needs more tokens than allowed."""
    if options.max_tokens is not None and min_tokens > options.max_tokens:
        raise ImageError(
            f"max_image_tokens is {options.max_tokens}, and this model needs {min_tokens} at least "
            f"for an image of {image.width}x{image.height}",
            code="image_over_budget",
        )


def _array(value: Any) -> Array:
    array = np.ascontiguousarray(np.asarray(value))
    made: Array = array.astype(np.int64) if array.dtype.kind in "iu" else array
    return made
