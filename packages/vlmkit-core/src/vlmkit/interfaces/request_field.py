"""Fields that plugins add to requests: ``extra_body={"dry": {...}}``. Values; no behaviour.

A plugin that registers a component with such a field has it checked before a request is admitted,
told in the server's capabilities and its OpenAPI document, and given to the component with each
sequence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)
Changes = Literal["nothing", "choices", "states"]


class HasFields(Protocol):
    """A sequence, or what an engine sees of one."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """What the request says by such fields, by their names."""
        ...


@dataclass(frozen=True, slots=True)
class RequestField(Generic[S]):
    """One field of requests.

    Attributes:
        name: its key in a body, in small letters, digits and ``_``.
        shape: a frozen struct that forbids unknown fields; its bounds are checked.
        changes: what it does to an answer: ``choices``, which tokens are chosen; ``states``, what
            an engine computes of a token, so that caches are kept apart by it; ``nothing``, which
            holds of what a scheduler or a proposer takes. What changes an answer is refused by a
            model that does not take it, and the rest ignored there and told.
    """

    name: str
    shape: type[S]
    changes: Changes = "choices"

    def of(self, sequence: HasFields) -> S | None:
        """Return what a sequence's request says by it; None where it does not say it."""
        said: S | None = sequence.fields.get(self.name)
        return said


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """What is known of such a field where its struct need not be.

    Attributes:
        schema: the JSON schema of its value.
        changes: what it does to an answer.
    """

    schema: Mapping[str, Any]
    changes: Changes = "choices"
