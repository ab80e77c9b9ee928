"""How an object differs from a protocol.

Looks for members, for what its properties are and for how its methods are called: what these give
back and mean is for the contracts of :mod:`vlmkit_testing`.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from typing import Any, Protocol, SupportsIndex

from vlmkit.kit.one_line import named

GENERAL: dict[Any, Any] = {int: SupportsIndex, frozenset: AbstractSet}
"""What will do where a protocol names a class."""
LATER = ("Awaitable", "Coroutine", "Future", "Task")
"""What a function returns that can be awaited, as it is annotated."""


def lacking(thing: object, protocol: type) -> list[str]:
    """Return the members of a protocol that an object does not have, in the protocol's order.

    No property of the object is asked for its value, unless it stands in place of a method.
    """
    return [name for name, member in _members(protocol).items() if not _has(thing, name, member)]


def misfitting(thing: object, protocol: type) -> Iterator[str]:
    """Say of each member that could not be used as the protocol has it what is wrong with it.

    Every property is asked for its value. A method whose arguments cannot be known, such as one in
    C, is taken as it is.
    """
    for name, member in _members(protocol).items():
        if callable(member):
            yield from _of_method(getattr(thing, name), name, member)
        elif inspect.isfunction(getattr(type(thing), name, None)):
            yield f"{name!r} is a method, not a property"
        else:
            yield from _of_property(thing, name, member)


def _of_property(thing: object, name: str, member: object) -> Iterator[str]:
    """Say what is wrong with a property's value."""
    try:
        value = getattr(thing, name)
    except Exception as error:  # noqa: BLE001 - a component may raise anything
        yield f"{name!r} raises {named(error)}"
        return
    getter = member.fget if isinstance(member, property) else None
    stated = inspect.signature(getter).return_annotation if getter else None
    kind = typing.get_origin(stated) or stated
    if isinstance(kind, type) and not isinstance(value, GENERAL.get(kind, kind)):
        yield f"{name!r} is of type {type(value).__name__!r}, not {kind.__name__!r}"


def _of_method(method: Any, name: str, member: Callable[..., object]) -> Iterator[str]:
    """Say how a method cannot be called, or what it is that is not waited for."""
    is_async, waits = inspect.iscoroutinefunction(member), _is_async(method)
    if waits and not is_async:
        yield f"{name!r} is an async function, but nobody waits for it"
    elif is_async and not waits and _is_plain(method):
        yield f"{name!r} is no async function, but is waited for"
    try:
        taken = inspect.signature(method)
    except (TypeError, ValueError):
        return
    given = list(inspect.signature(member).parameters.values())[1:]  # all but self
    try:
        taken.bind(
            *(p for p in given if p.kind is p.POSITIONAL_OR_KEYWORD),
            **{p.name: p for p in given if p.kind is p.KEYWORD_ONLY},
        )
    except TypeError:
        found, called = _named(taken.parameters.values()), _named(given)
        yield f"{name!r} takes ({found}), but is called with ({called})"


def _is_async(method: Any) -> bool:
    """Tell whether a call only makes something that somebody must wait for."""
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def _is_plain(method: Any) -> bool:
    """Tell whether a function cannot return what is awaited: it does not say so, and wraps none."""
    if not inspect.isroutine(method) or inspect.isbuiltin(method):
        return False
    if _is_async(inspect.unwrap(method)):
        return False
    return not any(word in str(method.__annotations__.get("return", "")) for word in LATER)


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
