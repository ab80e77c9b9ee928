"""Translates fields of Anthropic's and of the Responses API into those of a chat.

The API's own modules know what each field means.
"""

from typing import Any

from vlmkit.errors import RequestError


def set_field(
    fields: dict[str, Any], paths: dict[str, str], name: str, value: object, path: str
) -> None:
    """Set a field of a chat to the value of another API's field, and record that field for errors.

    Args:
        fields: the chat's fields; the field is set here.
        paths: the paths of fields as they were sent; the field's path is set here.
        name: the chat's field.
        value: its value.
        path: the other API's field.

    Raises:
        RequestError: the body has the chat's own field, too.
    """
    if fields.get(name) is not None:
        raise RequestError(f"{name} and {path} exclude each other", param=name)
    fields[name] = value
    paths[name] = path
