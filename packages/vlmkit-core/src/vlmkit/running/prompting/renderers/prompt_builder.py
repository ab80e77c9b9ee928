"""Prompts by renderers, for requests with media or long texts; others are made here, in threads.

A long text is made here as well when no renderer is free, so that it never waits for documents.
"""

from vlmkit.running.prompting.prompt_builder import BuiltPrompt, PromptBuilder, is_short
from vlmkit.running.prompting.prompt_info import prompt_info
from vlmkit.running.prompting.renderers.messages import request_frame
from vlmkit.running.prompting.renderers.pool import RendererPool
from vlmkit.running.prompting.renderers.serializer import NotSerializable
from vlmkit.running.scheduling.decode_memory import DecodeLease
from vlmkit.types.media import FilePart, MediaPart
from vlmkit.types.message import ImagePart, image_parts_of, parts_of
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request


class RendererPromptBuilder:
    """Has prompts with media, or of long texts, made by renderers.

    Args:
        here: makes all others.
        pool: the renderers.
    """

    def __init__(self, here: PromptBuilder, pool: RendererPool) -> None:
        self._here = here
        self._pool = pool

    def made(self, request: Request, place: DecodeLease) -> BuiltPrompt:
        """Return a request's prompt; arguments and errors as where it is made here.

        Raises:
            PromptNotMade: the renderer ended.
        """
        has_media = _has_media(request)
        if not has_media and (is_short(request) or not self._pool.has_free):
            return self._here.made(request, place)
        try:
            frame = request_frame(request)
        except NotSerializable:
            return self._here.made(request, place)
        return self._pool.made(frame, place)

    def tokens(self, request: Request, place: DecodeLease) -> PromptTokens:
        """Return what a request's prompt comes to; arguments and errors as for :meth:`made`."""
        made = self.made(request, place)
        return prompt_info(made.prompt, image_parts_of(made.messages))


def _has_media(request: Request) -> bool:
    """Tell whether a request shows what renderers can open."""
    if request.options.light:
        return False
    parts = list(parts_of(request.messages))
    if any(isinstance(part, MediaPart) for part in parts):
        return False  # what only its own plugin knows does not travel
    return bool(request.images) or any(isinstance(part, ImagePart | FilePart) for part in parts)
