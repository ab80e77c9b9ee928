"""The parts of a conversation, and what errors call those that show something."""

from collections.abc import Iterator, Sequence

from vlmkit.server.chat import wire
from vlmkit.server.chat.files import NamedFile


def parts_of(message: wire.ChatMessage) -> Sequence[wire.ShownPart]:
    """Return the parts of a message; a text is one."""
    content = message.content
    return [wire.TextPart(text=content)] if isinstance(content, str) else content or ()


def shown_parts(
    said: Sequence[wire.ChatMessage],
) -> Iterator[tuple[str, wire.ImagePart | wire.FilePart]]:
    """Yield the place of every image and file, and itself, in order."""
    for number, message in enumerate(said):
        for index, part in enumerate(parts_of(message)):
            if not isinstance(part, wire.TextPart):
                yield f"messages[{number}].content[{index}]", part


def place_of(place: str, part: wire.ImagePart | wire.FilePart) -> str:
    """Return the place that an error of a part names."""
    if isinstance(part, wire.FilePart):
        return f"{place}.file"
    return f"{place}.image_url.{'url' if part.image_url.file_id is None else 'file_id'}"


def images_in(said: Sequence[wire.ChatMessage]) -> Iterator[tuple[str, wire.ImageUrl]]:
    """Yield every image of a body, with its place."""
    for place, part in shown_parts(said):
        if isinstance(part, wire.ImagePart):
            yield f"{place}.image_url", part.image_url


def files_in(said: Sequence[wire.ChatMessage]) -> Iterator[NamedFile]:
    """Yield every file of a body, with its place."""
    for place, part in shown_parts(said):
        if isinstance(part, wire.FilePart):
            yield NamedFile(place_of(place, part), part.file)
