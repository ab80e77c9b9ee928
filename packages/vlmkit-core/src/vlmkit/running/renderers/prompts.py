"""Prompts by renderers, for requests with media or long texts; others are made here, in threads.

A long text is made here as well when no renderer is free, so that it never waits for documents.
"""

from vlmkit.running.media_room import Place
from vlmkit.running.prompts import Made, MakesPrompts, is_short
from vlmkit.running.renderers.plain import CannotTravel
from vlmkit.running.renderers.pool import RendererPool
from vlmkit.running.renderers.wire import request_frame
from vlmkit.running.told import told
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, image_parts_of, parts_of
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request


class RenderedPrompts:
    """Has prompts with media, or of long texts, made by renderers.

    Args:
        here: makes all others.
        pool: the renderers.
    """

    def __init__(self, here: MakesPrompts, pool: RendererPool) -> None:
        self._here = here
        self._pool = pool

    def made(self, request: Request, place: Place) -> Made:
        """Return a request's prompt; arguments and errors as where it is made here.

        Raises:
            PromptNotMade: the renderer ended.
        """
        has_media = _has_media(request)
        if not has_media and (is_short(request) or not self._pool.has_free):
            return self._here.made(request, place)
        try:
            frame = request_frame(request)
        except CannotTravel:
            return self._here.made(request, place)
        return self._pool.made(frame, place)

    def tokens(self, request: Request, place: Place) -> PromptTokens:
        """Return what a request's prompt comes to; arguments and errors as for :meth:`made`."""
        made = self.made(request, place)
        return told(made.prompt, image_parts_of(made.messages))


def _has_media(request: Request) -> bool:
    """Tell whether a request shows what renderers can open."""
    if request.options.light:
        return False
    parts = list(parts_of(request.messages))
    if any(isinstance(part, MediaPart) for part in parts):
        return False  # what only its own plugin knows does not travel
    return bool(request.images) or any(isinstance(part, ImagePart | FilePart) for part in parts)
