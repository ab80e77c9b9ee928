"""Tool calls in answers and conversations; calls no tool."""

from dataclasses import dataclass
from typing import Any

import msgspec

from vlmkit.errors import RequestError


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """One tool call in a message of the assistant; no string in it becomes a control token.

    A model may write anything, so the call is not checked until a prompt is built from it.

    Attributes:
        id: the id of the call, which the message with the tool's result refers to.
        name: the name of the tool.
        arguments: the JSON text of an object; an empty text is an empty object.
    """

    id: str
    name: str
    arguments: str = "{}"

    def parsed(self) -> dict[str, Any]:
        """Return the arguments as Python values.

        Raises:
            RequestError: the arguments are not the JSON text of an object.
        """
        try:
            return msgspec.json.decode(self.arguments.strip() or "{}", type=dict[str, Any])
        except (ValueError, RecursionError):  # DecodeError and UnicodeError are ValueErrors
            raise RequestError(
                "the arguments of a tool's call are not the JSON text of an object",
                param="arguments",
            ) from None
