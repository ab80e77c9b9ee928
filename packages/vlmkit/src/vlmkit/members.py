"""What an object lacks of a protocol.

Looks for members only: what they take, give back and mean is for the contracts of
:mod:`vlmkit.testing`.
"""

from typing import Protocol


def lacking(thing: object, protocol: type) -> list[str]:
    """Return the members of a protocol that an object does not have, in the protocol's order.

    No property of the object is asked for its value, unless it stands in place of a method.
    """
    return [name for name, member in _members(protocol).items() if not _has(thing, name, member)]


def is_protocol(kind: type) -> bool:
    """Tell whether a class is a protocol, and not something that keeps one."""
    return Protocol in kind.__bases__


def _members(protocol: type) -> dict[str, object]:
    """Return the public members of a protocol and of those that it extends."""
    parts = [part for part in reversed(protocol.__mro__) if is_protocol(part)]
    own = {name: member for part in parts for name, member in vars(part).items()}
    return {name: member for name, member in own.items() if not name.startswith("_")}


def _has(thing: object, name: str, member: object) -> bool:
    if callable(member):
        return callable(getattr(thing, name, None))
    return hasattr(type(thing), name) or hasattr(thing, name)
