"""Converts the result of a tool into message parts, texts and images, within limits.

Nothing in a result becomes a control token, and images are checked like all others.
"""

import asyncio
from collections.abc import Iterator

import msgspec
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from vlmkit.errors import EngineError, ImageError
from vlmkit.settings.images import ImageLimits
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, TextPart
from vlmkit_mcp.settings import McpServer

CUT = "[the rest is left out]"
NO_IMAGE = "[an image is left out]"


async def parts_of_result(
    result: CallToolResult, server: McpServer, limits: ImageLimits
) -> list[TextPart | ImagePart]:
    """Return the texts and images of a result.

    Args:
        result: the server's result.
        server: the settings with the limits of a result.
        limits: the limits of an image.

    Raises:
        EngineError: the tool reports a failure.
    """
    parts: list[TextPart | ImagePart] = []
    num_chars, num_images = server.max_result_chars, server.max_result_images
    for piece in _pieces(result):
        part = (
            await _checked_image(piece, limits)
            if isinstance(piece, _ImageContent)
            else TextPart(piece)
        )
        if isinstance(part, TextPart):
            if len(part.text) > num_chars:
                parts.append(TextPart(part.text[:num_chars] + CUT))
                break
            num_chars -= len(part.text)
        elif num_images:
            num_images -= 1
        else:
            part = TextPart(NO_IMAGE)
        parts.append(part)
    if result.is_error:
        said = " ".join(part.text for part in parts if isinstance(part, TextPart))
        raise EngineError(f"the tool failed: {said}" if said else "the tool failed")
    return parts or [TextPart("")]


class _ImageContent(str):
    """The content of an image, in base64."""

    __slots__ = ()


def _pieces(result: CallToolResult) -> Iterator[str]:
    """Yield the texts and images of a result, and a note for other content."""
    for content in result.content:
        if isinstance(content, TextContent):
            yield content.text
        elif isinstance(content, ImageContent):
            yield _ImageContent(content.data)
        elif isinstance(content, ResourceLink):
            yield str(content.uri)
        elif isinstance(content, EmbeddedResource):
            yield _resource(content.resource)
        else:
            yield "[a sound is left out]"
    if not result.content and result.structured_content is not None:
        yield msgspec.json.encode(result.structured_content).decode()


def _resource(resource: TextResourceContents | BlobResourceContents) -> str:
    if isinstance(resource, TextResourceContents):
        return resource.text
    if (resource.mime_type or "").startswith("image/"):
        return _ImageContent(resource.blob)
    return "[a file is left out]"


async def _checked_image(picture: str, limits: ImageLimits) -> TextPart | ImagePart:
    """Check an image in a thread; an invalid one becomes a text that says so."""
    try:
        image = await asyncio.to_thread(Image.open, f"data:image;base64,{picture}", limits)
    except ImageError as error:
        return TextPart(f"[an image cannot be shown: {error}]")
    return ImagePart(image)
