"""What every media encoder must do."""

import contextlib
import dataclasses
import gc
import random
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import (
    NUM_REMOTE,
    NUM_REMOTE_FALLBACKS,
    CopiesToHost,
    CountsEncodings,
    EncodesConcurrently,
    EncodesInScopes,
    MediaEncoder,
    StatesPrecision,
)
from vlmkit.interfaces.prompt import Array, MediaSlot
from vlmkit.types.stage import Stage
from vlmkit_testing.contracts.arrays import to_numpy

Encode = Callable[[Seq[MediaSlot]], list[MediaFeatures]]

MAX_CONCURRENCY = 64
MOST_CALLS, NUM_ROUNDS = 8, 5


class MediaEncoderContract:
    """Inherit, override :meth:`make` and :meth:`slots`, and run pytest.

    Attributes:
        atol: largest difference of an embedding's values that counts as equal.
        most_media: the size of the largest batch that is tried.
        sizes_differ: whether media may have different numbers of rows; not for a model that shows
            all of them in one size.
    """

    atol = 1e-4
    most_media = 36
    sizes_differ = True

    def make(self) -> MediaEncoder:
        """Return a new encoder; two of them must agree."""
        raise NotImplementedError

    def slots(self) -> list[MediaSlot]:
        """Return the slots of at least three different media, of different sizes if there are."""
        raise NotImplementedError

    def others(self) -> list[MediaEncoder]:
        """Return encoders that compute other features: of other weights, or less precisely."""
        return []

    @cached_property
    def shown(self) -> list[MediaSlot]:
        """The slots, made once for each test."""
        return self.slots()

    def agree(self, features: MediaFeatures, expected: MediaFeatures) -> None:
        """Fail unless two features agree within ``atol``, extra arrays included."""
        assert features.num_tokens == expected.num_tokens
        found, wanted = _arrays(features), _arrays(expected)
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, atol=self.atol, rtol=0, err_msg=name)
        arrays = [features.embeddings, *features.extra.values()]
        assert features.num_bytes >= sum(map(_num_bytes, arrays)), "they state less than they take"

    def test_there_are_media_to_check_with(self) -> None:
        """With fewer, the other tests could not fail."""
        slots = self.slots()
        assert len({slot.digest for slot in slots}) >= 3, "slots() must return three media"
        if self.sizes_differ:
            sizes = {slot.num_features for slot in slots}
            assert len(sizes) > 1, "slots() must return media of two sizes, or set sizes_differ"

    def test_it_names_the_kinds_of_what_it_encodes(self) -> None:
        """Media of other kinds are refused before a prompt is built."""
        encoder = self.make()
        kinds = encoder.media_kinds
        assert isinstance(kinds, frozenset)
        assert {slot.kind for slot in self.shown} <= kinds
        encoder.encode(self.shown[:1])
        assert encoder.media_kinds == kinds

    def test_an_encoder_without_pictures_returns_nothing(self) -> None:
        """An empty batch is valid."""
        assert self.make().encode([]) == []

    def test_each_image_gets_as_many_rows_as_its_slot_has_tokens(self) -> None:
        """``embeddings`` is ``[num_features, hidden]``, finite, of one width."""
        features = self.make().encode(self.shown)
        wanted = [slot.num_features for slot in self.shown]
        assert [f.num_tokens for f in features] == wanted
        shapes = [to_numpy(f.embeddings).shape for f in features]
        assert [rows for rows, _ in shapes] == wanted
        assert len({hidden for _, hidden in shapes}) == 1
        assert all(np.isfinite(to_numpy(f.embeddings)).all() for f in features)
        kinds = {str(getattr(f.embeddings, "dtype", "float")) for f in features}
        assert all("float" in kind for kind in kinds), "embeddings are floating-point numbers"

    def test_a_picture_alone_agrees_with_the_same_in_a_batch(self) -> None:
        """Other images of the batch change neither its features nor its size."""
        encoder, slots = self.make(), self.shown
        alone = [encoder.encode([slot])[0] for slot in slots]
        first = self.make()
        for features, expected in zip(first.encode(slots), alone, strict=True):
            self.agree(features, expected)
        self.agree(first.encode(slots[:1])[0], alone[0])
        first.close()
        numbers = range(len(slots))
        many = random.Random(0).choices(numbers, k=self.most_media)  # repeats nothing regularly
        for order in (list(numbers), list(reversed(numbers)), many):
            batch = encoder.encode([slots[i] for i in order])
            for i, features in zip(order, batch, strict=True):
                self.agree(features, alone[i])

    def test_a_picture_twice_in_a_batch_gets_the_same_features_twice(self) -> None:
        """Every slot gets features, also if an encoder computes equal ones once."""
        slot = self.shown[0]
        made = self.make().encode([slot, slot])
        assert len(made) == 2
        self.agree(*made)

    def test_a_batch_that_fails_leaves_no_trace(self) -> None:
        """Later batches have their own features after any error, of each input that may lack."""
        encoder = self.make()
        expected = [self.make().encode([slot])[0] for slot in self.shown[:3]]
        broken = [
            {name: array for name, array in slot.inputs.items() if name != missing}
            for slot in self.shown[:2]
            for missing in slot.inputs
        ]
        for inputs in ({}, *broken):
            slots = [self.shown[1], dataclasses.replace(self.shown[0], inputs=inputs)]
            with contextlib.suppress(Exception):
                encoder.encode(slots)
            made = encoder.encode(self.shown[:3])
            assert len(made) == len(expected), "a batch has features of one that failed"
            for features, wanted in zip(made, expected, strict=True):
                self.agree(features, wanted)

    def test_features_share_no_memory_with_inputs(self) -> None:
        """The caller owns both, and a feature cache counts the features alone."""
        expected = self.make().encode(self.shown)
        inputs = [
            {name: _cloned(array) for name, array in slot.inputs.items()} for slot in self.shown
        ]
        slots = [
            dataclasses.replace(slot, inputs=own)
            for slot, own in zip(self.shown, inputs, strict=True)
        ]
        made = self.make().encode(slots)
        for array in (array for own in inputs for array in own.values()):
            array[...] = 0
        for features, wanted in zip(made, expected, strict=True):
            self.agree(features, wanted)

    def test_two_encoders_agree(self) -> None:
        """Features depend on the image alone, and the identity on the encoder alone."""
        one, other = self.make(), self.make()
        before = one.identity
        assert isinstance(before, str)
        assert before == other.identity != ""
        for a, b in zip(one.encode(self.shown), other.encode(self.shown), strict=True):
            self.agree(a, b)
        assert one.identity == before, "the identity is constant"
        assert not re.search("0x[0-9a-f]{8}", before), "an address is another one after a restart"

    def test_an_encoder_with_other_weights_has_another_identity(self) -> None:
        """Caches distinguish features by it, across restarts, too."""
        if not (others := self.others()):
            pytest.skip("no others() were given")
        identities = [encoder.identity for encoder in (self.make(), *others)]
        assert len(set(identities)) == len(identities)

    def test_different_pictures_have_different_features(self) -> None:
        """The encoder uses its inputs."""
        slots = list({slot.digest: slot for slot in self.shown}.values())
        features = [to_numpy(f.embeddings) for f in self.make().encode(slots)]
        for i, a in enumerate(features):
            for b in features[:i]:
                assert a.shape != b.shape or np.abs(a - b).max() > self.atol

    def test_the_position_of_an_image_changes_nothing(self) -> None:
        """Caches find its features by its digest in any prompt."""
        encoder, slot = self.make(), self.shown[0]
        later = dataclasses.replace(slot, start=slot.start + 1000, stop=slot.stop + 1000)
        self.agree(encoder.encode([later])[0], encoder.encode([slot])[0])

    def test_features_depend_on_the_inputs_and_not_on_the_digest(self) -> None:
        """Digests are for caches, and may cover more than the inputs; the rest is for prompts."""
        encoder, slot = self.make(), self.shown[0]
        digest = bytes(byte ^ 255 for byte in slot.digest)
        around, stage = (None if slot.around else ("<", ">")), Stage(1.0, 2.0)
        other = dataclasses.replace(
            slot, digest=digest, transform=None, preprocess=stage, around=around
        )
        self.agree(encoder.encode((other,))[0], encoder.encode([slot])[0])

    def test_no_other_field_of_a_slot_changes_features(self) -> None:
        """Each by itself, of each medium, in a batch and alone; its range may have markers, too."""
        encoder = self.make()
        known = {field.name for field in dataclasses.fields(MediaSlot)}
        for slot, expected in zip(self.shown, encoder.encode(self.shown), strict=True):
            variants = self._variants(slot)
            changed = {name for fields in variants for name in fields}
            assert known == changed | {"inputs", "num_features", "kind"}
            slots = [dataclasses.replace(slot, **fields) for fields in variants]
            batch = encoder.encode(slots)
            for fields, features, each in zip(variants, batch, slots, strict=True):
                for found in (features, *encoder.encode([each])):
                    assert found.num_tokens == expected.num_tokens, f"{list(fields)} changes it"
                    self.agree(found, expected)

    def test_features_belong_to_the_caller_alone(self) -> None:
        """A caller that overwrites features changes neither others nor later ones.

        An image may be shown twice in a batch.
        """
        shown = [*self.shown, self.shown[0]]
        for number in range(len(shown)):
            encoder = self.make()
            for encode in self._ways(encoder):
                made = encode(shown)
                before = [_arrays(features) for features in made]
                _overwrite(made[number])
                for features, arrays in zip(made, before, strict=True):
                    if arrays is not before[number]:
                        _equal(_arrays(features), arrays)
                for features, arrays in zip(encode(shown), before, strict=True):
                    _equal(_arrays(features), arrays)

    def test_the_precision_is_a_constant_text(self) -> None:
        """For display; an encoder may state none."""
        encoder = self.make()
        if not isinstance(encoder, StatesPrecision):
            pytest.skip("this encoder states no precision")
        before: object = encoder.precision
        assert isinstance(before, str)
        encoder.encode(self.shown)
        assert encoder.precision == before == self.make().precision  # type: ignore[attr-defined]

    def test_the_inputs_stay_as_they_are(self) -> None:
        """They belong to the tokenizer, which may use them again."""
        before = [_copies(slot.inputs) for slot in self.shown]
        for encode in self._ways(self.make()):
            encode(self.shown)
        for slot, inputs in zip(self.shown, before, strict=True):
            for name, array in _copies(slot.inputs).items():
                np.testing.assert_array_equal(array, inputs[name], err_msg=name)

    def test_the_stated_memory_covers_the_arrays(self) -> None:
        """``num_bytes`` is at least the memory of the arrays, so that caches can count it.

        A part of a larger array keeps all of that array in memory.
        """
        for features in self.make().encode(self.shown):
            arrays = [features.embeddings, *features.extra.values()]
            assert features.num_bytes >= sum(map(_num_bytes, arrays))
            assert features.num_bytes >= _retained_bytes(arrays), "they keep more than they state"

    def test_features_of_an_earlier_call_stay_as_they_are(self) -> None:
        """Callers cache results, so no buffer may be reused."""
        encoder, slots = self.make(), self.shown
        first = encoder.encode(slots[:1])[0]
        before = _arrays(first)
        encoder.encode(slots[::-1])
        encoder.encode(slots[1:])
        for name, array in _arrays(first).items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)

    def test_inputs_and_features_are_released(self) -> None:
        """The caller alone keeps features, within its own bounds.

        The encoder keeps no inputs either, which are larger.
        """
        encoder = self.make()
        slots = [dataclasses.replace(s, inputs=_Inputs(s.inputs)) for s in self.shown]
        features = encoder.encode(slots)
        watched: list[weakref.ref[Any]] = [weakref.ref(each.embeddings) for each in features]
        watched += [weakref.ref(slot.inputs) for slot in slots]
        del features, slots
        if any(reference() is not None for reference in watched):
            gc.collect()  # which takes long where much is imported
        assert not [reference for reference in watched if reference() is not None]

    def test_it_encodes_in_any_thread(self) -> None:
        """It may be neither the thread that built the encoder nor the loop's."""
        encoder = self.make()
        expected = encoder.encode(self.shown[:1])[0]
        with ThreadPoolExecutor(1) as other:
            self.agree(other.submit(encoder.encode, self.shown[:1]).result()[0], expected)
            other.submit(encoder.close).result()

    def test_the_number_of_concurrent_calls_is_constant_and_bounded(self) -> None:
        """From 1 to 64; an encoder without ``max_concurrency`` has one call at a time."""
        encoder = self.make()
        if not isinstance(encoder, EncodesConcurrently):
            pytest.skip("this encoder takes one call at a time")
        stated: object = encoder.max_concurrency
        assert type(stated) is int, "max_concurrency is a whole number"
        assert 1 <= stated <= MAX_CONCURRENCY
        encoder.encode(self.shown)
        assert encoder.max_concurrency == stated

    def test_concurrent_calls_agree_with_single_ones(self) -> None:
        """As many calls at once as the encoder states, each with other media."""
        encoder, expected = self.make(), self.make().encode(self.shown)
        num_calls = getattr(encoder, "max_concurrency", 1)
        if num_calls < 2:
            pytest.skip("this encoder takes one call at a time")
        num_calls = min(num_calls, MOST_CALLS)
        numbers = list(range(len(self.shown)))
        orders = [
            (numbers[call % len(numbers) :] + numbers[: call % len(numbers)])[: 1 + call % 3]
            for call in range(num_calls)
        ]
        begin = threading.Barrier(num_calls)

        def called(order: list[int]) -> list[MediaFeatures]:
            begin.wait(60)
            return encoder.encode([self.shown[number] for number in order])

        with ThreadPoolExecutor(num_calls) as threads:
            for _ in range(NUM_ROUNDS):
                for order, made in zip(orders, threads.map(called, orders), strict=True):
                    assert len(made) == len(order)
                    for number, features in zip(order, made, strict=True):
                        self.agree(features, expected[number])

    def test_scopes_change_no_features(self) -> None:
        """``encode_in_scopes`` returns what ``encode`` returns, whatever a scope's cache holds."""
        encoder = self.make()
        if not isinstance(encoder, EncodesInScopes):
            pytest.skip("this encoder caches nothing beyond one call")
        expected = encoder.encode(self.shown)
        for scopes in (b"ab", b"ba", b"aa"):
            names = islice(cycle([scopes[:1], scopes[1:]]), len(self.shown))
            made = encoder.encode_in_scopes(self.shown, list(names))
            assert len(made) == len(expected)
            for features, wanted in zip(made, expected, strict=True):
                self.agree(features, wanted)

    def test_scopes_of_one_batch_share_nothing(self) -> None:
        """Each medium has the features of its own inputs, whatever another scope sent.

        A client may send a medium with the digest of another client's. Media that a counter names
        as encoded are encoded once for each scope at least.
        """
        encoder = self.make()
        if not isinstance(encoder, EncodesInScopes):
            pytest.skip("this encoder caches nothing beyond one call")
        known, other = self.shown[:2]
        forged = dataclasses.replace(other, digest=known.digest)
        first, second = encoder.encode([known, other])
        tried = [
            *((known, b"scope 1", first), (other, b"scope 1", second)),
            *((forged, b"scope 2", second), (other, b"scope 2", second)),
            *((known, b"scope 3", first), (known, b"scope 1", first)),
            (forged, b"scope 4", second),
        ]
        slots, scopes, expected = map(list, zip(*tried, strict=True))
        before = _num_encoded(encoder)
        for number in range(len(slots)):
            made = encoder.encode_in_scopes(slots, scopes)
            for features, wanted in zip(made, expected, strict=True):
                self.agree(features, wanted)
            _overwrite(made[number])
            for features, wanted in list(zip(made, expected, strict=True))[number + 1 :]:
                self.agree(features, wanted)
        num_different = len({(id(wanted), scope) for _, scope, wanted in tried})
        if before is not None and (after := _num_encoded(encoder)) is not None:
            assert after - before >= num_different, "a scope has what another one had encoded"

    def test_a_scope_finds_nothing_of_an_earlier_one(self) -> None:
        """In one call after the other, whether or not the media have the same number of rows.

        What is sent again with the digest of another scope's medium is encoded for itself.
        """
        encoder = self.make()
        if not isinstance(encoder, EncodesInScopes):
            pytest.skip("this encoder caches nothing beyond one call")
        pairs = [(a, b) for a in self.shown for b in self.shown if a.digest != b.digest]
        sizes = {a.num_features == b.num_features: (a, b) for a, b in pairs}
        for number, (known, other) in enumerate(sizes[each] for each in sorted(sizes)[::-1]):
            forged = dataclasses.replace(other, digest=known.digest)
            first, second = self.make().encode([known, other])
            names = [f"{number} {name}".encode() for name in "abc"]
            tried = [(known, 0, first), (forged, 1, second), (known, 2, first)]
            before = _num_encoded(encoder)
            for slot, name, wanted in [*tried, *tried[::-1]]:
                (made,) = encoder.encode_in_scopes([slot], [names[name]])
                self.agree(made, wanted)
            if before is not None and (after := _num_encoded(encoder)) is not None:
                assert after - before >= len(tried), "a scope has what another one had encoded"

    def test_features_are_copied_to_the_host_without_a_loss(self) -> None:
        """``to_host`` returns arrays that NumPy can read, with equal values and their size."""
        encoder = self.make()
        if not isinstance(encoder, CopiesToHost):
            pytest.skip("NumPy reads the features of this encoder")
        for features in encoder.encode(self.shown):
            copied = encoder.to_host(features)
            assert copied.num_tokens == features.num_tokens
            assert copied.extra.keys() == features.extra.keys()
            pairs = [(copied.embeddings, features.embeddings)]
            pairs += [(copied.extra[name], array) for name, array in features.extra.items()]
            for host, array in pairs:
                np.testing.assert_array_equal(np.from_dlpack(host), to_numpy(array))
            assert copied.num_bytes >= sum(_num_bytes(host) for host, _ in pairs)

    def test_counters_never_fall_and_keep_their_names(self) -> None:
        """Monitors compute rates of them."""
        encoder = self.make()
        if not isinstance(encoder, CountsEncodings):
            pytest.skip("this encoder has no counters")
        before = dict(encoder.counters())
        encoder.encode(self.shown)
        with ThreadPoolExecutor(1) as other:
            after = dict(other.submit(encoder.counters).result())
        assert after.keys() == before.keys()
        assert all(type(number) is int and number >= 0 for number in before.values())
        assert all(after[name] >= number for name, number in before.items())

    def _variants(self, slot: MediaSlot) -> list[dict[str, Any]]:
        """Return other values of the fields that are for caches and prompts."""
        transforms = [each.transform for each in self.shown if each.transform != slot.transform]
        digests = [bytes(byte ^ mask for byte in slot.digest) for mask in (255, 1)]
        return [
            {"start": slot.start + 1000, "stop": slot.stop + 1000},
            {"stop": slot.stop + 3},
            *({"digest": digest} for digest in digests),
            *({"transform": transform} for transform in (None, *transforms[:1])),
            {"preprocess": Stage(1.0, 2.0)},
            {"num_encoded": slot.num_encoded or slot.num_features},  # which 0 means
            *({"around": around} for around in (None, ("", ""), ("<", ">"))),
        ]

    def _ways(self, encoder: MediaEncoder) -> list[Encode]:
        """Return the methods that encode, those in a scope with an empty name and another one."""
        if not isinstance(encoder, EncodesInScopes):
            return [encoder.encode]
        scoped = encoder.encode_in_scopes
        return [encoder.encode, *(partial(_in_scope, scoped, scope) for scope in (b"", b"a"))]

    def test_closing_one_encoder_leaves_another_running(self) -> None:
        """Two encoders share no state that ``close`` ends."""
        one, other = self.make(), self.make()
        expected = other.encode(self.shown)
        one.close()
        for a, b in zip(other.encode(self.shown), expected, strict=True):
            self.agree(a, b)
        other.close()


