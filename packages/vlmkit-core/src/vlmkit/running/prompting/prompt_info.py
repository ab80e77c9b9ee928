"""The description of a prompt for requests that only tokenize."""

from collections.abc import Iterable

from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.types.message import ImagePart
from vlmkit.types.prompt_tokens import PromptMedium, PromptTokens


def prompt_info(prompt: Prompt, images: Iterable[ImagePart]) -> PromptTokens:
    """Return the tokens of a prompt and the positions of its media.

    Args:
        prompt: the prompt.
        images: the images of its messages, in order.
    """
    shown = iter(images)
    media = (_medium(s, next(shown) if s.kind == "image" else None) for s in prompt.media)
    return PromptTokens(prompt.token_ids, tuple(media))


def _medium(slot: MediaSlot, shown: ImagePart | None) -> PromptMedium:
    used = slot.transform.used_size[::-1] if slot.transform else None
    return PromptMedium(
        slot.kind,
        slot.start,
        slot.stop,
        slot.num_features,
        slot.digest,
        None if shown is None else (shown.image.width, shown.image.height),
        None if used is None else (used[0], used[1]),
        None if shown is None else shown.page,
    )
