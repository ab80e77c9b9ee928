"""What a media loader must do: a file's bytes to parts of a message. No implementation.

Its methods are called from several worker threads at once.
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
        """Tell from its first bytes whether a file is of one of these formats; opens nothing."""
        ...

    def load(self, data: bytes, bounds: PipelineSettings) -> Seq[Part]:
        """Return what a recognised file holds: an image, a sound, pages with text between them.

        Args:
            data: the file; whoever sent it may have made it to do harm.
            bounds: what is refused of one request, to be looked at before memory is taken;
                ``max_media_bytes`` and ``max_images`` are what the rest of it has left.

        Raises:
            MediaError: it is broken, or holds more than the bounds allow.
        """
        ...


@runtime_checkable
class PagedMediaLoader(MediaLoader, Protocol):
    """Opens files that have pages, of which a request may name some."""

    def load_pages(self, data: bytes, pages: Pages, bounds: PipelineSettings) -> Seq[Part]:
        """Return what some pages of a recognised file hold, as :meth:`load` does for all.

        Raises:
            MediaError: as there, or the file has no such page.
        """
        ...


@runtime_checkable
class CancellableMediaLoader(MediaLoader, Protocol):
    """Opens files that can take longer than a second, and stops when their request is cancelled.

    A loader that is not cancellable opens any file that its bounds allow well within a second, or
    the operator runs it in renderer processes, which are killed.
    """

    def for_request(self, cancellation: Cancellation) -> MediaLoader:
        """Return a loader for the files of one request; one of pages, if this is one.

        It opens what this one opens. Once the request is cancelled, its methods, also those that
        run in another thread, return or raise within a second, and every thread and process that
        they started has ended then.

        Args:
            cancellation: of the request.

        Raises:
            RequestCancelled: by the returned loader's ``load`` and ``load_pages``: the request was
                cancelled, before or meanwhile.
        """
        ...
