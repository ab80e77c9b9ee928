"""The media of a request: files are opened by loaders, what the model does not take is refused.

Runs in the thread of whoever asks, or in a worker, before a prompt is made. Knows no kind of media
but the image, which has bounds of its own.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence as Seq
from dataclasses import replace

import msgspec

from vlmkit.ask.media import FilePart, MediaPart
from vlmkit.ask.message import Message, Part, images_of, parts_of, refuse_other_media
from vlmkit.errors import MediaError, OutOfMemory, RequestError, VlmkitError
from vlmkit.running.image_detail import sized
from vlmkit.seams.media_loader import MediaLoader
from vlmkit.seams.runner import RunnerFacts

log = logging.getLogger(__name__)


class MediaIntake:
    """Gets conversations ready for the tokenizer of one model.

    Args:
        loaders: open files, by name; the first one that recognises a file opens it.
        facts: what the model takes, and how much of it.
    """

    def __init__(self, loaders: Mapping[str, MediaLoader], facts: RunnerFacts) -> None:
        self._loaders = loaders
        self._facts = facts
        self._bounds = facts.bounds

    def read(self, messages: Seq[Message]) -> Seq[Message]:
        """Return a conversation without files, all of which the model takes.

        Raises:
            RequestError: it holds what the model does not take, or too much of it.
            OutOfMemory: this machine has no room for it now.
        """
        files = [part for part in parts_of(messages) if isinstance(part, FilePart)]
        if files:
            self._check_amount([len(part.data) for part in files])
            messages = self._opened(messages)
        refuse_other_media(messages, self._facts.modalities, f"model {self._facts.name!r}")
        num_images, most = sum(1 for _ in images_of(messages)), self._bounds.max_images
        if num_images > most:
            raise RequestError(
                f"{num_images} images are over the limit of {most}",
                param="messages",
                code="too_many_images",
            )
        self._check_amount(_sizes(parts_of(messages)))
        return sized(messages, self._bounds.image_tokens)

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

    def _opened(self, messages: Seq[Message]) -> list[Message]:
        """Open all files; each may take what those before it have left of the bytes."""
        num_left = self._bounds.max_media_bytes
        opened = []
        for message in messages:
            parts: list[Part] = []
            for part in message.parts:
                if not isinstance(part, FilePart):
                    parts.append(part)
                    continue
                parts += (loaded := self._loaded(part.data, num_left))
                num_left = max(0, num_left - sum(_sizes(loaded)))
            opened.append(replace(message, parts=tuple(parts)))
        return opened

    def _loaded(self, data: bytes, max_bytes: int) -> Seq[Part]:
        """Return what a file holds."""
        able = (name for name, loader in self._loaders.items() if loader.recognises(data))
        if (name := next(able, None)) is None:
            raise MediaError(
                "a file has a format that no media loader recognises",
                param="messages",
                hint=f"media loaders here: {', '.join(self._loaders) or 'none'}",
            )
        try:
            bounds = msgspec.structs.replace(self._bounds, max_media_bytes=max_bytes)
            return self._loaders[name].load(data, bounds)
        except VlmkitError:
            raise
        except MemoryError as error:
            raise OutOfMemory("this file") from error
        except Exception as error:
            log.exception("media loader %r failed", name)
            raise MediaError(f"media loader {name!r} failed on a file", param="messages") from error


def _sizes(parts: Iterable[Part]) -> list[int]:
    """Return the bytes of each medium that is no image."""
    return [part.media.num_bytes for part in parts if isinstance(part, MediaPart)]
