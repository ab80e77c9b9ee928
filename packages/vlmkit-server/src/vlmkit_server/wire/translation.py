"""From fields of Anthropic's and of the Responses API to those of a chat.

Knows no field: what each one means stands where its API is translated.
"""

from typing import Any

from vlmkit.errors import RequestError


def set_field(
    fields: dict[str, Any], places: dict[str, str], name: str, value: object, place: str
) -> None:
    """Set a field of a chat to the value of a field of another API, which errors name instead.

    Args:
        fields: of the chat; the field is set there.
        places: where fields were sent; the field's place is set there.
        name: of the field.
        value: its value.
        place: the other API's field.

    Raises:
        RequestError: the body has the chat's own field, too.
    """
    if fields.get(name) is not None:
        raise RequestError(f"{name} and {place} exclude each other", param=name)
    fields[name] = value
    places[name] = place
