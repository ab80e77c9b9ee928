"""Media encoders that break one promise each, derived from the mock encoder."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from honest.media_encoder import CachingEncoder

from broken.broken import Broken, Table
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import MediaEncoderContract, picture


class HonestEncoder(MockVisionEncoder):
    """Multiplies features by a gain, which is part of its identity."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain

    @property
    def identity(self) -> str:  # type: ignore[override]
        """The identity of the mock, with the gain."""
        return f"honest {self.gain}"

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        """Return the rows of the mock, times the gain."""
        return changed(super().encode(slots), lambda rows, _: self.gain * rows)


def changed(made: Seq[MediaFeatures], change: Any) -> list[MediaFeatures]:
    """Return features with changed embeddings; ``change`` gets the embeddings and their index."""
    return [
        dataclasses.replace(features, embeddings=change(np.from_dlpack(features.embeddings), i))
        for i, features in enumerate(made)
    ]


class RepeatsAfterSixteen(HonestEncoder):
    """Encodes sixteen media at once, and forgets to go on with the others."""

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots[:16])
        return [made[number % 16] for number in range(len(slots))]


class NamesNoKind(HonestEncoder):
    media_kinds = frozenset()


class NamesKindsInAList(HonestEncoder):
    media_kinds = ["image"]  # type: ignore[assignment] # noqa: RUF012 - the broken promise


