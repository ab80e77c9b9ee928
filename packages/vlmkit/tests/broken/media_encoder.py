"""Encoders that break one promise each, made of the mock's."""

import dataclasses
from collections.abc import Sequence as Seq

import numpy as np

from broken.broken import Broken, Table
from vlmkit.ask.message import Message
from vlmkit.seams.features import MediaFeatures
from vlmkit.seams.prompt import MediaSlot
from vlmkit.testing import MediaEncoderContract, picture
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder


class TurnsFeaturesRound(MockVisionEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return super().encode(slots)[::-1]


class EncodesTheFirst(MockVisionEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return super().encode(slots[:1]) * len(slots)


class DropsARow(MockVisionEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return [
            dataclasses.replace(f, embeddings=np.from_dlpack(f.embeddings)[1:])
            for f in super().encode(slots)
        ]


class ReusesItsBuffer(MockVisionEncoder):
    def __init__(self) -> None:
        super().__init__()
        self._buffer = np.zeros((4, 8))

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        for features in made:
            self._buffer[:] = np.from_dlpack(features.embeddings)
        return [dataclasses.replace(f, embeddings=self._buffer) for f in made]


class NamesNoKind(MockVisionEncoder):
    media_kinds = frozenset()


class OnEncoder(MediaEncoderContract):
    def __init__(self, kind: type[MockVisionEncoder]) -> None:
        self._kind = kind

    def make(self) -> MockVisionEncoder:
        return self._kind()

    def slots(self) -> list[MediaSlot]:
        images = [picture(seed=seed) for seed in range(3)]
        return list(MockTokenizer().prompt([Message.of("user", "?", images)]).media)


TABLE = Table(
    MediaEncoderContract,
    OnEncoder,
    MockVisionEncoder,
    (
        Broken(
            NamesNoKind,
            "media_kinds names the kinds of media that it encodes.",
            "it_names_the_kinds_of_what_it_encodes",
        ),
        Broken(
            TurnsFeaturesRound,
            "The features of each medium come in order.",
            "a_picture_alone_agrees_with_the_same_in_a_batch",
        ),
        Broken(
            EncodesTheFirst,
            "The features are those of each medium.",
            "different_pictures_have_different_features",
        ),
        Broken(
            DropsARow,
            "The rows of a medium equal its slot's num_features.",
            "each_picture_gets_the_rows_that_its_slot_has_places_for",
        ),
        Broken(
            ReusesItsBuffer,
            "Features are kept by who asked for them, and never written again.",
            "features_of_an_earlier_call_stay_as_they_are",
        ),
    ),
    is_whole=False,
)
