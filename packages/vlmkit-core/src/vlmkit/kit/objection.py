"""Reasons why a provider cannot serve a model, with hints.

A reason is a string, so code that ignores hints can use it as a text.
"""

from collections.abc import Mapping
from typing import Any, Self

from vlmkit.deprecated import renamed


class Objection(str):
    """A reason with a hint.

    Attributes:
        hint: what to do; empty if unknown.
    """

    __slots__ = ("hint",)
    hint: str

    def __new__(cls, reason: str, *, hint: str = "") -> Self:
        """Return a reason with a hint."""
        objection = super().__new__(cls, reason)
        objection.hint = hint
        return objection


def hint_of(reason: str | None) -> str:
    """Return the hint of a reason; empty if it has none."""
    return reason.hint if isinstance(reason, Objection) else ""


def with_hint(reason: str | None) -> str | None:
    """Return a reason and its hint as one plain text; None if there is neither."""
    return "; ".join(filter(None, (reason, hint_of(reason)))) or None


def combined(reasons: Mapping[str, str | None]) -> Objection:
    """Return the reasons of several providers as one, each with the names that it is for.

    Args:
        reasons: the reason of each provider, by its name; equal reasons are listed once.
    """
    names: dict[str | None, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    text = "; ".join(f"{', '.join(names[reason])}: {reason}" for reason in names)
    hints = dict.fromkeys(filter(None, map(hint_of, names)))
    return Objection(text, hint="; or ".join(hints))


def __getattr__(name: str) -> Any:
    return renamed(__name__, name)
