"""What every media encoder must do."""

import math

import numpy as np

from vlmkit.seams.media_encoder import MediaEncoder
from vlmkit.seams.prompt import MediaSlot
from vlmkit.testing.arrays import to_numpy


class MediaEncoderContract:
    """Inherit, override :meth:`make` and :meth:`slots`, and run pytest.

    Attributes:
        atol: largest difference of an embedding's values that counts as equal.
    """

    atol = 1e-4

    def make(self) -> MediaEncoder:
        """Return a fresh encoder; two of them must agree."""
        raise NotImplementedError

    def slots(self) -> list[MediaSlot]:
        """Return the slots of at least three different media, best of different sizes."""
        raise NotImplementedError

    def test_it_names_the_kinds_of_what_it_encodes(self) -> None:
        """What it does not name is refused before a prompt is made of it."""
        kinds = self.make().media_kinds
        assert isinstance(kinds, frozenset)
        assert {slot.kind for slot in self.slots()} <= kinds

    def test_an_encoder_without_pictures_returns_nothing(self) -> None:
        """An empty batch is a batch."""
        assert self.make().encode([]) == []

    def test_each_picture_gets_the_rows_that_its_slot_has_places_for(self) -> None:
        """``embeddings`` is ``[num_features, hidden]``, finite, of one width."""
        slots = self.slots()
        features = self.make().encode(slots)
        assert [f.num_tokens for f in features] == [slot.num_features for slot in slots]
        shapes = [to_numpy(f.embeddings).shape for f in features]
        assert [rows for rows, _ in shapes] == [slot.num_features for slot in slots]
        assert len({hidden for _, hidden in shapes}) == 1
        assert all(np.isfinite(to_numpy(f.embeddings)).all() for f in features)

    def test_a_picture_alone_agrees_with_the_same_in_a_batch(self) -> None:
        """What else is in the batch does not change a picture's features."""
        encoder, slots = self.make(), self.slots()
        alone = [to_numpy(encoder.encode([slot])[0].embeddings) for slot in slots]
        for slot_order in (range(len(slots)), reversed(range(len(slots)))):
            order = list(slot_order)
            batch = encoder.encode([slots[i] for i in order])
            for i, features in zip(order, batch, strict=True):
                np.testing.assert_allclose(
                    to_numpy(features.embeddings), alone[i], atol=self.atol, rtol=0
                )

    def test_a_picture_twice_in_a_batch_gets_the_same_features_twice(self) -> None:
        """Every slot is answered, also where an encoder computes equal ones once."""
        slot = self.slots()[0]
        first, second = self.make().encode([slot, slot])
        np.testing.assert_allclose(
            to_numpy(first.embeddings), to_numpy(second.embeddings), atol=self.atol, rtol=0
        )

    def test_two_encoders_agree(self) -> None:
        """Features are a function of the picture, and the identity is one of the encoder."""
        slots = self.slots()
        one, other = self.make(), self.make()
        assert one.identity == other.identity != ""
        for a, b in zip(one.encode(slots), other.encode(slots), strict=True):
            np.testing.assert_allclose(
                to_numpy(a.embeddings), to_numpy(b.embeddings), atol=self.atol, rtol=0
            )

    def test_different_pictures_have_different_features(self) -> None:
        """The encoder looks at what it is given."""
        features = [to_numpy(f.embeddings) for f in self.make().encode(self.slots())]
        for i, a in enumerate(features):
            for b in features[:i]:
                assert a.shape != b.shape or np.abs(a - b).max() > self.atol

    def test_the_stated_memory_covers_the_arrays(self) -> None:
        """``num_bytes`` is at least a byte for each value, so that caches can count."""
        for features in self.make().encode(self.slots()):
            arrays = [features.embeddings, *features.extra.values()]
            num_values = sum(math.prod(array.shape) for array in arrays)
            assert features.num_bytes >= num_values

    def test_features_of_an_earlier_call_stay_as_they_are(self) -> None:
        """Results are cached by the caller, so no buffer may be reused under them."""
        encoder, slots = self.make(), self.slots()
        first = encoder.encode(slots[:1])[0]
        before = to_numpy(first.embeddings)
        encoder.encode(slots[1:])
        np.testing.assert_array_equal(to_numpy(first.embeddings), before)

    def test_closing_one_encoder_leaves_another_running(self) -> None:
        """Two of them share no state that close() ends."""
        one, other = self.make(), self.make()
        one.close()
        assert len(other.encode(self.slots())) == len(self.slots())
        other.close()
