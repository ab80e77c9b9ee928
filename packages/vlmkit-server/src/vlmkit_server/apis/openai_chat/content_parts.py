"""The content parts of messages, and the paths by which errors name images and files."""

from collections.abc import Iterator, Sequence

from vlmkit.types.base64_text import is_data_url
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.apis.openai_chat.files import NamedFile


class ListedImage(wire.ImagePart, tag_field="type", tag="listed_image"):
    """An image of the ``images`` list of a message, which Ollama's API has instead of parts.

    ``image_url`` may be base64 without a ``data:`` prefix.
    """


def parts_of(message: wire.ChatMessage) -> Sequence[wire.ShownPart]:
    """Return the parts of a message: a plain text is one part, and listed images come first."""
    content = message.content
    parts = [wire.TextPart(text=content)] if isinstance(content, str) else content or ()
    if isinstance(message, wire.UserMessage) and message.images:
        return [*(ListedImage(image_url=image) for image in message.images), *parts]
    return parts


def media_parts(
    messages: Sequence[wire.ChatMessage],
) -> Iterator[tuple[str, wire.ImagePart | wire.FilePart]]:
    """Yield every image and file with the path of its part, in order."""
    for number, message in enumerate(messages):
        parts = parts_of(message)
        num_listed = sum(isinstance(part, ListedImage) for part in parts)
        for index, part in enumerate(parts):
            if isinstance(part, ListedImage):
                yield f"messages[{number}].images[{index}]", part
            elif not isinstance(part, wire.TextPart):
                yield f"messages[{number}].content[{index - num_listed}]", part


def path_of(path: str, part: wire.ImagePart | wire.FilePart) -> str:
    """Return the path that errors about a part name.

    Args:
        path: the path of the part.
        part: the image or file.
    """
    if isinstance(part, wire.FilePart):
        return f"{path}.file"
    if isinstance(part, ListedImage):
        return path
    if isinstance(part.image_url, str):
        return f"{path}.image_url"
    return f"{path}.image_url.{'url' if part.image.file_id is None else 'file_id'}"


def images_in(messages: Sequence[wire.ChatMessage]) -> Iterator[tuple[str, wire.ImageUrl]]:
    """Yield every image of a conversation with the path that its errors name."""
    for path, part in media_parts(messages):
        if isinstance(part, wire.ImagePart):
            image = part.image
            if isinstance(part, ListedImage) and not is_data_url(image.url or ""):
                image = wire.ImageUrl(url=f"data:;base64,{image.url}")
            yield path_of(path, part), image


def files_in(messages: Sequence[wire.ChatMessage]) -> Iterator[NamedFile]:
    """Yield every file of a conversation with the path that its errors name."""
    for path, part in media_parts(messages):
        if isinstance(part, wire.FilePart):
            yield NamedFile(path_of(path, part), part.file)
