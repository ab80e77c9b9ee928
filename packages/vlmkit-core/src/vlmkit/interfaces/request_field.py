"""Fields that plugins add to requests, such as ``extra_body={"dry": {...}}``; no behaviour.

A plugin registers a component with such a field. The pipeline checks the field's value before it
admits a request, and passes it to the component with each sequence. The server lists the field in
its capabilities and its OpenAPI document.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)
Changes = Literal["nothing", "choices", "states"]


class HasFields(Protocol):
    """A sequence, or an engine's view of one."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The values of plugins' request fields, by name."""
        ...


@dataclass(frozen=True, slots=True)
class RequestField(Generic[S]):
    """One field of requests.

    Attributes:
        name: its key in a request body, in lower-case letters, digits and ``_``.
        shape: a frozen struct that forbids unknown fields; its bounds are checked.
        changes: its effect on an answer. ``choices`` changes the tokens that are chosen.
            ``states`` changes what an engine computes for a token, so it is part of cache keys.
            ``nothing`` is for fields of schedulers and proposers. A model without the component
            refuses a field that changes answers. It ignores other fields and reports that.
    """

    name: str
    shape: type[S]
    changes: Changes = "choices"

    def of(self, sequence: HasFields) -> S | None:
        """Return the value in a sequence's request; None if the request does not set it."""
        said: S | None = sequence.fields.get(self.name)
        return said


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """The description of a request field for processes that lack its struct.

    Attributes:
        schema: the JSON schema of its value.
        changes: its effect on an answer; see :class:`RequestField`.
    """

    schema: Mapping[str, Any]
    changes: Changes = "choices"
