"""Whether what a provider built is what its kind makes, before a request finds it out."""

import inspect
from typing import Any

from vlmkit.errors import PluginError
from vlmkit.plugins.protocol_check import is_protocol, lacking, misfitting

HINT = "vlmkit.interfaces says what each of its members does"
RETURN_IT = "its build function must return the component"


def check_output(built: object, makes: Any, who: str) -> None:
    """Refuse what is nothing, a promise of something, or not what its protocol says.

    Args:
        built: by the provider.
        makes: the protocol or class; None leaves the check to who asked.
        who: the provider, for messages.

    Raises:
        PluginError: it could not be used.
    """
    if built is None:
        raise PluginError(f"{who} was built as None", hint=RETURN_IT)
    if inspect.isawaitable(built) or inspect.isgenerator(built) or inspect.isasyncgen(built):
        if inspect.iscoroutine(built):
            built.close()  # or Python would tell that nobody awaited it
        raise PluginError(
            f"{who} was built as a {type(built).__name__!r}, which nobody waits for",
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
        raise PluginError(f"{who} was built as {type(built).__name__!r}, {problem}", hint=HINT)


def _problem(built: object, protocol: type) -> str:
    """Say how an object does not fit a protocol; empty where it does."""
    name = protocol.__name__
    if missing := lacking(built, protocol):
        return f"which lacks {', '.join(map(repr, missing))} of the protocol {name}"
    if misfits := list(misfitting(built, protocol)):
        return f"which does not fit the protocol {name}: {'; '.join(misfits)}"
    return ""
