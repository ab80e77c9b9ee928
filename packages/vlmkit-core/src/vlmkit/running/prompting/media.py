"""The media of a request: files are opened, what the model does not take is refused.

Runs in the thread of whoever asks, or in a worker, before a prompt is made. Knows no kind of media
but the image, which has bounds of its own.
"""

from collections.abc import Mapping, Sequence as Seq

from vlmkit.errors import MediaError, RequestError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.interfaces.media_loader import MediaLoader
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.prompting.files import FileOpener, Opened, media_sizes
from vlmkit.running.prompting.image_detail import sized
from vlmkit.types.media import FilePart
from vlmkit.types.message import Message, images_of, parts_of, refuse_other_media


class MediaPreparation:
    """Gets conversations ready for the tokenizer of one model.

    Args:
        loaders: open files, by name; the first one that recognises a file opens it.
        facts: what the model takes, and how much of it.
        component_names: who made the loaders.
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
        """Return a conversation without files, all of which the model takes.

        Args:
            messages: the conversation.
            cancellation: of its request.

        Raises:
            RequestCancelled: the request was cancelled.
            RequestError: it holds what the model does not take, or too much of it.
            OutOfMemory: this machine has no room for it now.
        """
        self._check_amount([len(p.data) for p in parts_of(messages) if isinstance(p, FilePart)])
        messages, origins = self._files.opened(messages, cancellation)
        refuse_other_media(messages, self._facts.modalities, f"model {self._facts.name!r}")
        num_images, most = sum(1 for _ in images_of(messages)), self._bounds.max_images
        if num_images > most:
            raise RequestError(
                f"{num_images} images are over the limit of {most}",
                param="messages",
                code="too_many_images",
            )
        self._check_amount(media_sizes(parts_of(messages)))
        return Opened(sized(messages, self._bounds.image_tokens), origins)

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