def _in_scope(encode: Any, scope: bytes, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
    made: list[MediaFeatures] = encode(slots, [scope] * len(slots))
    return made


def _num_encoded(encoder: MediaEncoder) -> int | None:
    """Return how many media were encoded, here and elsewhere; None if no counter says so."""
    counters = encoder.counters() if isinstance(encoder, CountsEncodings) else {}
    if NUM_REMOTE not in counters:
        return None
    return counters[NUM_REMOTE] + counters.get(NUM_REMOTE_FALLBACKS, 0)


def _overwrite(features: MediaFeatures) -> None:
    """Fill all arrays of features that can be written with zeros."""
    for array in (features.embeddings, *features.extra.values()):
        with contextlib.suppress(TypeError, ValueError):
            array[...] = 0  # type: ignore[index]


def _equal(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Fail unless arrays are equal."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


class _Inputs(dict[str, Any]):
    """A mapping that supports weak references."""


def _arrays(features: MediaFeatures) -> dict[str, Any]:
    """Return copies of all arrays, by name."""
    return _copies({"embeddings": features.embeddings, **features.extra})


def _copies(arrays: Mapping[str, Array]) -> dict[str, Any]:
    return {name: to_numpy(array) for name, array in arrays.items()}


def _cloned(array: Any) -> Any:
    """Return a copy of an array, of the same type and library."""
    return array.clone() if hasattr(array, "clone") else np.array(np.from_dlpack(array))


def _retained_bytes(arrays: Seq[Any]) -> int:
    """Return the memory that arrays of NumPy or PyTorch keep, each array behind views once."""
    retained: dict[int, int] = {}
    for array in arrays:
        whole = array
        while isinstance(getattr(whole, "base", None), np.ndarray):
            whole = whole.base
        if hasattr(whole, "untyped_storage"):
            whole = whole.untyped_storage()
            retained[whole.data_ptr()] = whole.nbytes()
        else:
            retained[id(whole)] = _num_bytes(whole)
    return sum(retained.values())


def _num_bytes(array: Any) -> int:
    """Return the memory of an array; a byte for each value where it does not say."""
    return int(getattr(array, "nbytes", np.prod(array.shape)))
