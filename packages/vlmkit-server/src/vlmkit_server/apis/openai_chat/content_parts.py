"""The parts of a conversation, and what errors call those that show something."""

from collections.abc import Iterator, Sequence

from vlmkit.types.base64_text import is_data_url
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.apis.openai_chat.files import NamedFile


class ListedImage(wire.ImagePart, tag_field="type", tag="listed_image"):
    """An image of a message's list of images, which Ollama's API has in place of parts.

    ``image_url`` may be base64 alone.
    """


def parts_of(message: wire.ChatMessage) -> Sequence[wire.ShownPart]:
    """Return the parts of a message; a text is one, and listed images come first."""
    content = message.content
    parts = [wire.TextPart(text=content)] if isinstance(content, str) else content or ()
    if isinstance(message, wire.UserMessage) and message.images:
        return [*(ListedImage(image_url=image) for image in message.images), *parts]
    return parts


def shown_parts(
    said: Sequence[wire.ChatMessage],
) -> Iterator[tuple[str, wire.ImagePart | wire.FilePart]]:
    """Yield the place of every image and file, and itself, in order."""
    for number, message in enumerate(said):
        parts = parts_of(message)
        num_listed = sum(isinstance(part, ListedImage) for part in parts)
        for index, part in enumerate(parts):
            if isinstance(part, ListedImage):
                yield f"messages[{number}].images[{index}]", part
            elif not isinstance(part, wire.TextPart):
                yield f"messages[{number}].content[{index - num_listed}]", part


def place_of(place: str, part: wire.ImagePart | wire.FilePart) -> str:
    """Return the place that an error of a part names."""
    if isinstance(part, wire.FilePart):
        return f"{place}.file"
    if isinstance(part, ListedImage):
        return place
    if isinstance(part.image_url, str):
        return f"{place}.image_url"
    return f"{place}.image_url.{'url' if part.shown.file_id is None else 'file_id'}"


def images_in(said: Sequence[wire.ChatMessage]) -> Iterator[tuple[str, wire.ImageUrl]]:
    """Yield every image of a body by its URL or file, with the place that its errors name."""
    for place, part in shown_parts(said):
        if isinstance(part, wire.ImagePart):
            image = part.shown
            if isinstance(part, ListedImage) and not is_data_url(image.url or ""):
                image = wire.ImageUrl(url=f"data:;base64,{image.url}")
            yield place_of(place, part), image


def files_in(said: Sequence[wire.ChatMessage]) -> Iterator[NamedFile]:
    """Yield every file of a body, with its place."""
    for place, part in shown_parts(said):
        if isinstance(part, wire.FilePart):
            yield NamedFile(place_of(place, part), part.file)
