"""One image of a prompt after preprocessing, and texts with such images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vlmkit.interfaces.prompt import Array
from vlmkit.types.prepared_image import PreparedImage as KnownImage
from vlmkit.types.stage import NO_STAGE, Stage
from vlmkit.types.transform import Transform
from vlmkit_hf.templates.stand_ins import Segment
from vlmkit_hf.tokens.text_encoder import SLOT, Expansion, TextEncoder


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


def used_again(known: KnownImage) -> PreparedImage:
    """Return an image that an earlier prompt had."""
    head, tail = known.around
    return PreparedImage(
        Expansion(head, known.token_ids, tail),
        known.digest,
        known.inputs,
        known.num_features,
        known.transform,
        num_encoded=known.num_encoded,
    )


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
        ids.extend(next(images).expansion.token_ids if token_id == SLOT else (token_id,))
    return ids
