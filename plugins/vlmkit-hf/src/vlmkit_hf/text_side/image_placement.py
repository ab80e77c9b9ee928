"""Places the images of one model in its prompts.

Finds an image's position in rendered text, and fills it with the image's tokens. The image side
prepares the images; :mod:`vlmkit_hf.text_side.tokenizer` renders the text.
"""

from collections.abc import Sequence

from vlmkit.errors import ImageError, RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.types.message import ImagePart
from vlmkit_hf.images.prepared import PreparedImage
from vlmkit_hf.images.side import ImageSide
from vlmkit_hf.templates.stand_ins import Segment
from vlmkit_hf.tokens.text_encoder import TextEncoder


class ImagePlacement:
    """Places images in the prompts of one model; thread-safe.

    Args:
        side: prepares the images.
        encoder: encodes the prompts.
        bos: the begin-of-sequence token; None if there is none.
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
        return self._side.spaced(self._with_first_token(segments))

    def has_bos(self, segments: list[Segment]) -> bool:
        """Tell whether a prompt starts with the begin-of-sequence token, after a leading image."""
        text = self._split_leading_image(segments)[1]
        return self._bos is not None and self._bos != "" and _starts_with(text, self._bos)

    def prompt(
        self,
        segments: Sequence[Segment],
        parts: Sequence[ImagePart],
        *,
        is_outline: bool,
        adds_special: bool,
    ) -> Prompt:
        """Return the token ids and media slots of a prompt with images.

        Args:
            segments: the rendered conversation, with placeholders.
            parts: the images, in the order of the conversation.
            is_outline: whether the slots have no pixels, but token ids alone.
            adds_special: whether the tokenizer adds its own tokens around the text.

        Raises:
            ImageError: an image cannot be processed; ``index`` says which.
            RequestError: the template has another number of images, or limits are unsupported.
        """
        runs = self._cut_at_images(segments, len(parts))
        prepared = self._outlined(parts) if is_outline else self._prepared(parts)
        token_ids = self._encoder.encode(_with_slots(runs, prepared), adds_special=adds_special)
        return _filled(token_ids, prepared)

    def _split_leading_image(self, segments: list[Segment]) -> tuple[list[Segment], list[Segment]]:
        """Split off an image that stands before the begin-of-sequence token."""
        place = self._side.placeholder if self._side.leads else ""
        if not place or not _starts_with(segments, place):
            return [], segments
        rest = segments[0].text.removeprefix(place)
        first = [Segment(rest, is_client=False)] if rest else []
        return [Segment(place, is_client=False)], [*first, *segments[1:]]

    def _with_first_token(self, segments: list[Segment]) -> list[Segment]:
        """Prepend the token that the family's processor puts before a text."""
        first = self._side.begins_with
        image, text = self._split_leading_image(segments)
        if not first or _starts_with(text, first):
            return segments
        return [*image, Segment(first, is_client=False), *text]

    def _cut_at_images(self, segments: Sequence[Segment], num_images: int) -> list[Segment | None]:
        """Return the segments with None for each image."""
        placeholder = self._side.placeholder
        runs: list[Segment | None] = []
        for segment in segments:
            if segment.is_client:
                runs.append(segment)
                continue
            first, *rest = segment.text.split(placeholder)
            runs.append(Segment(first, is_client=False))
            for text in rest:
                runs += [None, Segment(text, is_client=False)]
        num_placed = runs.count(None)
        if num_placed != num_images:
            raise RequestError(
                f"the model's chat template places {num_placed} of {num_images} images",
                param="messages",
            )
        return runs

    def _prepared(self, parts: Sequence[ImagePart]) -> list[PreparedImage]:
        """Preprocess images; an image that occurs several times in one size is preprocessed once.

        Raises:
            ImageError: an image cannot be processed; ``index`` says which.
            RequestError: the request has unsupported limits.
        """
        once: dict[tuple[bytes, str], PreparedImage] = {}
        prepared = []
        for index, part in enumerate(parts):
            try:
                limits = self._side.limits(part.image, part.options)
                key = (part.image.digest, f"{limits} {part.options.max_tokens}")
                if key not in once:
                    once[key] = self._side.prepare(part.image, self._encoder, limits, part.options)
            except ImageError as error:
                error.index = index
                raise
            prepared.append(once[key])
        return prepared

    def _outlined(self, parts: Sequence[ImagePart]) -> list[PreparedImage]:
        """Return images without pixels, by their sizes alone; errors as for :meth:`_prepared`."""
        outlined = []
        for index, part in enumerate(parts):
            try:
                limits = self._side.limits(part.image, part.options)
                outlined.append(self._side.outline(part.image, self._encoder, limits, part.options))
            except ImageError as error:
                error.index = index
                raise
        return outlined


def _with_slots(
    runs: Sequence[Segment | None], prepared: Sequence[PreparedImage]
) -> list[Segment | None]:
    """Put an image's ordinary text on both sides of its slot."""
    images = iter(prepared)
    segments: list[Segment | None] = []
    for run in runs:
        if run is not None:
            segments.append(run)
            continue
        expansion = next(images).expansion
        head = Segment(expansion.head, is_client=False)
        segments += [head, None, Segment(expansion.tail, is_client=False)]
    return segments


def _filled(token_ids: Sequence[int], prepared: Sequence[PreparedImage]) -> Prompt:
    """Replace each slot by its image's tokens."""
    images = iter(prepared)
    filled: list[int] = []
    slots = []
    for token_id in token_ids:
        if token_id >= 0:
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
            )
        )
    return Prompt(tuple(filled), tuple(slots))


def _starts_with(segments: Sequence[Segment], token: str) -> bool:
    """Tell whether a prompt starts with a token that no client wrote."""
    return bool(segments) and not segments[0].is_client and segments[0].text.startswith(token)
