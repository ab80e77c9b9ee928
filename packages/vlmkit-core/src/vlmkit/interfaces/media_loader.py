"""The interface of media loaders, which turn files into parts of a message; no implementation.

Methods are called from several worker threads at once.
"""

from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.message import Part
from vlmkit.types.pages import Pages


class MediaLoader(Protocol):
    """Opens files of some formats."""

    def recognises(self, data: bytes) -> bool:
        """Return whether the first bytes of a file show a supported format; opens nothing."""
        ...

    def load(self, data: bytes, bounds: PipelineSettings) -> Seq[Part]:
        """Return the content of a recognised file: an image, a sound, pages with text between.

        Args:
            data: the file's content, which may be malicious.
            bounds: the limits of one request, to be checked before memory is allocated. Its
                ``max_media_bytes`` and ``max_images`` are what the rest of the request leaves.

        Raises:
            MediaError: the file is broken, or exceeds the bounds.
        """
        ...


@runtime_checkable
class PagedMediaLoader(MediaLoader, Protocol):
    """Opens files that have pages, of which a request may select some."""

    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        """Return the content of the selected pages of a recognised file; otherwise as ``load``.

        Raises:
            MediaError: the file is broken, exceeds the bounds, or lacks a selected page.
        """
        ...


@runtime_checkable
class CancellableMediaLoader(MediaLoader, Protocol):
    """Opens files that can take longer than a second, and stops when their request is cancelled.

    A loader that is not cancellable must open any file within its bounds in well under a second.
    Otherwise the operator runs it in renderer processes, which can be killed.
    """

    def for_request(self, cancellation: Cancellation) -> MediaLoader:
        """Return a loader of the same formats for one request; paged if this one is.

        Within a second of the cancellation, all its methods must return or raise, in any thread.
        Every thread and process that they started must have ended by then.

        Args:
            cancellation: the cancellation state of the request.

        Raises:
            RequestCancelled: raised by ``load`` and ``load_pages`` of the returned loader if the
                request is cancelled before or during the call.
        """
        ...
