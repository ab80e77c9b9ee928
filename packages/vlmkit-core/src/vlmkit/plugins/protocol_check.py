"""Checks that a built component matches the protocol of its kind, before a request uses it.

Checks that members exist, the types of properties and the signatures of methods. What methods
return is not checked; the contracts of :mod:`vlmkit_testing` do that.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from typing import Any, Protocol, SupportsIndex

from vlmkit.errors import PluginError
from vlmkit.kit.one_line import named

RETURN_IT = "its build function must return the component"

GENERAL: dict[Any, Any] = {int: SupportsIndex, frozenset: AbstractSet}
"""More general types that are accepted instead of a protocol's types."""
LATER = ("Awaitable", "Coroutine", "Future", "Task")
"""Names in return annotations of functions whose result can be awaited."""


def check_output(built: object, makes: Any, who: str) -> None:
    """Check that a component is an instance of its protocol or class.

    Args:
        built: the value that the provider's ``build`` returned.
        makes: the protocol or class; None leaves the check to the caller.
        who: the provider, for messages.

    Raises:
        PluginError: the value is None, awaitable, a class, or does not match ``makes``.
    """
    if built is None:
        raise PluginError(f"{who} was built as None", hint=RETURN_IT)
    if inspect.isawaitable(built) or inspect.isgenerator(built) or inspect.isasyncgen(built):
        if inspect.iscoroutine(built):
            built.close()  # otherwise Python warns that it was never awaited
        raise PluginError(
            f"{who} was built as a {type(built).__name__!r}, which is not awaited",
            hint="build is a plain function: no async, and no yield",
        )
    if makes is None:
        return
    if isinstance(built, type):
        raise PluginError(
            f"{who} was built as the class {built.__name__!r}, not as an instance of one",
            hint=RETURN_IT,
        )
    if not is_protocol(makes):
        if not isinstance(built, makes):
            raise PluginError(
                f"{who} was built as {type(built).__name__!r}, not as a {makes.__name__}"
            )
        return
    if problem := _problem(built, makes):
        raise PluginError(
            f"{who} was built as {type(built).__name__!r}, {problem}",
            hint=f"{makes.__module__} says what each of its members does",
        )


def _problem(built: object, protocol: type) -> str:
    """Return how an object differs from a protocol; empty if it matches."""
    name = protocol.__name__
    if missing := lacking(built, protocol):
        return f"which lacks {', '.join(map(repr, missing))} of the protocol {name}"
    if misfits := list(misfitting(built, protocol)):
        return f"which does not fit the protocol {name}: {'; '.join(misfits)}"
    return ""


def lacking(thing: object, protocol: type) -> list[str]:
    """Return the members of a protocol that an object lacks, in the protocol's order.

    Evaluates no property of the object, except one with the name of a method.
    """
    members = _declared(protocol)
    return [name for name, member in members.items() if not _has(thing, name, member)]


def misfitting(thing: object, protocol: type) -> Iterator[str]:
    """Yield a description of each member that does not match the protocol.

    Evaluates every property. A method with an unknown signature, such as one in C, is accepted.
    """
    for name, member in _declared(protocol).items():
        if callable(member):
            yield from _of_method(getattr(thing, name), name, member)
        elif inspect.isfunction(getattr(type(thing), name, None)):
            yield f"{name!r} is a method, not a property"
        else:
            yield from _of_property(thing, name, member)


def _of_property(thing: object, name: str, member: object) -> Iterator[str]:
    """Yield what is wrong with a property's value."""
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
    """Yield what is wrong with a method's signature, or with its being async or not."""
    is_async, waits = inspect.iscoroutinefunction(member), _is_async(method)
    if waits and not is_async:
        yield f"{name!r} is an async function, but it is not awaited"
    elif is_async and not waits and _is_plain(method):
        yield f"{name!r} is not an async function, but it is awaited"
    try:
        taken = inspect.signature(method)
    except (TypeError, ValueError):
        return
    given = list(inspect.signature(member).parameters.values())[1:]  # all but self
    try:
        taken.bind(
            *(p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)),
            **{p.name: p for p in given if p.kind is p.KEYWORD_ONLY},
        )
    except TypeError:
        found, called = _named(taken.parameters.values()), _named(given)
        yield f"{name!r} takes ({found}), but is called with ({called})"


def _is_async(method: Any) -> bool:
    """Return whether a call returns a coroutine or an async generator."""
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def _is_plain(method: Any) -> bool:
    """Return whether a function cannot return an awaitable, by its annotation and wrappers."""
    if not inspect.isroutine(method) or inspect.isbuiltin(method):
        return False
    if _is_async(inspect.unwrap(method)):
        return False
    return not any(word in str(method.__annotations__.get("return", "")) for word in LATER)


def is_protocol(kind: type) -> bool:
    """Return whether a class is itself a protocol, not an implementation of one."""
    return Protocol in kind.__bases__


def _named(parameters: Iterable[inspect.Parameter]) -> str:
    """Return parameters as text, without types and defaults."""
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in parameters]
    return str(inspect.Signature(bare))[1:-1]


def _declared(protocol: type) -> dict[str, object]:
    """Return the public members of a protocol and of the protocols that it extends."""
    parts = [part for part in reversed(protocol.__mro__) if is_protocol(part)]
    found = {name: member for part in parts for name, member in vars(part).items()}
    return {name: member for name, member in found.items() if not name.startswith("_")}


def _has(thing: object, name: str, member: object) -> bool:
    if callable(member):
        return callable(getattr(thing, name, None))
    return hasattr(type(thing), name) or hasattr(thing, name)
