"""A contract is worth what it catches: each component here is broken in one way, and found out."""

import dataclasses
from collections.abc import Mapping, Sequence as Seq
from typing import Any

import numpy as np
import pytest

from vlmkit.errors import VlmkitError
from vlmkit.message import Message
from vlmkit.prompt import ImageSlot, Prompt, Span
from vlmkit.protocols import Cache, ImageFeatures, Sample
from vlmkit.sampler import ArraySampler
from vlmkit.scheduler import ContinuousScheduler
from vlmkit.sequence import Sequence
from vlmkit.step import Step, WorkItem
from vlmkit.testing import (
    EngineContract,
    EngineHost,
    SamplerContract,
    SchedulerContract,
    TokenizerContract,
    VisionEncoderContract,
    new_sequence,
    picture,
)
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_mock.vocabulary import END, SPECIAL_TOKENS

FAILURES = (AssertionError, VlmkitError, ValueError)

# Engines.


class LeaksToOtherTenants(MockEngine):
    def admit(self, sequence: Sequence) -> int | None:
        sequence.tenant = "everyone"
        return super().admit(sequence)


class KeepsRoom(MockEngine):
    def release(self, sequence: Sequence) -> None:
        del self._states[sequence]


class PromisesRoom(MockEngine):
    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        return super().reserve(sequence, num_tokens) or True


class NeverShares(MockEngine):
    def admit(self, sequence: Sequence) -> int | None:
        num_cached = super().admit(sequence)
        return None if num_cached is None else 0


class CountsTheNewestAsCached(MockEngine):
    def admit(self, sequence: Sequence) -> int | None:
        return None if super().admit(sequence) is None else len(sequence)


