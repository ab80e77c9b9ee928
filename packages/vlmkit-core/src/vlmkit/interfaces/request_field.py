"""Fields that plugins add to requests, such as ``extra_body={"dry": {...}}``; no behaviour.

A plugin registers a component with such a field. The pipeline checks the field's value before it
admits a request, and passes it to the component with each sequence. The server lists the field in
its capabilities and its OpenAPI document.
"""

from collections.abc import Callable, Mapping
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

    @property
    def field_identities(self) -> Mapping[str, bytes]:
        """The identities of those values whose fields have one, by name."""
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
        identity: returns what identifies the content that a value names, such as a digest of an
            adapter's weights. It takes the place of the value in cache keys, so that content which
            is replaced under the same name shares no cache with its predecessor. It is called once
            for each request, when the request is read, in several threads at once. It raises a
            ``RequestError`` for a value that names nothing. Only for a field that changes
            ``states``; None if the value itself is the content.
    """

    name: str
    shape: type[S]
    changes: Changes = "choices"
    identity: Callable[[S], bytes] | None = None

    def of(self, sequence: HasFields) -> S | None:
        """Return the value in a sequence's request; None if the request does not set it."""
        said: S | None = sequence.fields.get(self.name)
        return said

    def identity_of(self, sequence: HasFields) -> bytes:
        """Return the identity of a sequence's value; empty if it has none.

        It was resolved when the request was read. An engine must compute with the content of this
        identity, also if its name has another content by now.
        """
        return sequence.field_identities.get(self.name, b"")


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """The description of a request field for processes that lack its struct.

    Attributes:
        schema: the JSON schema of its value.
        changes: its effect on an answer; see :class:`RequestField`.
    """

    schema: Mapping[str, Any]
    changes: Changes = "choices"
