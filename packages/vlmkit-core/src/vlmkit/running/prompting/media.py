"""Prepares the media of a request: opens files, and refuses media that the model does not take.

It runs in the caller's thread or in a worker, before the tokenizer. Images have bounds of their
own; all other kinds of media are treated alike.
"""

from collections.abc import Mapping, Sequence as Seq
from dataclasses import replace

from vlmkit.errors import MediaError, RequestError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.prompting.files import FileOpener, Opened, media_sizes
from vlmkit.settings.image_tokens import ImageTokens
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message, images_of, parts_of, refuse_other_media


class MediaPreparation:
    """Prepares conversations for the tokenizer of one model.

    Args:
        loaders: media loaders by name; the first one that recognises a file opens it.
        facts: the modalities and bounds of the model.
        component_names: the names of the loaders' providers.
    """

    def __init__(
        self,
        loaders: Mapping[str, MediaLoader],
        facts: RunnerFacts,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._files = FileOpener(loaders, facts.bounds, component_names)
        self._facts = facts
        self._bounds = facts.bounds

    def read(self, messages: Seq[Message], cancellation: Cancellation) -> Opened:
        """Return a conversation with all files opened, and with nothing that the model refuses.

        Args:
            messages: the conversation.
            cancellation: of its request.

        Raises:
            RequestCancelled: the request was cancelled.
            RequestError: it holds media that the model does not take, or too many.
            OutOfMemory: there is not enough memory now.
        """
        self._check_amount([len(p.data) for p in parts_of(messages) if isinstance(p, FilePart)])
        messages, source_indices = self._files.open_files(messages, cancellation)
        refuse_other_media(messages, self._facts.modalities, f"model {self._facts.name!r}")
        num_images, most = sum(1 for _ in images_of(messages)), self._bounds.max_images
        if num_images > most:
            raise RequestError(
                f"{num_images} images are over the limit of {most}",
                param="messages",
                code="too_many_images",
            )
        self._check_amount(media_sizes(parts_of(messages)))
        return Opened(resolve_detail(messages, self._bounds.image_tokens), source_indices)

    def _check_amount(self, sizes: Seq[int]) -> None:
        if len(sizes) > self._bounds.max_media:
            raise MediaError(
                f"{len(sizes)} media are over the limit of {self._bounds.max_media}",
                param="messages",
                code="too_many_media",
            )
        if sum(sizes) > self._bounds.max_media_bytes:
            raise MediaError(
                f"the media of a request are over {self._bounds.max_media_bytes} bytes together",
                param="messages",
                code="media_too_large",
            )


def resolve_detail(messages: Seq[Message], tokens: ImageTokens) -> Seq[Message]:
    """Return a conversation whose images state tokens in place of a detail level."""
    return [_message(message, tokens) for message in messages]


def _message(message: Message, tokens: ImageTokens) -> Message:
    if not any(isinstance(part, ImagePart) for part in message.parts):
        return message
    parts = tuple(
        replace(part, options=_options(part.options, tokens))
        if isinstance(part, ImagePart)
        else part
        for part in message.parts
    )
    return replace(message, parts=parts)


def _options(options: ImageOptions, tokens: ImageTokens) -> ImageOptions:
    """Return image options with a number of tokens; the smaller of two bounds counts."""
    bound: int | None = getattr(tokens, options.detail)
    if bound is None and options.detail == "auto":
        return options
    wanted = min((n for n in (bound, options.wanted_tokens) if n), default=None)
    return replace(options, detail="auto", wanted_tokens=wanted)
