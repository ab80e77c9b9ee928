"""A call of a tool: what a model asks for, and what a conversation says that it asked for."""

from dataclasses import dataclass
from typing import Any

import msgspec

from vlmkit.errors import RequestError


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """One call, in a turn of the assistant; no string in it is ever a control token.

    A model may write anything, so nothing is checked until a conversation is made a prompt.

    Attributes:
        id: how the turn with the tool's result names the call.
        name: of the tool.
        arguments: the JSON text of an object; none at all is an empty object.
    """

    id: str
    name: str
    arguments: str = "{}"

    def parsed(self) -> dict[str, Any]:
        """Return the arguments.

        Raises:
            RequestError: they are not the JSON text of an object.
        """
        try:
            return msgspec.json.decode(self.arguments.strip() or "{}", type=dict[str, Any])
        except (ValueError, RecursionError):  # DecodeError and UnicodeError are ValueErrors
            raise RequestError(
                "the arguments of a tool's call are not the JSON text of an object",
                param="arguments",
            ) from None
