"""One row of the field table; the rows are in :mod:`.table`."""

import math
from typing import Any, Literal, NamedTuple, TypeAlias

Action: TypeAlias = Literal["implemented", "alias", "no effect", "rejected"]
About: TypeAlias = Literal["answer", "prompt", "vector"]
"""What a field would change; in a body without it, the field has no effect."""


class Row(NamedTuple):
    """One field, by its dotted path in a body.

    Attributes:
        field: the path, without list indices.
        origins: the APIs and servers that have it.
        action: how it is handled: ``implemented`` by the bodies that declare it, an ``alias``,
            without effect, or rejected.
        reason: why; of a rejected field, what to send instead.
        neutral: values that change nothing, besides null and empty lists and objects.
        about: what it would change.
        targets: of an alias, the fields that it can stand for; the one that the body has is used.
        elsewhere: the action of bodies that do not declare it, if it is implemented.
        acts_if_empty: whether an empty object changes the answer, too.
    """

    field: str
    origins: str
    action: Action
    reason: str = ""
    neutral: tuple[Any, ...] = ()
    about: About = "answer"
    targets: tuple[str, ...] = ()
    elsewhere: Action = "rejected"
    acts_if_empty: bool = False

    def is_neutral(self, value: Any) -> bool:
        """Tell whether a JSON value changes nothing."""
        if is_empty(value) and not (self.acts_if_empty and value == {}):
            return True
        return any(_is_same(value, each) for each in self.neutral)


def is_empty(value: Any) -> bool:
    """Tell whether a JSON value is equivalent to a missing field."""
    return value is None or value in ([], {})


def _is_same(one: Any, other: Any) -> bool:
    """Compare JSON values: 1 and 1.0 are equal, and true is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6)  # the decimal text of a float32
    return bool(one == other)
