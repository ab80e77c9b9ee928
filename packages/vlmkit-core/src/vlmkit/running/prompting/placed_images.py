"""Images among token ids that a client rendered in an earlier request.

The tokenizer makes the slots as for any conversation. They are then moved to the positions that the
client states, and nothing else of a slot comes from the client. The tokens at a position must be
the image's own. So an engine never gets a prompt that no conversation could have.
"""

from collections.abc import Iterator, Sequence as Seq, Set
from dataclasses import replace

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.types.message import ImagePart, Message
from vlmkit.types.placed_image import PlacedImage


def conversation_of(images: Seq[PlacedImage]) -> list[Message]:
    """Return a conversation that shows some images; only their slots are used."""
    return [Message.of("user", "?", [ImagePart(i.image, i.options, fetch=i.fetch) for i in images])]


def image_slots(
    images: Seq[PlacedImage], shown: Prompt, token_ids: Seq[int], banned_ids: Set[int]
) -> tuple[MediaSlot, ...]:
    """Return the slots of images among tokens.

    Args:
        images: the images, in order of their positions.
        shown: the prompt of a conversation that shows them.
        token_ids: the token ids of the request.
        banned_ids: tokens that no answer may have, such as placeholders.

    Raises:
        RequestError: the tokens at a position are not the image's, or there are placeholders
            elsewhere.
    """
    slots: list[MediaSlot] = []
    for number, (given, slot) in enumerate(zip(images, shown.media, strict=True)):
        own = shown.token_ids[slot.start : slot.stop]
        start, stop = given.start, given.start + len(own)
        if start < (slots[-1].stop if slots else 0):
            problem = "does not stand behind those before it"
        elif given.stop not in (None, stop) or tuple(token_ids[start:stop]) != own:
            problem = "has other tokens than stand in its place"
        elif given.digest not in (None, slot.digest):
            problem = "is not the one that was rendered"
        else:
            slots.append(replace(slot, start=start, stop=stop))
            continue
        raise RequestError(f"images[{number}] {problem}", param=f"images[{number}]")
    _check_between(slots, token_ids, _tokens_of(shown) & banned_ids)
    return tuple(slots)


def _tokens_of(shown: Prompt) -> set[int]:
    """Return the tokens that images consist of."""
    return {i for slot in shown.media for i in shown.token_ids[slot.start : slot.stop]}


def _check_between(slots: Seq[MediaSlot], token_ids: Seq[int], placeholders: Set[int]) -> None:
    """Refuse placeholders outside of images: the model would look for features there."""
    if any(not placeholders.isdisjoint(text) for text in texts_between(slots, token_ids)):
        raise RequestError("token_ids has tokens of an image where none is", param="token_ids")


def texts_between(slots: Seq[MediaSlot], token_ids: Seq[int]) -> Iterator[Seq[int]]:
    """Yield the tokens before, between and after slots."""
    ends = [0, *(slot.stop for slot in slots)]
    starts = [*(slot.start for slot in slots), len(token_ids)]
    for end, start in zip(ends, starts, strict=True):
        yield token_ids[end:start]
