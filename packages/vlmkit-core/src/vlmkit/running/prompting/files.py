"""Opens the files of a conversation with media loaders, in place.

Each file must fit into what earlier files leave of the request's bounds. Whether the model takes
the opened media is checked later, by :mod:`.media`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence as Seq
from dataclasses import replace
from typing import NamedTuple

import msgspec

from vlmkit.errors import ImageError, MediaError, OutOfMemory, RequestError, VlmkitError
from vlmkit.image_files.file_type import EMPTY, UNKNOWN as UNKNOWN_TYPE, file_type
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.interfaces.media_loader import CancellableMediaLoader, MediaLoader, PagedMediaLoader
from vlmkit.kit.traces import trace_of
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, Message, Part, image_parts_of, parts_of

log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """A conversation without files.

    Attributes:
        messages: the conversation.
        source_indices: for each of its images, the index of the image or file that was sent.
    """

    messages: Seq[Message]
    source_indices: Seq[int]


class FileOpener:
    """Opens the files of conversations.

    Args:
        loaders: media loaders by name; the first one that recognises a file opens it.
        bounds: the bounds of one request.
        component_names: the names of the loaders' providers.
    """

    def __init__(
        self,
        loaders: Mapping[str, MediaLoader],
        bounds: PipelineSettings,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._component_names = component_names
        self._loaders = loaders
        self._bounds = bounds

    def open_files(self, messages: Seq[Message], cancellation: Cancellation) -> Opened:
        """Open all files; each may use the bytes and images that earlier files leave.

        Args:
            messages: the conversation.
            cancellation: of its request.

        Raises:
            RequestCancelled: the request was cancelled.
            MediaError: a file is refused; ``index`` says which one.
            OutOfMemory: there is not enough memory now.
        """
        if not any(isinstance(part, FilePart) for part in parts_of(messages)):
            return Opened(messages, range(sum(1 for _ in image_parts_of(messages))))
        remaining = _RemainingBounds(messages, self._bounds)
        source_indices: list[int] = []
        index = 0
        opened = []
        for message in messages:
            parts: list[Part] = []
            for part in message.parts:
                found: Seq[Part] = (part,)
                if isinstance(part, FilePart):
                    try:
                        found = self._parts(part, remaining.bounds, cancellation)
                    except MediaError as error:
                        error.index = index
                        raise
                    remaining.take(found)
                parts += found
                source_indices += [index for each in found if isinstance(each, ImagePart)]
                index += isinstance(part, ImagePart | FilePart)
            opened.append(replace(message, parts=tuple(parts)))
        return Opened(opened, source_indices)

    def loader_name(self, file: FilePart) -> str:
        """Return the name of the loader that would open a file.

        Raises:
            MediaError: no loader recognises it.
        """
        name = next((name for name in self._loaders if self._recognises(name, file.data)), None)
        if name is None:
            raise self._not_recognised(file)
        return name

    def _parts(
        self, file: FilePart, bounds: PipelineSettings, cancellation: Cancellation
    ) -> Seq[Part]:
        """Return the parts of a file; its images share the file's ``max_tokens``."""
        cancellation.check()
        parts = self._loaded(file, bounds, cancellation)
        num_images = _num_images(parts)
        options = file.options
        if file.max_tokens is not None and num_images:
            share = file.max_tokens // num_images
            if not share:
                raise MediaError(
                    f"{num_images} pages need more than {file.max_tokens} tokens",
                    param="messages",
                    code="image_over_budget",
                    hint="choose fewer pages, or more tokens",
                )
            options = replace(options, max_tokens=min(share, options.max_tokens or share))
        return [replace(p, options=options) if isinstance(p, ImagePart) else p for p in parts]

    def _loaded(
        self, file: FilePart, bounds: PipelineSettings, cancellation: Cancellation
    ) -> Seq[Part]:
        name = self.loader_name(file)
        loader = self._loaders[name]
        try:
            if isinstance(loader, CancellableMediaLoader):
                loader = loader.for_request(cancellation)
            if file.pages is None:
                return loader.load(file.data, bounds)
            if isinstance(loader, PagedMediaLoader):
                return loader.load_pages(file.data, file.pages, bounds)
        except VlmkitError:
            raise
        except MemoryError as error:
            raise OutOfMemory("this file") from error
        except Exception as error:
            # The error's text may quote the file.
            loader_name = self._component_names.of("media_loader", name)
            log.error("%s failed:\n%s", loader_name, trace_of(error))  # noqa: TRY400
            raise MediaError(f"media loader {name!r} failed on a file", param="messages") from error
        raise MediaError("pages are chosen of a file that has none", param="messages")

    def _not_recognised(self, file: FilePart) -> MediaError:
        found, made = file_type(file.data), ImageError if file.is_image else MediaError
        if found is EMPTY:
            return made("the file is empty", param="messages", hint=found.hint)
        problem = "no media loader recognises"
        is_known = found is not UNKNOWN_TYPE
        problem = (
            f"the file is {found.name}, which {problem}" if is_known else f"{problem} the file"
        )
        here = ", ".join(self._loaders) or "none"
        error = made(f"{problem} (here: {here})", param="messages", hint=found.hint)
        error.distribution = found.distribution
        return error

    def _recognises(self, name: str, data: bytes) -> bool:
        """Return whether a loader recognises a file; one that raises does not."""
        try:
            return self._loaders[name].recognises(data)
        except Exception as error:  # noqa: BLE001 - a loader may raise anything
            loader_name = self._component_names.of("media_loader", name)
            trace = trace_of(error)  # without its text, which may quote the file
            log.error("%s failed at the beginning of a file:\n%s", loader_name, trace)  # noqa: TRY400
            return False


class _RemainingBounds:
    """The bounds for the next file of a request."""

    def __init__(self, messages: Seq[Message], bounds: PipelineSettings) -> None:
        num_images = sum(1 for _ in image_parts_of(messages))
        self.bounds = msgspec.structs.replace(
            bounds, max_images=max(0, bounds.max_images - num_images)
        )

    def take(self, parts: Seq[Part]) -> None:
        """Count the media of a file."""
        num_images = _num_images(parts)
        self.bounds = msgspec.structs.replace(
            self.bounds,
            max_images=max(0, self.bounds.max_images - num_images),
            max_media_bytes=max(0, self.bounds.max_media_bytes - sum(media_sizes(parts))),
        )


def _num_images(parts: Seq[Part]) -> int:
    return sum(1 for part in parts if isinstance(part, ImagePart))


def media_sizes(parts: Seq[Part] | Iterator[Part]) -> list[int]:
    """Return the bytes of each medium that is not an image."""
    return [part.media.num_bytes for part in parts if isinstance(part, MediaPart)]


def map_error_to_source(error: RequestError, source_indices: Seq[int]) -> None:
    """Change an error about an opened image into one about the image or file that was sent."""
    if isinstance(error, MediaError) and error.index is not None:
        error.index = source_indices[error.index] if error.index < len(source_indices) else None