class NeedsAnImage(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return super().encode([slots[0], *slots[1:]])


class ReversesFeatures(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return super().encode(slots)[::-1]


class EncodesOnlyTheFirst(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return super().encode(slots[:1]) * len(slots)


class DropsARow(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return changed(super().encode(slots), lambda rows, _: rows[1:])


class MiscountsItsRows(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return [dataclasses.replace(f, num_tokens=1) for f in super().encode(slots)]


class DividesByZero(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return changed(super().encode(slots), lambda rows, _: np.where(rows < 0.1, np.nan, rows))


class ReturnsIntegers(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return changed(super().encode(slots), lambda rows, _: (255 * rows).astype(np.int64))


class KeepsFeaturesOfFailedBatches(HonestEncoder):
    """Collects features in an attribute, and empties it at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[MediaFeatures] = []

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        for slot in slots:
            self.made += super().encode([slot])
        made, self.made = self.made, []
        return made


class ReturnsItsInputs(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return [
            dataclasses.replace(features, extra=dict(slot.inputs))
            for slot, features in zip(slots, super().encode(slots), strict=True)
        ]


class NormalisesOverTheBatch(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        largest = max((np.from_dlpack(f.embeddings).max() for f in made), default=1.0)
        return changed(made, lambda rows, _: rows / largest)


class EncodesAtMostEight(HonestEncoder):
    """Encodes one batch of eight and drops the rest."""

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return changed(super().encode(slots), lambda rows, i: rows if i < 8 else 0 * rows)


class MixesUpExtras(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        turned = reversed([features.extra for features in made])
        return [dataclasses.replace(f, extra=e) for f, e in zip(made, turned, strict=True)]


class EncodesEqualMediaOnce(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return super().encode(list({slot.digest: slot for slot in slots}.values()))


class StartsWithRandomWeights(HonestEncoder):
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.offset = next(self.numbers)

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return changed(super().encode(slots), lambda rows, _: rows + self.offset)


class HasNoIdentity(HonestEncoder):
    identity = ""


class HasAnotherIdentityInEachProcess(HonestEncoder):
    @property
    def identity(self) -> str:
        return f"encoder {id(self)}"


class ChangesItsIdentity(HonestEncoder):
    num_encoded = 0

    @property
    def identity(self) -> str:
        return f"encoder after {self.num_encoded}"

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        self.num_encoded += len(slots)
        return super().encode(slots)


class LeavesWeightsOutOfItsIdentity(HonestEncoder):
    @property
    def identity(self) -> str:
        return "honest"


class DependsOnThePosition(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        return changed(made, lambda rows, i: rows + slots[i].start)


class WritesIntoInputs(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        for slot in slots:
            array: Any = slot.inputs["digest"]
            array.setflags(write=True)
            array[:] = 0
        return made


class IgnoresExtrasInItsMemory(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return [
            dataclasses.replace(f, num_bytes=np.from_dlpack(f.embeddings).nbytes)
            for f in super().encode(slots)
        ]


class ReusesItsBuffer(HonestEncoder):
    def __init__(self) -> None:
        super().__init__()
        self._buffer = np.zeros((4, 8))

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        for features in made:
            self._buffer[: features.num_tokens] = np.from_dlpack(features.embeddings)
        return [dataclasses.replace(f, embeddings=self._buffer[: f.num_tokens]) for f in made]


class KeepsFeatures(HonestEncoder):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[bytes, MediaFeatures] = {}

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        self.kept.update((slot.digest, f) for slot, f in zip(slots, made, strict=True))
        return made


class EncodesInOneThread(HonestEncoder):
    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        if threading.get_ident() != self.thread:
            raise RuntimeError("another thread")
        return super().encode(slots)


class ClosesAllInstances(HonestEncoder):
    closed: list[bool] = []  # noqa: RUF012 - shared, the broken promise

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        return changed(made, lambda rows, _: 0 * rows) if self.closed else made

    def close(self) -> None:
        self.closed.append(True)


class DependsOnTheDigest(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return changed(super().encode(slots), lambda rows, i: rows + slots[i].digest[0])


class KeepsItsLastBatch(HonestEncoder):
    batch: Seq[MediaSlot] = ()

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        self.batch = [*slots]
        return super().encode(slots)


class HasAnAddressInItsIdentity(HonestEncoder):
    @property
    def identity(self) -> str:
        return f"{HonestEncoder.encode} {self.gain}"


class AdaptsToItsFirstBatch(HonestEncoder):
    num = 0

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        self.num = self.num or len(slots)
        gain = min(1.0, len(slots) / max(1, self.num))
        return changed(super().encode(slots), lambda rows, _: gain * rows)


class ConcurrentEncoder(HonestEncoder):
    """Takes three calls at once."""

    max_concurrency = 3


class ScopedEncoder(HonestEncoder):
    """Caches features in scopes, copies them to the host, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[bytes, bytes], MediaFeatures] = {}
        self.num = 0

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        self.num += len(slots)
        return super().encode(slots)

    def encode_in_scopes(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        return self.encode(slots)

    def to_host(self, features: MediaFeatures) -> MediaFeatures:
        return features

    def counters(self) -> dict[str, int]:
        return {"num_encoded": self.num}


class CachesByScopeAlone(ScopedEncoder):
    def encode_in_scopes(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        for slot, scope in zip(slots, scopes, strict=True):
            self.known.setdefault((scope, b""), self.encode([slot])[0])
        return [self.known[scope, b""] for scope in scopes]


class ReturnsWhatItCaches(ScopedEncoder):
    """Returns cached features themselves, and no copies of them."""

    def encode_in_scopes(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        keys = [(scope, slot.digest) for slot, scope in zip(slots, scopes, strict=True)]
        for key, slot in zip(keys, slots, strict=True):
            if key not in self.known:
                self.known[key] = self.encode([slot])[0]
        return [self.known[key] for key in keys]


class RoundsOnTheHost(ScopedEncoder):
    def to_host(self, features: MediaFeatures) -> MediaFeatures:
        return changed([features], lambda rows, _: rows.astype(np.float16).astype(np.float32))[0]


class LosesRowsOnTheHost(ScopedEncoder):
    def to_host(self, features: MediaFeatures) -> MediaFeatures:
        return dataclasses.replace(features, extra={})


class CountsBackwards(ScopedEncoder):
    def counters(self) -> dict[str, int]:
        return {"num_encoded": max(0, 100 - self.num)}


class RenamesItsCounters(ScopedEncoder):
    def counters(self) -> dict[str, int]:
        return {f"num_encoded_{self.num}": self.num}


class StatesNoNumber(HonestEncoder):
    max_concurrency = "3"


class StatesNoCall(HonestEncoder):
    max_concurrency = 0


class StatesTooManyCalls(HonestEncoder):
    max_concurrency = 1000


class StatesFewerCallsLater(HonestEncoder):
    max_concurrency = 3

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        self.max_concurrency = 1
        return super().encode(slots)


class SharesInputsBetweenCalls(ConcurrentEncoder):
    slots: Seq[MediaSlot] = ()

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        self.slots = list(slots)
        time.sleep(0.02)
        made = super().encode(self.slots)
        self.slots = ()
        return made


class ReturnsResultsOfOtherCalls(ConcurrentEncoder):
    def __init__(self) -> None:
        super().__init__()
        self.results: list[list[MediaFeatures]] = []

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        self.results.append(super().encode(slots))
        time.sleep(0.02)
        return self.results.pop()


class RefusesConcurrentCalls(ConcurrentEncoder):
    is_busy = False

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        if self.is_busy:
            raise RuntimeError("another call runs")
        self.is_busy = True
        time.sleep(0.02)
        self.is_busy = False
        return super().encode(slots)


class KeepsTheBatchInMemory(HonestEncoder):
    """Returns parts of one array for all media."""

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        rows = [np.from_dlpack(features.embeddings) for features in made]
        whole = np.concatenate(rows) if rows else None
        stops = list(itertools.accumulate(map(len, rows)))
        return changed(made, lambda own, i: whole[stops[i] - len(own) : stops[i]])


class ReturnsOneBuffer(HonestEncoder):
    """Returns the rows of all media of a size in memory that they share."""

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        sums = np.ones(8, np.float32)
        return [
            dataclasses.replace(each, extra={**each.extra, "sums": sums}, num_bytes=2**12)
            for each in super().encode(slots)
        ]


class CountsHalfOfASingleMedium(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made, divisor = super().encode(slots), 2 if len(slots) == 1 else 1
        return [dataclasses.replace(f, num_bytes=f.num_bytes // divisor) for f in made]


class StatesItsPrecisionLater(HonestEncoder):
    precision: Any = None

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        self.precision = str(np.from_dlpack(made[0].embeddings).dtype) if made else self.precision
        return made


class StatesItsPrecision(HonestEncoder):
    precision = "float32"


class TrustsItsTransform(HonestEncoder):
    """Scales features by the size of an image that the processor states."""

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        return changed(made, lambda rows, i: rows * (0.5 if slots[i].transform is None else 1.0))


class CountsRowsByTheRange(HonestEncoder):
    """Returns a row for each token of a slot but its two markers."""

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = super().encode(slots)
        numbers = [min(slot.stop - slot.start - 2, slot.num_features + 1) for slot in slots]
        return [
            dataclasses.replace(
                f, num_tokens=number, embeddings=np.resize(f.embeddings, (number, 8))
            )
            for f, number in zip(made, numbers, strict=True)
        ]


class EncodesTheTextsAround(HonestEncoder):
    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        lengths = [len("".join(slot.around or ())) for slot in slots]
        return changed(super().encode(slots), lambda rows, i: rows + lengths[i])


class ReadsNoEncodedRows(HonestEncoder):
    """Returns zeros where the rows of the encoder are stated."""

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        gains = [0.0 if slot.num_encoded else 1.0 for slot in slots]
        return changed(super().encode(slots), lambda rows, i: rows * gains[i])


class FindsFeaturesByDigests(ScopedEncoder):
    """Finds features by the digest alone, in any scope, and returns copies."""

    def encode_in_scopes(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        for slot in slots:
            if (slot.digest, b"") not in self.known:
                self.known[slot.digest, b""] = self.encode([slot])[0]
        found = [self.known[slot.digest, b""] for slot in slots]
        return changed(found, lambda rows, _: rows.copy())


class FindsFeaturesThatFit(ScopedEncoder):
    """Finds features by the digest alone, and encodes again where their number is another."""

    def encode_in_scopes(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        keys = [(slot.digest, slot.num_features.to_bytes(4)) for slot in slots]
        for key, slot in zip(keys, slots, strict=True):
            if key not in self.known:
                self.known[key] = self.encode([slot])[0]
        return changed([self.known[key] for key in keys], lambda rows, _: rows.copy())


class StaysInTheFirstScope(ScopedEncoder):
    """Names the scope of its first call to the cache in all calls."""

    first: Seq[bytes] = ()

    def encode_in_scopes(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        self.first = self.first or scopes[:1]
        keys = [(*self.first, slot.digest) for slot in slots]
        for key, slot in zip(keys, slots, strict=True):
            if key not in self.known:
                self.known[key] = self.encode([slot])[0]
        return changed([self.known[key] for key in keys], lambda rows, _: rows.copy())


class SharesFeaturesWithinABatch(ScopedEncoder):
    """Returns the same features for equal media of a batch, whatever their scopes."""

    def encode_in_scopes(self, slots: Seq[MediaSlot], scopes: Seq[bytes]) -> list[MediaFeatures]:
        contents = [np.from_dlpack(slot.inputs["digest"]).tobytes() for slot in slots]
        made = dict(zip(contents, self.encode(slots), strict=True))
        return [made[content] for content in contents]


class CachesForAllScopes(CachingEncoder):
    """Caches by content, which is right, but for all scopes."""

    def _cached(self, slot: MediaSlot, key: tuple[bytes, bytes]) -> MediaFeatures:
        return super()._cached(slot, (b"", key[1]))


class ReturnsSizesTogether(HonestEncoder):
    """Encodes media of one size at a time, and returns them in that order."""

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        groups: dict[int, list[MediaSlot]] = {}
        for slot in slots:
            groups.setdefault(slot.num_features, []).append(slot)
        return [each for group in groups.values() for each in super(type(self), self).encode(group)]


class EncodesEqualImagesOnce(HonestEncoder):
    """Returns the same features for each image of a batch that is shown again."""

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        made = dict(zip((slot.digest for slot in slots), super().encode(slots), strict=True))
        return [made[slot.digest] for slot in slots]


class OnEncoder(MediaEncoderContract):
    def __init__(self, kind: type[HonestEncoder]) -> None:
        self._kind = kind

    def make(self) -> MockVisionEncoder:
        return self._kind()

    def others(self) -> list[Any]:
        louder = self._kind()
        louder.gain = 2.0
        return [louder]

    def slots(self) -> list[MediaSlot]:
        images = [ImagePart(picture(seed=seed)) for seed in range(3)]
        images.insert(1, ImagePart(picture(seed=3), ImageOptions(max_tokens=2)))
        return list(MockTokenizer().prompt([Message.of("user", "?", images)]).media)


class ReturnsTwoSlots(OnEncoder):
    def slots(self) -> list[MediaSlot]:
        return super().slots()[:2]


class ReturnsSlotsOfOneSize(OnEncoder):
    def slots(self) -> list[MediaSlot]:
        return [slot for slot in super().slots() if slot.num_features > 2]


def on_itself(contract: type[OnEncoder]) -> OnEncoder:
    """Return an incomplete contract on a correct encoder."""
    return contract(HonestEncoder)


ROWS = "each_image_gets_as_many_rows_as_its_slot_has_tokens"
ALONE = "a_picture_alone_agrees_with_the_same_in_a_batch"
TABLE = Table(
    MediaEncoderContract,
    OnEncoder,
    HonestEncoder,
    (
        Broken(
            CountsHalfOfASingleMedium,
            "num_bytes is the memory of the arrays, in a batch of any size.",
            ALONE,
        ),
        Broken(
            ReturnsOneBuffer,
            "The caller owns the features of each medium.",
            "features_belong_to_the_caller_alone",
        ),
        Broken(
            EncodesEqualImagesOnce,
            "The caller owns the features of each image, of two equal ones, too.",
            "features_belong_to_the_caller_alone",
        ),
        Broken(
            StatesItsPrecisionLater,
            "The precision is a constant text.",
            "the_precision_is_a_constant_text",
            honest=StatesItsPrecision,
        ),
        Broken(
            TrustsItsTransform,
            "Features depend only on the inputs of a slot.",
            "features_depend_on_the_inputs_and_not_on_the_digest",
        ),
        Broken(
            DependsOnTheDigest,
            "Features are a function of the inputs alone.",
            "features_depend_on_the_inputs_and_not_on_the_digest",
        ),
        *(
            Broken(kind, promise, "no_other_field_of_a_slot_changes_features")
            for kind, promise in (
                (CountsRowsByTheRange, "A slot has num_features rows, whatever its range."),
                (EncodesTheTextsAround, "Texts around a medium are for the prompt."),
                (ReadsNoEncodedRows, "num_encoded of 0 means num_features."),
            )
        ),
        *(
            Broken(kind, promise, "a_scope_finds_nothing_of_an_earlier_one", honest=honest)
            for kind, promise, honest in (
                (FindsFeaturesThatFit, "A digest finds nothing in another scope.", ScopedEncoder),
                (StaysInTheFirstScope, "Each call has scopes of its own.", ScopedEncoder),
                (CachesForAllScopes, "Equal media are encoded in each scope.", CachingEncoder),
            )
        ),
        *(
            Broken(kind, promise, "scopes_of_one_batch_share_nothing", honest=honest)
            for kind, promise, honest in (
                (FindsFeaturesByDigests, "A scope never has another's features.", ScopedEncoder),
                (
                    SharesFeaturesWithinABatch,
                    "Features of two scopes share no memory.",
                    ScopedEncoder,
                ),
                (
                    CachesForAllScopes,
                    "A scope does not learn from response times what another one sent.",
                    CachingEncoder,
                ),
            )
        ),
        Broken(
            KeepsItsLastBatch,
            "The encoder keeps nothing of slots.",
            "inputs_and_features_are_released",
        ),
        Broken(
            HasAnAddressInItsIdentity,
            "The identity is valid in other processes.",
            "two_encoders_agree",
        ),
        Broken(
            AdaptsToItsFirstBatch,
            "Features do not depend on what was encoded first.",
            ALONE,
        ),
        Broken(
            ReturnsTwoSlots,
            "slots() returns at least three media.",
            "there_are_media_to_check_with",
            honest=OnEncoder,
            on=on_itself,
        ),
        Broken(
            ReturnsSlotsOfOneSize,
            "slots() returns media of different sizes, if the model shows any.",
            "there_are_media_to_check_with",
            honest=OnEncoder,
            on=on_itself,
        ),
        Broken(
            KeepsTheBatchInMemory,
            "num_bytes covers the memory that features keep.",
            "the_stated_memory_covers_the_arrays",
        ),
        Broken(ReturnsSizesTogether, "Media of different sizes come in order.", ALONE),
        Broken(
            NamesNoKind,
            "media_kinds names the kinds of media that the encoder encodes.",
            "it_names_the_kinds_of_what_it_encodes",
        ),
        Broken(
            NamesKindsInAList,
            "media_kinds is a frozenset.",
            "it_names_the_kinds_of_what_it_encodes",
        ),
        Broken(
            NeedsAnImage,
            "A batch may be empty.",
            "an_encoder_without_pictures_returns_nothing",
            raises=(IndexError,),
        ),
        Broken(ReversesFeatures, "The features of each medium come in order.", ALONE),
        Broken(NormalisesOverTheBatch, "Other media of a batch change nothing.", ALONE),
        Broken(EncodesAtMostEight, "A batch may have any size.", ALONE),
        Broken(RepeatsAfterSixteen, "Each medium of a large batch has its own features.", ALONE),
        Broken(MixesUpExtras, "extra belongs to its own medium.", ALONE),
        Broken(
            EncodesOnlyTheFirst,
            "Each medium has its own features.",
            "different_pictures_have_different_features",
        ),
        Broken(DropsARow, "embeddings has num_tokens rows.", ROWS),
        Broken(MiscountsItsRows, "num_tokens equals the slot's num_features.", ROWS),
        Broken(DividesByZero, "Embeddings are finite.", ROWS),
        Broken(ReturnsIntegers, "Embeddings are floating-point numbers.", ROWS),
        Broken(
            EncodesEqualMediaOnce,
            "Each medium of a batch gets features, equal ones included.",
            "a_picture_twice_in_a_batch_gets_the_same_features_twice",
        ),
        Broken(StartsWithRandomWeights, "Two encoders of one model agree.", "two_encoders_agree"),
        Broken(HasNoIdentity, "The identity is never empty.", "two_encoders_agree"),
        Broken(
            HasAnotherIdentityInEachProcess,
            "The identity is the same in another process.",
            "two_encoders_agree",
        ),
        Broken(ChangesItsIdentity, "The identity is constant.", "two_encoders_agree"),
        Broken(
            LeavesWeightsOutOfItsIdentity,
            "The identity covers weights, precision and code.",
            "an_encoder_with_other_weights_has_another_identity",
        ),
        Broken(
            DependsOnThePosition,
            "Features are a function of a slot's inputs alone.",
            "the_position_of_an_image_changes_nothing",
        ),
        Broken(WritesIntoInputs, "Inputs are not modified.", "the_inputs_stay_as_they_are"),
        Broken(
            IgnoresExtrasInItsMemory,
            "num_bytes covers the memory of all arrays.",
            "the_stated_memory_covers_the_arrays",
        ),
        Broken(
            ReusesItsBuffer,
            "The caller owns the features; their memory is not reused.",
            "features_of_an_earlier_call_stay_as_they_are",
        ),
        Broken(KeepsFeatures, "The encoder keeps no features.", "inputs_and_features_are_released"),
        Broken(
            EncodesInOneThread,
            "encode() runs in a thread of its own.",
            "it_encodes_in_any_thread",
            raises=(RuntimeError,),
        ),
        Broken(
            ClosesAllInstances,
            "close() frees the memory of this encoder.",
            "closing_one_encoder_leaves_another_running",
        ),
        Broken(
            StatesNoNumber,
            "max_concurrency is a whole number.",
            "the_number_of_concurrent_calls_is_constant_and_bounded",
            honest=ConcurrentEncoder,
        ),
        Broken(
            StatesNoCall,
            "max_concurrency is at least one.",
            "the_number_of_concurrent_calls_is_constant_and_bounded",
            honest=ConcurrentEncoder,
        ),
        Broken(
            StatesTooManyCalls,
            "max_concurrency is at most 64.",
            "the_number_of_concurrent_calls_is_constant_and_bounded",
            honest=ConcurrentEncoder,
        ),
        Broken(
            StatesFewerCallsLater,
            "max_concurrency is constant.",
            "the_number_of_concurrent_calls_is_constant_and_bounded",
            honest=ConcurrentEncoder,
        ),
        Broken(
            SharesInputsBetweenCalls,
            "Concurrent calls share no inputs.",
            "concurrent_calls_agree_with_single_ones",
            honest=ConcurrentEncoder,
        ),
        Broken(
            ReturnsResultsOfOtherCalls,
            "Each call returns the features of its own media.",
            "concurrent_calls_agree_with_single_ones",
            honest=ConcurrentEncoder,
        ),
        Broken(
            RefusesConcurrentCalls,
            "An encoder takes as many calls at once as it states.",
            "concurrent_calls_agree_with_single_ones",
            honest=ConcurrentEncoder,
            raises=(RuntimeError,),
        ),
        Broken(
            CachesByScopeAlone,
            "Features of one medium are not returned for another, in any scope.",
            "scopes_change_no_features",
            honest=ScopedEncoder,
        ),
        Broken(
            ReturnsWhatItCaches,
            "The caller owns the features, also of those that a cache holds.",
            "features_belong_to_the_caller_alone",
            honest=ScopedEncoder,
        ),
        Broken(
            RoundsOnTheHost,
            "Features on the host have equal values.",
            "features_are_copied_to_the_host_without_a_loss",
            honest=ScopedEncoder,
        ),
        Broken(
            LosesRowsOnTheHost,
            "Features on the host have all arrays.",
            "features_are_copied_to_the_host_without_a_loss",
            honest=ScopedEncoder,
        ),
        Broken(
            KeepsFeaturesOfFailedBatches,
            "A batch that fails leaves nothing for the next one.",
            "a_batch_that_fails_leaves_no_trace",
        ),
        Broken(
            ReturnsItsInputs,
            "Features share no memory with inputs.",
            "features_share_no_memory_with_inputs",
        ),
        Broken(
            CountsBackwards,
            "Counters never fall.",
            "counters_never_fall_and_keep_their_names",
            honest=ScopedEncoder,
        ),
        Broken(
            RenamesItsCounters,
            "The names of counters are constant.",
            "counters_never_fall_and_keep_their_names",
            honest=ScopedEncoder,
        ),
    ),
)