class TurnsRowsRound(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> Any:
        return super().forward(items)[::-1]


class AnswersEveryItem(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> Any:
        return super().forward([dataclasses.replace(i, wants_logits=True) for i in items])


class FeelsItsNeighbours(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> Any:
        return super().forward(items) + 0.01 * len(items)


class FeelsItsChunks(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> Any:
        return super().forward(items) + 0.01 * sum(item.num_tokens for item in items)


class Drifts(MockEngine):
    num_steps = 0

    def forward(self, items: Seq[WorkItem]) -> Any:
        self.num_steps += 1
        return super().forward(items) + 0.01 * self.num_steps


class IsBlind(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        return np.zeros((len(wanted), self.limits.vocab_size))


class TurnsSpansRound(MockEngine):
    def atomic_spans(self, prompt: Prompt) -> tuple[Span, ...]:
        return tuple(reversed([Span(slot.start, slot.stop) for slot in prompt.images]))


class OnMock(EngineContract):
    atol = 1e-6

    def __init__(self, kind: type[MockEngine]) -> None:
        self._kind = kind

    def make(self) -> MockEngine:
        return self._kind(MockEngineSettings(capacity_tokens=512, max_sequence_tokens=512))

    def prompts(self) -> list[Prompt]:
        asked: list[Any] = [("hello there", []), ("?", [picture(), picture(seed=1)])]
        asked.append(("a question that is longer than two blocks of the cache", [picture()]))
        return [MockTokenizer().prompt([Message.of("user", *parts)]) for parts in asked]

    def features(self, prompt: Prompt) -> Mapping[int, ImageFeatures]:
        return dict(enumerate(MockVisionEncoder().encode(prompt.images)))

    def twins(self) -> tuple[Prompt, Prompt]:
        pictures = picture(seed=3), picture(seed=4)
        one, other = (MockTokenizer().prompt([Message.of("user", "?", [p])]) for p in pictures)
        return one, other

    def answer_ids(self) -> list[int]:
        return MockTokenizer().encode("This")


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (LeaksToOtherTenants, "another_tenant_shares_nothing"),
        (KeepsRoom, "all_room_comes_back"),
        (PromisesRoom, "room_beyond_the_capacity_is_refused"),
        (NeverShares, "a_cached_prefix_is_used_and_changes_nothing"),
        (CountsTheNewestAsCached, "a_cached_prefix_is_used_and_changes_nothing"),
        (TurnsRowsRound, "rows_come_in_the_order_of_their_items"),
        (AnswersEveryItem, "a_chunk_that_wants_no_logits_gets_none"),
        (FeelsItsNeighbours, "a_sequence_alone_agrees_with_the_same_in_a_batch"),
        (FeelsItsChunks, "a_chunked_prefill_agrees_with_a_whole_one"),
        (FeelsItsChunks, "decoding_agrees_with_a_prefill_of_the_same_tokens"),
        (Drifts, "a_step_may_be_repeated"),
        (Drifts, "a_preempted_sequence_goes_on_where_it_was"),
        (IsBlind, "another_picture_changes_the_logits"),
        (TurnsSpansRound, "atomic_spans_are_ordered_disjoint_and_inside_the_prompt"),
    ],
)
def test_a_broken_engine_is_caught(kind: type[MockEngine], test: str) -> None:
    contract = OnMock(kind)
    engine = contract.make()
    fixtures = {
        "engine": engine,
        "host": EngineHost(engine, contract.features),
        "longest": max(contract.prompts(), key=len),
    }
    method = getattr(contract, f"test_{test}")
    wanted = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    with pytest.raises(FAILURES):
        method(**{name: fixtures[name] for name in wanted})


def test_a_row_too_many_is_told_in_words() -> None:
    contract = OnMock(AnswersEveryItem)
    host, longest = EngineHost(contract.make(), contract.features), contract.prompts()[-1]
    with pytest.raises(AssertionError, match="a row for each item with wants_logits"):
        contract.test_a_chunk_that_wants_no_logits_gets_none(host, longest)


def test_a_contract_that_was_given_too_little_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = OnMock(MockEngine)
    monkeypatch.setattr(contract, "prompts", lambda: OnMock(MockEngine).prompts()[:2])
    with pytest.raises(AssertionError, match=r"prompts\(\) must return at least three"):
        contract.test_there_are_prompts_and_answers_to_check_with()


# Samplers.


class Forgets(ArraySampler):
    """Drops one field of every sequence."""

    field = ""
    value: Any = ()

    def sample(self, logits: Any, sequences: Seq[Sequence]) -> list[Sample]:
        changed = [dataclasses.replace(s, **{self.field: self.value}) for s in sequences]
        return super().sample(logits, changed)


class ForgetsBans(Forgets):
    field = "banned_ids"


class ForgetsTheEnd(Forgets):
    field, value = "eos_ids", frozenset()


class ForgetsPositions(Forgets):
    field, value = "output_ids", []


class Overwrites(ArraySampler):
    def sample(self, logits: Any, sequences: Seq[Sequence]) -> list[Sample]:
        samples = super().sample(logits, sequences)
        logits[:] = 0.0
        return samples


class TakesTheLikeliest(ArraySampler):
    def sample(self, logits: Any, sequences: Seq[Sequence]) -> list[Sample]:
        return [Sample(int(i)) for i in np.argmax(logits, axis=-1)]


class OnSampler(SamplerContract):
    def __init__(self, kind: type[ArraySampler]) -> None:
        self._kind = kind

    def make(self) -> ArraySampler:
        return self._kind()


@pytest.mark.parametrize(
    ("kind", "test", "arguments"),
    [
        (ForgetsBans, "banned_tokens_are_never_chosen", ()),
        (ForgetsTheEnd, "the_end_waits_for_the_minimum", ()),
        (ForgetsPositions, "each_position_draws_anew", ()),
        (ForgetsPositions, "a_frequency_penalty_counts_every_time", ()),
        (Overwrites, "the_logits_stay_as_they_are", ()),
        (TakesTheLikeliest, "draws_follow_the_distribution", (1.0,)),
        (TakesTheLikeliest, "top_k_keeps_the_likeliest", ()),
        (TakesTheLikeliest, "log_probabilities_are_the_models_own", ()),
    ],
)
def test_a_broken_sampler_is_caught(
    kind: type[ArraySampler], test: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(FAILURES):
        getattr(OnSampler(kind), f"test_{test}")(*arguments)


# Schedulers.


class KeepsThePlace(ContinuousScheduler):
    def remove(self, sequence: Sequence, cache: Cache) -> None:
        self._ranks.pop(sequence, None)


class ServesOneAtATime(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        return dataclasses.replace(step, items=step.items[:1])


class ForgetsToEncode(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        return dataclasses.replace(super().plan(cache), encodes=())


class WaitsForImages(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        if any(sequence.encoding for sequence in self._running):
            return Step((), ())
        return super().plan(cache)


class NeverHolds(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        for sequence in self._running:
            sequence.is_held = False
        return super().plan(cache)


class ReadsAgain(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        whole = [WorkItem(i.sequence, 0, len(i.sequence), wants_logits=True) for i in step.items]
        return dataclasses.replace(step, items=tuple(whole))


class OnScheduler(SchedulerContract):
    def __init__(self, kind: type[ContinuousScheduler]) -> None:
        self._kind = kind

    def make(self) -> ContinuousScheduler:
        return self._kind()


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (KeepsThePlace, "a_full_cache_delays_but_loses_nobody"),
        (ServesOneAtATime, "several_sequences_run_together"),
        (ServesOneAtATime, "a_newcomer_does_not_wait_for_the_others_to_finish"),
        (WaitsForImages, "an_image_that_is_being_encoded_keeps_nobody_waiting"),
        (NeverHolds, "a_held_sequence_rests_until_it_is_let_go"),
        (ReadsAgain, "a_cached_prefix_is_not_computed_again"),
    ],
)
def test_a_broken_scheduler_is_caught(kind: type[ContinuousScheduler], test: str) -> None:
    with pytest.raises(FAILURES):
        getattr(OnScheduler(kind), f"test_{test}")()


def test_a_scheduler_that_forgets_to_encode_is_caught() -> None:
    simulation = OnScheduler(ForgetsToEncode).simulation()
    slot = ImageSlot(1, 7, bytes(32), {}, 4)
    simulation.add(new_sequence(Prompt((0,) * 9, (slot,))))
    with pytest.raises(AssertionError, match="an image is computed before it is encoded"):
        simulation.run()


# Tokenizers.


class ParsesSpecialTexts(MockTokenizer):
    def encode(self, text: str) -> list[int]:
        head, found, tail = text.partition("<|end|>")
        ids = super().encode(head)
        return [*ids, END, *self.encode(tail)] if found else ids


class ShowsHalfCharacters(MockTokenizer):
    def stream(self) -> Any:
        tokenizer = self

        class Stream:
            def push(self, token_id: int) -> str:
                return tokenizer.decode([token_id])

            def flush(self) -> str:
                return ""

        return Stream()


class ForgetsTurns(MockTokenizer):
    def prompt(self, messages: Seq[Message], *, tools: Any = None) -> Prompt:
        return super().prompt(messages[-1:], tools=tools)


class ChangesSlots(MockTokenizer):
    def change(self, slots: tuple[ImageSlot, ...]) -> tuple[ImageSlot, ...]:
        raise NotImplementedError

    def prompt(self, messages: Seq[Message], *, tools: Any = None) -> Prompt:
        made = super().prompt(messages, tools=tools)
        return dataclasses.replace(made, images=self.change(made.images))


class TakesAllForOne(ChangesSlots):
    def change(self, slots: tuple[ImageSlot, ...]) -> tuple[ImageSlot, ...]:
        return tuple(dataclasses.replace(slot, digest=bytes(32)) for slot in slots)


class TurnsSlotsRound(ChangesSlots):
    def change(self, slots: tuple[ImageSlot, ...]) -> tuple[ImageSlot, ...]:
        return slots[::-1]


class OnTokenizer(TokenizerContract):
    def __init__(self, kind: type[MockTokenizer]) -> None:
        self._kind = kind

    def make(self) -> MockTokenizer:
        return self._kind()

    def special_texts(self) -> list[str]:
        return list(SPECIAL_TOKENS)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (ParsesSpecialTexts, "no_text_becomes_a_special_token"),
        (ShowsHalfCharacters, "two_streams_do_not_mix"),
        (ForgetsTurns, "a_conversation_has_every_turn_in_its_prompt"),
        (TakesAllForOne, "digests_tell_pictures_apart_and_nothing_else"),
        (TurnsSlotsRound, "slots_are_ordered_disjoint_and_inside_the_prompt"),
        (TurnsSlotsRound, "slots_follow_the_order_of_the_images"),
    ],
)
def test_a_broken_tokenizer_is_caught(kind: type[MockTokenizer], test: str) -> None:
    with pytest.raises(FAILURES):
        getattr(OnTokenizer(kind), f"test_{test}")()


# Encoders.


class TurnsFeaturesRound(MockVisionEncoder):
    def encode(self, slots: Seq[ImageSlot]) -> list[ImageFeatures]:
        return super().encode(slots)[::-1]


class EncodesTheFirst(MockVisionEncoder):
    def encode(self, slots: Seq[ImageSlot]) -> list[ImageFeatures]:
        return super().encode(slots[:1]) * len(slots)


class DropsARow(MockVisionEncoder):
    def encode(self, slots: Seq[ImageSlot]) -> list[ImageFeatures]:
        return [
            dataclasses.replace(f, embeddings=np.from_dlpack(f.embeddings)[1:])
            for f in super().encode(slots)
        ]


class ReusesItsBuffer(MockVisionEncoder):
    def __init__(self) -> None:
        super().__init__()
        self._buffer = np.zeros((4, 8))

    def encode(self, slots: Seq[ImageSlot]) -> list[ImageFeatures]:
        made = super().encode(slots)
        for features in made:
            self._buffer[:] = np.from_dlpack(features.embeddings)
        return [dataclasses.replace(f, embeddings=self._buffer) for f in made]


class OnEncoder(VisionEncoderContract):
    def __init__(self, kind: type[MockVisionEncoder]) -> None:
        self._kind = kind

    def make(self) -> MockVisionEncoder:
        return self._kind()

    def slots(self) -> list[ImageSlot]:
        images = [picture(seed=seed) for seed in range(3)]
        return list(MockTokenizer().prompt([Message.of("user", "?", images)]).images)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (TurnsFeaturesRound, "a_picture_alone_agrees_with_the_same_in_a_batch"),
        (EncodesTheFirst, "different_pictures_have_different_features"),
        (DropsARow, "each_picture_gets_the_rows_that_its_slot_has_places_for"),
        (ReusesItsBuffer, "features_of_an_earlier_call_stay_as_they_are"),
    ],
)
def test_a_broken_encoder_is_caught(kind: type[MockVisionEncoder], test: str) -> None:
    with pytest.raises(FAILURES):
        getattr(OnEncoder(kind), f"test_{test}")()
