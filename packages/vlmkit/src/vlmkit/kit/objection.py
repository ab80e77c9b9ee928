"""Why a provider cannot serve a model, with what can be done about it.

It is a text: whoever knows nothing of hints reads the reason.
"""

from typing import Self


class Objection(str):
    """A reason, and a hint that goes with it.

    Attributes:
        hint: what to do; empty where nothing is known.
    """

    __slots__ = ("hint",)
    hint: str

    def __new__(cls, reason: str, *, hint: str = "") -> Self:
        """Make one of a reason."""
        made = super().__new__(cls, reason)
        made.hint = hint
        return made


def hint_of(reason: str | None) -> str:
    """Return the hint of a reason; empty where it has none."""
    return reason.hint if isinstance(reason, Objection) else ""


def told(reason: str | None) -> str | None:
    """Return a reason and its hint as one plain text."""
    return "; ".join(filter(None, (reason, hint_of(reason)))) or None
