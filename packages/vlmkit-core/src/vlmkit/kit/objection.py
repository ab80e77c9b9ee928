"""Why a provider cannot serve a model, with what can be done about it.

It is a text: whoever knows nothing of hints reads the reason.
"""

from collections.abc import Mapping
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


def together(reasons: Mapping[str, str | None]) -> Objection:
    """Return the reasons of several as one, by their names; who says the same is named together."""
    names: dict[str | None, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    said = "; ".join(f"{', '.join(names[reason])}: {reason}" for reason in names)
    hints = dict.fromkeys(filter(None, map(hint_of, names)))
    return Objection(said, hint="; or ".join(hints))
