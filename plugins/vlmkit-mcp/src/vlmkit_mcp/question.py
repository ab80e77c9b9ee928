"""What an agent may ask: the tool, its arguments and their bounds."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from vlmkit.errors import RequestError
from vlmkit_server.settings.server import ServerSettings

TOOL = "ask_about_image"


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a call.

    Attributes:
        question: what to ask.
        images: where the pictures are.
        max_tokens: most tokens of the answer; None is what the context holds.
    """

    question: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=ServerSettings().max_text_chars,
            description="What to ask about the images.",
        ),
    ]
    images: Annotated[
        tuple[str, ...], Meta(min_length=1, description="One or more images, shown in this order.")
    ]
    max_tokens: (
        Annotated[int, Meta(ge=1, le=2**31 - 1, description="Most tokens of the answer.")] | None
    ) = None


def question_schema() -> dict[str, Any]:
    """Return the JSON schema of a call's arguments: an object, as the protocol wants it."""
    _, components = msgspec.json.schema_components([Question])
    schema: dict[str, Any] = components["Question"]
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


def read_question(arguments: dict[str, Any]) -> Question:
    """Check a call's arguments.

    Raises:
        RequestError: names the first that is wrong.
    """
    try:
        return msgspec.convert(arguments, Question)
    except msgspec.ValidationError as error:
        raise RequestError(f"the arguments of {TOOL} are wrong: {error}") from error
