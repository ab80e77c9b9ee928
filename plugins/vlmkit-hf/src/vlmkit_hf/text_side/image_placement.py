"""Places the images of one model in its prompts.

A chat template writes a *placeholder* for each image. Here each placeholder becomes a *slot* among
the segments of the text, and each slot is filled with its image's tokens. Client text is never
searched for placeholders, so a client cannot add an image by writing one.

The image side prepares the images; :mod:`vlmkit_hf.text_side.tokenizer` renders the text.
"""

from collections.abc import Sequence

from vlmkit.errors import ImageError, RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.types.message import ImagePart
from vlmkit_hf.images.prepared import PreparedImage, used_again
from vlmkit_hf.images.side import ImageSide
from vlmkit_hf.templates.stand_ins import Segment
from vlmkit_hf.tokens.text_encoder import SLOT, TextEncoder


class ImagePlacement:
    """Places images in the prompts of one model; thread-safe.

    Args:
        side: prepares the images.
        encoder: encodes the prompts.
        bos: the tokenizer's begin-of-sequence token; None if there is none.
    """

    def __init__(self, side: ImageSide, encoder: TextEncoder, bos: str | None) -> None:
        self._side = side
        self._encoder = encoder
        self._bos = bos

    def check(self, num_images: int) -> None:
        """Refuse a number of images that the model does not take.

        Raises:
            RequestError: the model needs an image, or takes only one.
        """
        if not num_images and self._side.needs_image:
            raise RequestError("this model needs an image", param="messages")
        if num_images > 1 and self._side.leads:
            raise RequestError(
                f"this model takes one image, and there are {num_images}",
                param="messages",
                code="too_many_images",
            )

    def completed(self, segments: list[Segment]) -> list[Segment]:
        """Return segments with the first token and the spaces that the family's processor adds."""
        return self._side.with_spaces_after_images(self._with_first_token(segments))

    def has_bos(self, segments: list[Segment]) -> bool:
        """Tell whether the begin-of-sequence token is first, or follows a leading image."""
        text = self._split_leading_image(segments)[1]
        return self._bos is not None and self._bos != "" and _starts_with(text, self._bos)

    def prompt(
        self,
        segments: Sequence[Segment],
        parts: Sequence[ImagePart],
        *,
        without_pixels: bool,
        adds_special: bool,
    ) -> Prompt:
        """Return the token ids and media slots of a prompt with images.

        Args:
            segments: the rendered conversation, with placeholders.
            parts: the images, in the order of the conversation.
            without_pixels: whether images get token ids alone, from their sizes.
            adds_special: whether the tokenizer adds its own tokens around the text.

        Raises:
            ImageError: an image cannot be processed; ``index`` says which.
            RequestError: the template has another number of images, or its size limits
                are unsupported.
        """
        with_slots = self._with_slots(segments, len(parts))
        prepared = self._outlined(parts) if without_pixels else self._prepared(parts)
        with_slots = _with_texts_around_images(with_slots, prepared)
        token_ids = self._encoder.encode(with_slots, adds_special=adds_special)
        return _filled(token_ids, prepared)

    def _split_leading_image(self, segments: list[Segment]) -> tuple[list[Segment], list[Segment]]:
        """Split off the image, if the family puts it before the begin-of-sequence token."""
        placeholder = self._side.placeholder if self._side.leads else ""
        if not placeholder or not _starts_with(segments, placeholder):
            return [], segments
        rest = segments[0].text.removeprefix(placeholder)
        text = [Segment(rest, is_client=False)] if rest else []
        return [Segment(placeholder, is_client=False)], [*text, *segments[1:]]

    def _with_first_token(self, segments: list[Segment]) -> list[Segment]:
        """Prepend the token that the family's processor puts before a text, if it is missing."""
        first_token = self._side.begins_with
        image, text = self._split_leading_image(segments)
        if not first_token or _starts_with(text, first_token):
            return segments
        return [*image, Segment(first_token, is_client=False), *text]

    def _with_slots(self, segments: Sequence[Segment], num_images: int) -> list[Segment | None]:
        """Return the segments with None, a slot, for each placeholder of the template."""
        placeholder = self._side.placeholder
        with_slots: list[Segment | None] = []
        for segment in segments:
            if segment.is_client:
                with_slots.append(segment)
                continue
            before_images, *after_images = segment.text.split(placeholder)
            with_slots.append(Segment(before_images, is_client=False))
            for text in after_images:
                with_slots += [None, Segment(text, is_client=False)]
        num_placed = with_slots.count(None)
        if num_placed != num_images:
            raise RequestError(
                f"the model's chat template places {num_placed} of {num_images} images",
                param="messages",
            )
        return with_slots

    def _prepared(self, parts: Sequence[ImagePart]) -> list[PreparedImage]:
        """Preprocess images, each once in each size; images of earlier prompts are prepared.

        Raises:
            ImageError: an image cannot be processed; ``index`` says which.
            RequestError: the request has unsupported size limits.
        """
        by_content_and_size: dict[tuple[bytes, str], PreparedImage] = {}
        prepared = []
        for index, part in enumerate(parts):
            if part.image.prepared is not None:
                prepared.append(used_again(part.image.prepared))
                continue
            try:
                size_limits = self._side.limits(part.image, part.options)
                key = (part.image.digest, f"{size_limits} {part.options.max_tokens}")
                if key not in by_content_and_size:
                    by_content_and_size[key] = self._side.prepare(
                        part.image, self._encoder, size_limits, part.options
                    )
            except ImageError as error:
                error.index = index
                raise
            prepared.append(by_content_and_size[key])
        return prepared

    def _outlined(self, parts: Sequence[ImagePart]) -> list[PreparedImage]:
        """Return images without pixels, by their sizes alone; errors as for :meth:`_prepared`."""
        outlined = []
        for index, part in enumerate(parts):
            try:
                size_limits = self._side.limits(part.image, part.options)
                outlined.append(
                    self._side.outline(part.image, self._encoder, size_limits, part.options)
                )
            except ImageError as error:
                error.index = index
                raise
        return outlined


def _with_texts_around_images(
    segments: Sequence[Segment | None], prepared: Sequence[PreparedImage]
) -> list[Segment | None]:
    """Put the ordinary text that a family writes around an image on both sides of its slot."""
    images = iter(prepared)
    completed: list[Segment | None] = []
    for segment in segments:
        if segment is not None:
            completed.append(segment)
            continue
        expansion = next(images).expansion
        head = Segment(expansion.head, is_client=False)
        completed += [head, None, Segment(expansion.tail, is_client=False)]
    return completed


def _filled(token_ids: Sequence[int], prepared: Sequence[PreparedImage]) -> Prompt:
    """Replace each slot by its image's tokens."""
    images = iter(prepared)
    filled: list[int] = []
    slots = []
    for token_id in token_ids:
        if token_id != SLOT:
            filled.append(token_id)
            continue
        image = next(images)
        start = len(filled)
        filled += image.expansion.token_ids
        slots.append(
            MediaSlot(
                start=start,
                stop=len(filled),
                digest=image.digest,
                inputs=image.inputs,
                num_features=image.num_features,
                transform=image.transform,
                preprocess=image.preprocess,
                num_encoded=image.num_encoded,
                around=(image.expansion.head, image.expansion.tail),
            )
        )
    return Prompt(tuple(filled), tuple(slots))


def _starts_with(segments: Sequence[Segment], token: str) -> bool:
    """Tell whether a prompt starts with a token that no client wrote."""
    return bool(segments) and not segments[0].is_client and segments[0].text.startswith(token)
