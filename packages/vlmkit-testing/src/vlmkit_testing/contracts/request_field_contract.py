"""What every request field of a plugin must do."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from vlmkit.errors import RequestError
from vlmkit.interfaces.request_field import RequestField
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.prompting.request_fields import checked_fields, flaw_of_field
from vlmkit_testing.contracts.sequences import new_sequence

NUM_THREADS, NUM_ROUNDS = 4, 20


class RequestFieldContract:
    """Inherit it, override :meth:`make` and :meth:`values`, and run pytest."""

    def make(self) -> RequestField[Any]:
        """Return the field; with an identity, of the same content each time."""
        raise NotImplementedError

    def values(self) -> list[Mapping[str, Any]]:
        """Return at least two JSON values; with an identity, values that name different content.

        Each member of the value differs in at least two of them.
        """
        raise NotImplementedError

    def unknown(self) -> list[Mapping[str, Any]]:
        """Return JSON values that name no content, for a field with an identity."""
        return []

    def test_there_are_values_to_check_with(self) -> None:
        """With fewer, the other tests could not fail."""
        values = self.values()
        assert len(values) >= 2, "values() must return at least two"
        assert all(value not in values[:i] for i, value in enumerate(values)), "one is there twice"
        field = self.make()
        read = [msgspec.structs.asdict(self._read(field, value)) for value in values]
        for name in read[0]:
            assert any(each[name] != read[0][name] for each in read), f"{name} is always the same"

    def test_a_component_can_add_the_field(self) -> None:
        """Its name is free, its struct can be read from JSON, and an identity changes states."""
        field = self.make()
        assert flaw_of_field(field, ("states", "choices", "nothing")) is None

    def test_values_are_read_from_json(self) -> None:
        """What is read can be written, and is then read as the same value."""
        field = self.make()
        for value in self.values():
            read = self._read(field, value)
            assert self._read(field, msgspec.to_builtins(read)) == read

    def test_an_identity_is_constant_bytes(self) -> None:
        """For equal values, at any time, and in another process with the same content."""
        field, other = self._identified(), self.make()
        for value in self.values():
            identity: object = self._identity(field, value)
            assert isinstance(identity, bytes), "an identity is bytes"
            assert identity, "an identity is not empty"
            assert self._identity(field, value) == identity
            assert self._identity(other, value) == identity

    def test_values_of_different_content_have_different_identities(self) -> None:
        """Requests with equal identities share a cache."""
        field = self._identified()
        identities = [self._identity(field, value) for value in self.values()]
        assert len(set(identities)) == len(identities)

    def test_identities_are_resolved_in_several_threads_at_once(self) -> None:
        """Worker threads read requests."""
        field = self._identified()
        values = [value for value in self.values() for _ in range(NUM_THREADS)][: 2 * NUM_THREADS]
        expected = [self._identity(field, value) for value in values]
        begin = threading.Barrier(len(values))

        def resolved(value: Mapping[str, Any]) -> Any:
            begin.wait(60)
            return self._identity(field, value)

        with ThreadPoolExecutor(len(values)) as threads:
            for _ in range(NUM_ROUNDS):
                assert list(threads.map(resolved, values)) == expected

    def test_a_sequence_keeps_the_value_and_the_identity_of_its_request(self) -> None:
        """Also after its name got other content, or none, since the request was read."""
        field, values = self.make(), self.values()
        resolved = [b"", b"unknown"]
        if field.identity is not None:
            resolved += [self._identity(field, value) for value in values]
        for value in values:
            read = self._read(field, value)
            for identity in resolved:
                sequence = self._sequence(field, read, identity)
                assert field.identity_of(sequence) == identity, "the identity is resolved again"
                assert field.of(sequence) == read
        assert field.identity_of(new_sequence()) == b"", "a request does not set the field"
        assert field.of(new_sequence()) is None

    def test_a_value_that_names_nothing_is_an_error_of_the_client(self) -> None:
        """A ``RequestError``; any other error reads as a failure of the engine."""
        field = self._identified()
        if not self.unknown():
            pytest.skip("no unknown() values were given")
        for value in self.unknown():
            with pytest.raises(RequestError):
                self._identity(field, value)

    # Helpers

    def _identified(self) -> RequestField[Any]:
        """Return the field; skip if it has no identity."""
        field = self.make()
        if field.identity is None:
            pytest.skip("this field has no identity")
        return field

    def _read(self, field: RequestField[Any], value: Mapping[str, Any]) -> Any:
        return checked_fields({field.name: value}, {field.name: field})[field.name]

    def _sequence(self, field: RequestField[Any], read: Any, identity: bytes) -> Sequence:
        """Return a sequence whose request had a value with an identity; empty for none."""
        identities = {field.name: identity} if identity else {}
        return new_sequence(fields={field.name: read}, field_identities=identities)

    def _identity(self, field: RequestField[Any], value: Mapping[str, Any]) -> Any:
        """Return the identity of a value that is read anew."""
        assert field.identity is not None
        return field.identity(self._read(field, value))
