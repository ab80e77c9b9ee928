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
from functools import cached_property
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

from vlmkit.errors import CheckpointError, ImageError
from vlmkit.interfaces.prompt import Array
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.image_options import PLAIN_IMAGE, ImageOptions
from vlmkit.types.stage import Stage
from vlmkit_hf.images.calls import ProcessorCalls
from vlmkit_hf.images.facts import ImageFacts, read_facts
from vlmkit_hf.images.load_check import (
    compared_first_token,
    matches_sizing,
    refuse_missing_token,
    unsupported,
    wrong_token,
)
from vlmkit_hf.images.outline import Outlines
from vlmkit_hf.images.prepared import PreparedImage
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import Limits, Sizing
from vlmkit_hf.images.sizing.find import find_sizing
from vlmkit_hf.images.transform import transform_of
from vlmkit_hf.templates.stand_ins import Segment
from vlmkit_hf.tokens.text_encoder import Expansion, TextEncoder

log = logging.getLogger(__name__)

NUM_COLOURS = 3


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
        self._checkpoint = checkpoint
        self._is_checked = facts is not None
        tower = checkpoint.answering.get("vision_config")
        side = tower.get("patch_size") if isinstance(tower, Mapping) else None
        self._patch_side = side if type(side) is int and side > 0 else 0
        try:
            if facts is None:
                refuse_missing_token(processor, checkpoint)
            self._facts = facts or read_facts(processor, checkpoint.answering)
            self._calls = ProcessorCalls(processor, self._facts)
            called_with = {**self._calls.options, **self._facts.own_options}
            self._sizing: Sizing | None = find_sizing(
                processor, called_with, self._facts.feature_token
            )
        except (CheckpointError, MemoryError):
            raise
        except Exception as error:  # a processor may raise anything
            wrong = wrong_token(processor, checkpoint)
            raise wrong or unsupported(processor, checkpoint) from error
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
        return self._calls.layout(num_images)

    def with_spaces_after_images(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return segments with the spaces that the processor puts after images."""
        return self._calls.with_spaces_after_images(segments)

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
        called_with = {**self._calls.options, **(limits or {})}
        began_s = time.time()
        try:
            arrays, written = self._calls.process(image.to_pil(), limits or {})
            transform = transform_of(image, arrays, self._processor.image_processor, called_with)
        except MemoryError:
            raise
        except Exception as error:  # a processor may raise anything
            raise _refused(image) from error
        expansion, num_features = self._expanded(written, image, encoder, options)
        seen_with = json.dumps(limits, sort_keys=True).encode() if limits else b""
        digest = hashlib.sha256(self._fingerprint + image.digest + seen_with).digest()
        inputs = self._calls.inputs(arrays) | self._calls.token_types(expansion.token_ids)
        preprocess = Stage.since(began_s)
        num_encoded = _num_patches(inputs, self._patch_side) if num_features == 1 else 0
        return PreparedImage(
            expansion, digest, inputs, num_features, transform, preprocess, num_encoded
        )

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
        return Outlines(self._processor, self._calls.options, self._sizing, self._calls.process)

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

        def prepare(image: Image, limits: Limits) -> PreparedImage:
            return self.prepare(image, encoder, limits)

        first = compared_first_token(
            self._processor, self._checkpoint, self._facts, prepare, encoder
        )
        self.begins_with = first or self.begins_with
        owner = self._checkpoint.name
        if self._sizing is not None and not matches_sizing(self._sizing, prepare, owner):
            log.info(
                "images of %r have one size: the limits of its processor are not supported", owner
            )
            self._sizing = None


def _num_patches(inputs: Mapping[str, Array], side: int) -> int:
    """Return the number of patches of an image that a single token represents."""
    pixels = inputs.get("pixel_values")
    if pixels is None or not side:
        return 0
    return int(np.asarray(pixels).size) // (NUM_COLOURS * side**2)


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
