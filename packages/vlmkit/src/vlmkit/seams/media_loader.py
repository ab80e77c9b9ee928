"""What a media loader must do: a file's bytes to parts of a message. No implementation.

Its methods are called from several worker threads at once.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

from vlmkit.ask.message import Part
from vlmkit.settings.pipeline import PipelineSettings


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
                ``max_media_bytes`` is what its other files have left.

        Raises:
            MediaError: it is broken, or holds more than the bounds allow.
        """
        ...
