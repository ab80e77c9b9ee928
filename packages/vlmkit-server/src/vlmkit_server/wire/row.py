"""What one row of the table of request fields says; the rows are in :mod:`.table`."""

import math
from typing import Any, Literal, NamedTuple, TypeAlias

Action: TypeAlias = Literal["implemented", "alias", "no effect", "rejected"]
About: TypeAlias = Literal["answer", "prompt", "vector"]
"""What a field would change; a body that has none of it is the same with the field."""


class Row(NamedTuple):
    """One field, by its dotted place in a body.

    Attributes:
        field: the keys that lead to it, without the indices of lists.
        origins: the APIs and servers that have it.
        action: what is done about it: it is ``implemented`` by the bodies that declare it, an
            ``alias``, without effect, or rejected.
        reason: why; of a rejected field, what to send instead.
        neutral: values that change nothing, besides null and empty lists and objects.
        about: what it would change.
        targets: of an alias, the fields that it can stand for; a body's own one is taken.
        elsewhere: the action of bodies that do not declare it, if it is implemented.
    """

    field: str
    origins: str
    action: Action
    reason: str = ""
    neutral: tuple[Any, ...] = ()
    about: About = "answer"
    targets: tuple[str, ...] = ()
    elsewhere: Action = "rejected"

    def is_neutral(self, value: Any) -> bool:
        """Tell whether a JSON value changes nothing."""
        return says_nothing(value) or any(_is_same(value, each) for each in self.neutral)


def says_nothing(value: Any) -> bool:
    """Tell whether a JSON value means that a field is not given."""
    return value is None or value in ([], {})


def _is_same(one: Any, other: Any) -> bool:
    """Compare JSON values: 1 and 1.0 are one number, and true is none."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6)  # a float32 that was written out
    return bool(one == other)
