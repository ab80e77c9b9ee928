"""Images that stand among tokens which somebody rendered before.

Slots are made by the tokenizer as for any conversation, and are then moved to where they are said
to stand. Nothing of a slot but its place is taken from outside, and there must be the very tokens
that the image has, so that an engine never meets a prompt which no conversation could have.
"""

from collections.abc import Iterator, Sequence as Seq, Set
from dataclasses import replace

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.types.message import ImagePart, Message
from vlmkit.types.placed_image import PlacedImage


def showing(images: Seq[PlacedImage]) -> list[Message]:
    """Return a conversation that shows some images, and of which only their slots matter."""
    return [Message.of("user", "?", [ImagePart(i.image, i.options, fetch=i.fetch) for i in images])]


def placed(
    images: Seq[PlacedImage], shown: Prompt, token_ids: Seq[int], banned_ids: Set[int]
) -> tuple[MediaSlot, ...]:
    """Return the slots of images among tokens.

    Args:
        images: in the order in which they stand there.
        shown: the prompt of a conversation that shows them.
        token_ids: the tokens.
        banned_ids: tokens of no answer, such as placeholders.

    Raises:
        RequestError: an image is not what stands there, or something else looks like an image.
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
    """Return the tokens that images are made of."""
    return {i for slot in shown.media for i in shown.token_ids[slot.start : slot.stop]}


def _check_between(slots: Seq[MediaSlot], token_ids: Seq[int], placeholders: Set[int]) -> None:
    """Refuse placeholders where no image is: the model would look for features there."""
    if any(not placeholders.isdisjoint(text) for text in between(slots, token_ids)):
        raise RequestError("token_ids has tokens of an image where none is", param="token_ids")


def between(slots: Seq[MediaSlot], token_ids: Seq[int]) -> Iterator[Seq[int]]:
    """Yield the tokens before, between and behind some slots."""
    ends = [0, *(slot.stop for slot in slots)]
    starts = [*(slot.start for slot in slots), len(token_ids)]
    for end, start in zip(ends, starts, strict=True):
        yield token_ids[end:start]
