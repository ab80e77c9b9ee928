"""Prompts by renderers, for requests that are worth the way; others are made here, in threads."""

from vlmkit.ask.media import FilePart, MediaPart
from vlmkit.ask.message import ImagePart, TextPart, image_parts_of, parts_of
from vlmkit.ask.prompt_tokens import PromptTokens
from vlmkit.ask.request import Request
from vlmkit.running.media_room import Place
from vlmkit.running.prompts import Made, MakesPrompts
from vlmkit.running.renderers.plain import CannotTravel
from vlmkit.running.renderers.pool import RendererPool
from vlmkit.running.renderers.wire import request_frame
from vlmkit.running.told import told

MIN_TEXT_CHARS = 2**14  # shorter texts are tokens in less time than they travel


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
        if not _is_worth_it(request):
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


def _is_worth_it(request: Request) -> bool:
    if request.options.light:
        return False
    parts = list(parts_of(request.messages))
    if any(isinstance(part, MediaPart) for part in parts):
        return False  # what only its own plugin knows does not travel
    num_chars = len(request.text or "")
    num_chars += sum(len(part.text) for part in parts if isinstance(part, TextPart))
    has_media = any(isinstance(part, ImagePart | FilePart) for part in parts)
    return has_media or bool(request.images) or num_chars >= MIN_TEXT_CHARS
