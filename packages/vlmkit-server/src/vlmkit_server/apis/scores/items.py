"""Reads bodies of the scoring API as pairs of a query and a document."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from vlmkit.errors import RequestError
from vlmkit.types.base64_text import is_data_url
from vlmkit.types.message import TextPart
from vlmkit_server.apis.openai_chat import wire as chat_wire
from vlmkit_server.apis.openai_chat.conversation import SentMessages
from vlmkit_server.apis.scores.wire import Content, Given, Items, ScoreRequest, ScoringFields
from vlmkit_server.interfaces.conversation import SentPart

_FIELDS = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)


@dataclass(frozen=True)
class Item:
    """A query or a document.

    Attributes:
        path: its path in the body, for errors.
        parts: its texts, images and files, in order.
    """

    path: str
    parts: Sequence[SentPart]

    @property
    def texts(self) -> list[str]:
        """The texts of its parts."""
        return [part.text for part in self.parts if isinstance(part, TextPart)]

    @cached_property
    def num_chars(self) -> int:
        """The characters of its texts."""
        return sum(map(len, self.texts))

    @cached_property
    def merged_parts(self) -> list[SentPart]:
        """Its parts, adjacent texts as one; a query's are in the prompt of each document."""
        return merged(self.parts)

    @property
    def is_text(self) -> bool:
        """Whether it has neither images nor files."""
        return all(isinstance(part, TextPart) for part in self.parts)


def merged(parts: Sequence[SentPart]) -> list[SentPart]:
    """Return parts with adjacent texts as one: templates write texts apart in different ways."""
    found: list[SentPart] = []
    for _, alike in groupby(parts, type):
        run = list(alike)
        texts = [part.text for part in run if isinstance(part, TextPart)]
        found += [TextPart("".join(texts))] if texts else run
    return found


class ItemReader:
    """Reads the items of one body.

    Args:
        body: the body, whose fields set the size of images.
    """

    def __init__(self, body: ScoringFields) -> None:
        self._media = SentMessages(body)

    @property
    def detail_field(self) -> str:
        """The field that sets the detail of an image; empty if none does."""
        return "content.image_url.detail" if self._media.has_detail else ""

    def items(self, path: str, given: Items) -> list[Item]:
        """Return the items of a field.

        Raises:
            RequestError: an item is empty, or has parts beside other fields.
        """
        if not isinstance(given, list):
            return [self.item(path, given)]
        return [self.item(f"{path}[{index}]", each) for index, each in enumerate(given)]

    def item(self, path: str, given: Given) -> Item:
        """Return one item.

        Raises:
            RequestError: it is empty, or has parts beside other fields.
        """
        if isinstance(given, str):
            return Item(path, [TextPart(given)])
        if given.content is not None:
            if given.text is not None or given.image is not None:
                raise RequestError(f"{path} has content beside text or image", param=path)
            return Item(path, self._parts(f"{path}.content", given.content))
        if given.text is None and given.image is None:
            raise RequestError(f"{path} needs text, image or content", param=path)
        return Item(path, self._named_parts(path, given))

    def _named_parts(self, path: str, given: Content) -> list[SentPart]:
        parts: list[SentPart] = []
        if (image := given.image) is not None:
            url = image if "://" in image or is_data_url(image) else f"data:;base64,{image}"
            parts.append(self._media.image(f"{path}.image", chat_wire.ImageUrl(url=url)))
        if given.text is not None:
            parts.append(TextPart(given.text))
        return parts

    def _parts(self, path: str, given: Sequence[chat_wire.ShownPart]) -> list[SentPart]:
        parts: list[SentPart] = []
        for index, part in enumerate(given):
            place = f"{path}[{index}]"
            if isinstance(part, chat_wire.TextPart):
                parts.append(TextPart(part.text))
            elif isinstance(part, chat_wire.FilePart):
                pages = f"{place}.file.pages"
                parts.append(self._media.file(f"{place}.file", part.file, pages))
            else:
                parts.append(self._media.image(f"{place}.image_url", part.image))
        return parts


def score_items(body: ScoreRequest, reader: ItemReader) -> tuple[list[Item], list[Item]]:
    """Return the queries and the documents of a body; there are as many, or one query.

    Raises:
        RequestError: the fields do not belong together, or their lengths differ.
    """
    names = {name for pair in _FIELDS for name in pair}
    found = {name for name in names if getattr(body, name) is not None}
    pair = next((pair for pair in _FIELDS if found == set(pair)), None)
    if pair is None:
        raise RequestError(
            "send two fields that belong together: text_1 and text_2, queries and documents, "
            "queries and items, or data_1 and data_2",
            param=min(found, default="text_1"),
        )
    queries, documents = (reader.items(name, getattr(body, name)) for name in pair)
    if len(queries) not in (1, len(documents)):
        raise RequestError(
            f"{pair[0]} must have one item, or as many as {pair[1]}: "
            f"{len(queries)} and {len(documents)} were sent",
            param=pair[0],
        )
    return queries, documents
