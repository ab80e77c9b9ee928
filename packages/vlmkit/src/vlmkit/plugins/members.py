"""How an object differs from a protocol.

Looks for members, and for what its methods take: what they give back and mean is for the contracts
of :mod:`vlmkit.testing`.
"""

import inspect
from collections.abc import Iterable, Iterator
from typing import Protocol


def lacking(thing: object, protocol: type) -> list[str]:
    """Return the members of a protocol that an object does not have, in the protocol's order.

    No property of the object is asked for its value, unless it stands in place of a method.
    """
    return [name for name, member in _members(protocol).items() if not _has(thing, name, member)]


def misfitting(thing: object, protocol: type) -> Iterator[str]:
    """Say of each member that could not be used as the protocol has it what is wrong with it.

    A method whose arguments cannot be known, such as one in C, is taken as it is.
    """
    for name, member in _members(protocol).items():
        if not callable(member):
            if inspect.isfunction(getattr(type(thing), name, None)):
                yield f"{name!r} is a method, not a property"
            continue
        try:
            taken = inspect.signature(getattr(thing, name))
        except (TypeError, ValueError):
            continue
        given = list(inspect.signature(member).parameters.values())[1:]  # all but self
        try:
            taken.bind(
                *(p for p in given if p.kind is p.POSITIONAL_OR_KEYWORD),
                **{p.name: p for p in given if p.kind is p.KEYWORD_ONLY},
            )
        except TypeError:
            found, called = _named(taken.parameters.values()), _named(given)
            yield f"{name!r} takes ({found}), but is called with ({called})"


def is_protocol(kind: type) -> bool:
    """Tell whether a class is a protocol, and not something that keeps one."""
    return Protocol in kind.__bases__


def _named(parameters: Iterable[inspect.Parameter]) -> str:
    """Return parameters as they are written, without their types and defaults."""
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in parameters]
    return str(inspect.Signature(bare))[1:-1]


def _members(protocol: type) -> dict[str, object]:
    """Return the public members of a protocol and of those that it extends."""
    parts = [part for part in reversed(protocol.__mro__) if is_protocol(part)]
    own = {name: member for part in parts for name, member in vars(part).items()}
    return {name: member for name, member in own.items() if not name.startswith("_")}


def _has(thing: object, name: str, member: object) -> bool:
    if callable(member):
        return callable(getattr(thing, name, None))
    return hasattr(type(thing), name) or hasattr(thing, name)
