"""Bodies of other APIs as bodies of the chat API, and the fields of a body that errors name.

How a body is translated is in the package of its API.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vlmkit.errors import RequestError
from vlmkit_server.apis.openai_chat import wire
from vlmkit_server.apis.openai_chat.convert import field_of_chat


@dataclass(frozen=True, slots=True)
class Translation:
    """A body of another API as a body of the chat API.

    Attributes:
        chat: the body of the chat API.
        paths: maps paths in the chat to those in the body that was sent, where they differ.
    """

    chat: wire.ChatRequest
    paths: dict[str, str]

    def field_of(self, error: RequestError) -> str | None:
        """Return the field of the body that was sent which an error is about."""
        field = field_of_chat(error, self.chat)
        return self.paths.get(field, field) if field else None


@contextmanager
def naming_fields(field_of: Callable[[RequestError], str | None]) -> Iterator[None]:
    """Set ``param`` of an error in the block to the field of the body that the client sent.

    Args:
        field_of: returns the field that an error is about.
    """
    try:
        yield
    except RequestError as error:
        error.param = field_of(error)
        raise
