"""A contract is worth what it catches: each component here is broken in one way, and found out."""

import dataclasses
import math
from collections.abc import Mapping, Sequence as Seq
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from vlmkit.ask.delta import Delta, TextDelta
from vlmkit.ask.media import MediaPart
from vlmkit.ask.message import Message, ReasoningPart
from vlmkit.ask.prompt_options import PromptOptions
from vlmkit.ask.tool_call import ToolCallPart
from vlmkit.errors import VlmkitError
from vlmkit.kit.plain_reader import PlainReader
from vlmkit.kit.reasoning_reader import ReasoningReader
from vlmkit.running.counters import Counters
from vlmkit.running.sampler import ArraySampler
from vlmkit.running.scheduler import ContinuousScheduler
from vlmkit.seams.chat_format import Mark
from vlmkit.seams.engine import Admission, Cache, EngineLimits
from vlmkit.seams.features import MediaFeatures
from vlmkit.seams.observer import Observer, RequestEnd, RequestFacts
from vlmkit.seams.prompt import MediaSlot, Prompt, PromptPlan, Span
from vlmkit.seams.reader import AnswerReader
from vlmkit.seams.sampler import Pick, Row
from vlmkit.seams.sequence import Sequence
from vlmkit.seams.step import Step, StepOutput, WorkItem
from vlmkit.seams.tokenizer import PLAIN
from vlmkit.seams.view import SequenceView
from vlmkit.testing import (
    EngineContract,
    EngineHost,
    MediaEncoderContract,
    ObserverContract,
    SamplerContract,
    SchedulerContract,
    TokenizerContract,
    new_sequence,
    picture,
)
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer, MockTokenStream
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_mock.vocabulary import END, REASONING, REASONING_END, SPECIAL_TOKENS

FAILURES = (AssertionError, AttributeError, VlmkitError, ValueError, pytest.fail.Exception)

# Engines.


class LeaksToOtherScopes(MockEngine):
    def admit(self, sequence: Any) -> Admission | None:
        sequence.scope = b"everyone"
        return super().admit(sequence)


class KeepsRoom(MockEngine):
    def release(self, sequence: SequenceView) -> None:
        del self._states[sequence]


class PromisesRoom(MockEngine):
    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        return super().reserve(sequence, num_tokens) or True


class NeverShares(MockEngine):
    def admit(self, sequence: SequenceView) -> Admission | None:
        return None if super().admit(sequence) is None else Admission(0)


class CountsTheNewestAsCached(MockEngine):
    def admit(self, sequence: SequenceView) -> Admission | None:
        return None if super().admit(sequence) is None else Admission(len(sequence))


class SharesWhatNobodyCommitted(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        for item in items:
            self._pool.commit(item.sequence, min(item.stop, len(item.sequence)))
        return output


class ForgetsToCommit(MockEngine):
    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        pass


class ForgetsTooMuch(MockEngine):
    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        del self._states[sequence].fingerprints[num_tokens - 1 :]


class LooksAtTheSchedulersBooks(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        assert all(item.start >= item.sequence.num_computed_tokens for item in items)
        return super().forward(items)


class ForgetsDrafts(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        cut = [
            structs.replace(i, num_tokens=i.num_tokens - len(i.drafts), num_rows=1, drafts=())
            for i in items
        ]
        return super().forward(cut)


class RepeatsTheLastRow(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        rows = [super(RepeatsTheLastRow, self)._logits([item])[-1] for item in wanted]
        return np.repeat(rows, [item.num_rows for item in wanted], axis=0)


class StandsForRows(MockEngine):
    def admit(self, sequence: Any) -> Admission | None:
        wanted, sequence.wants_from = sequence.wants_from, None
        admission = super().admit(sequence)
        sequence.wants_from = wanted
        return admission


class RepeatsTheLastState(MockEngine):
    def _hidden(self, wanted: Seq[WorkItem]) -> Any:
        rows = [super(RepeatsTheLastState, self)._hidden([item])[-1] for item in wanted]
        return np.repeat(rows, [item.num_rows for item in wanted], axis=0)


class MixesUpHidden(MockEngine):
    def _hidden(self, wanted: Seq[WorkItem]) -> Any:
        return super()._hidden(wanted)[::-1]


class ClaimsDraftsWithoutRows(MockEngine):
    @property
    def limits(self) -> EngineLimits:
        return dataclasses.replace(super().limits, max_item_rows=1)


class TurnsRowsRound(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        return super()._logits(wanted)[::-1]


class AnswersEveryItem(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        return super().forward([structs.replace(i, num_rows=1) for i in items])


class FeelsItsNeighbours(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        return super()._logits(wanted) + 0.01 * len(wanted)


class FeelsItsChunks(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        return super()._logits(wanted) + 0.01 * sum(item.num_tokens for item in wanted)


class Drifts(MockEngine):
    num_steps = 0

    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        self.num_steps += 1
        return super()._logits(wanted) + 0.01 * self.num_steps


class IsBlind(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        return np.zeros((sum(item.num_rows for item in wanted), self.limits.vocab_size))


class TurnsSpansRound(MockEngine):
    def read(self, prompt: Prompt) -> PromptPlan:
        spans = reversed([Span(slot.start, slot.stop) for slot in prompt.media])
        return dataclasses.replace(super().read(prompt), spans=tuple(spans))


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

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        return dict(enumerate(MockVisionEncoder().encode(prompt.media)))

    def twins(self) -> tuple[Prompt, Prompt]:
        pictures = picture(seed=3), picture(seed=4)
        one, other = (MockTokenizer().prompt([Message.of("user", "?", [p])]) for p in pictures)
        return one, other

    def answer_ids(self) -> list[int]:
        return MockTokenizer().encode("This")


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (LeaksToOtherScopes, "another_scope_shares_nothing"),
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
        (TurnsSpansRound, "spans_are_ordered_disjoint_and_inside_the_prompt"),
        (SharesWhatNobodyCommitted, "what_is_not_committed_is_nobody_elses"),
        (ForgetsToCommit, "a_cached_prefix_is_used_and_changes_nothing"),
        (ForgetsTooMuch, "drafts_that_are_refused_leave_nothing_behind"),
        (LooksAtTheSchedulersBooks, "decoding_agrees_with_a_prefill_of_the_same_tokens"),
        (ForgetsDrafts, "drafts_get_the_rows_of_an_answer_that_holds_them"),
        (RepeatsTheLastRow, "drafts_get_the_rows_of_an_answer_that_holds_them"),
        (RepeatsTheLastRow, "each_row_of_an_item_is_that_of_its_token"),
        (TurnsRowsRound, "drafts_may_stand_beside_others_in_a_step"),
        (MixesUpHidden, "hidden_states_are_a_function_of_the_tokens"),
        (RepeatsTheLastState, "each_token_of_a_chunk_may_have_its_hidden_state"),
        (StandsForRows, "a_cached_prefix_ends_before_the_first_wanted_row"),
        (ClaimsDraftsWithoutRows, "the_limits_are_positive"),
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
    with pytest.raises(AssertionError, match="num_rows rows for each item"):
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

    def prepare(self, rows: Seq[Row]) -> Pick:
        changed = {self.field: self.value, "sampler_state": None}
        return super().prepare(
            [Row(dataclasses.replace(row.sequence, **changed), row.ahead) for row in rows]
        )


class ForgetsBans(Forgets):
    field = "banned_ids"


class ForgetsTheEnd(Forgets):
    field, value = "eos_ids", frozenset()


class ForgetsPositions(Forgets):
    field, value = "output_ids", []


class ForgetsWhatIsAhead(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        return super().prepare([Row(row.sequence) for row in rows])


class KeepsWhatIsAhead(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        for row in rows:
            row.sequence.output_ids.extend(row.ahead)
        return super().prepare([Row(row.sequence) for row in rows])


class FeelsOtherRows(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        seed = rows[0].sequence.seed
        return super().prepare(
            [Row(dataclasses.replace(row.sequence, seed=seed), row.ahead) for row in rows]
        )


class Overwrites(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)

        def overwrite(logits: Any) -> Any:
            picked = pick(logits)
            logits[:] = 0.0
            return picked

        return overwrite


class TakesTheLikeliest(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        return lambda logits: np.argmax(np.from_dlpack(logits), axis=-1)


class ReturnsAList(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(logits).tolist()


class Sums(ArraySampler):
    """Lets one row's values reach the others."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(logits + 0 * logits.sum())


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
        (ForgetsWhatIsAhead, "what_is_ahead_counts_as_if_it_were_in_the_answer", ()),
        (KeepsWhatIsAhead, "what_was_ahead_leaves_no_trace", ()),
        (FeelsOtherRows, "seeds_in_one_batch_draw_as_alone", (1.0,)),
        (Sums, "a_row_without_a_finite_value_harms_no_other", (math.nan, 0.0)),
        (ReturnsAList, "there_is_one_token_for_each_row", ()),
        (Overwrites, "the_logits_stay_as_they_are", ()),
        (TakesTheLikeliest, "draws_follow_the_distribution", (1.0,)),
        (TakesTheLikeliest, "top_k_keeps_the_likeliest", ()),
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
        whole = [WorkItem(i.sequence, 0, len(i.sequence), num_rows=1) for i in step.items]
        return dataclasses.replace(step, items=tuple(whole))


class TakesEveryDraft(ContinuousScheduler):
    def _with_drafts(self, item: WorkItem, draft: Any, cache: Cache) -> WorkItem:
        drafts = item.sequence.drafts
        return WorkItem(item.sequence, item.start, 1 + len(drafts), 1 + len(drafts), drafts)


class SharesNothing(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._beginnings.follow = lambda *_: False  # type: ignore[method-assign]


class NeverLetsGo(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._beginnings.let_go = list  # type: ignore[method-assign]


class QueuesBehindThoseWhoShare(ContinuousScheduler):
    def _head(self, limits: EngineLimits, most_followers: int = 1) -> Sequence | None:
        head = super()._head(limits, most_followers)
        return None if self._beginnings._leaders else head


class KnowsNoTime(ContinuousScheduler):
    def commit(self, step: Step, duration_s: float) -> None:
        super().commit(step, 0.0)


class WantsTheLastRowOnly(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        items = [structs.replace(i, num_rows=min(i.num_rows, 1)) for i in step.items]
        return dataclasses.replace(step, items=tuple(items))


class AsksForTooManyRows(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        limits = dataclasses.replace(cache.limits, max_item_rows=64)
        return super().plan(WithLimits(cache, limits))


class WithLimits:
    """A cache that says something else of itself."""

    def __init__(self, cache: Cache, limits: EngineLimits) -> None:
        self._cache, self.limits = cache, limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


class OnScheduler(SchedulerContract):
    step_budget_s = 0.2

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
        (TakesEveryDraft, "drafts_take_nobodys_place"),
        (SharesNothing, "a_common_beginning_is_computed_once"),
        (QueuesBehindThoseWhoShare, "others_overtake_those_who_wait_to_share"),
        (WantsTheLastRowOnly, "who_ends_with_the_prefill_gets_each_wanted_row_once"),
        (AsksForTooManyRows, "who_ends_with_the_prefill_gets_each_wanted_row_once"),
    ],
)
def test_a_broken_scheduler_is_caught(kind: type[ContinuousScheduler], test: str) -> None:
    with pytest.raises(FAILURES):
        getattr(OnScheduler(kind), f"test_{test}")()


@pytest.mark.parametrize("fate", ["ends", "is held", "waits for an image"])
def test_a_scheduler_that_lets_followers_wait_for_ever_is_caught(fate: str) -> None:
    contract = OnScheduler(NeverLetsGo)
    with pytest.raises(AssertionError):
        contract.test_who_waits_to_share_outlives_the_one_who_computes(fate)


@pytest.mark.parametrize("mixes", [True, False])
def test_a_scheduler_that_minds_no_time_is_caught(mixes: bool) -> None:
    with pytest.raises(AssertionError):
        OnScheduler(KnowsNoTime).test_a_long_prompt_stops_no_answer(mixes)


def test_a_scheduler_that_forgets_to_encode_is_caught() -> None:
    simulation = OnScheduler(ForgetsToEncode).simulation()
    slot = MediaSlot(1, 7, bytes(32), {}, 4)
    simulation.add(new_sequence(Prompt((0,) * 9, (slot,))))
    with pytest.raises(AssertionError, match="a medium is computed before it is encoded"):
        simulation.run()


# Tokenizers.


class ParsesSpecialTexts(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        head, found, tail = text.partition("<|end|>")
        ids = super().encode(head)
        return [*ids, END, *self.encode(tail)] if found else ids


class ShowsHalfCharacters(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> PlainReader:
        tokenizer = self

        class Stream:
            def push(self, token_id: int) -> str:
                return tokenizer.decode([token_id])

            def flush(self) -> str:
                return ""

        return PlainReader(Stream())


class SaysWhatItThinks(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> PlainReader:
        return PlainReader(MockTokenStream())


class ChangedReader(ReasoningReader):
    def __init__(self) -> None:
        marks = Mark("<|reasoning|>", REASONING), Mark("<|reasoning_end|>", REASONING_END)
        super().__init__(MockTokenStream, *marks)


class CountsNoMarks(ChangedReader):
    @property
    def num_reasoning_tokens(self) -> int:
        return max(0, super().num_reasoning_tokens - 2)


class CountsAtTheEnd(ChangedReader):
    @property
    def num_reasoning_tokens(self) -> int:
        return super().num_reasoning_tokens if self._phase == "say" else 0


class CountsEveryToken(ChangedReader):
    def push(self, token_id: int) -> tuple[Delta, ...]:
        self._is_open = True
        return super().push(token_id)


class SaysUnfinishedThoughts(ChangedReader):
    def finish(self) -> tuple[Delta, ...]:
        return (*super().finish(), TextDelta("..."))


class WithReader(MockTokenizer):
    kind: type[ChangedReader]

    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> ReasoningReader:
        return self.kind()


class SaysItsMarks(MockTokenizer):
    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        return super().encode(f"<begin>{text}" if adds_special else text)


class HonoursAnything(MockTokenizer):
    @property
    def honours(self) -> frozenset[Any]:
        return super().honours | {"anything"}


class AlwaysBegins(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        return super().prompt(messages, tools=tools)


class ClosesWhatGoesOn(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        goes_on = options.continue_final_message
        ids = (*made.token_ids, *b".") if goes_on else made.token_ids
        return dataclasses.replace(made, token_ids=ids)


class MindsAnything(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        added = len(options.chat_template_kwargs)
        return dataclasses.replace(made, token_ids=(*made.token_ids, *b"x" * added))


class ForgetsEfforts(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        without = dataclasses.replace(options, reasoning_effort=None)
        return super().prompt(messages, tools=tools, options=without)


class NeverShowsSpecials(MockTokenizer):
    def reader(self, prompt: Prompt, *, shows_special: bool = False) -> AnswerReader:
        return super().reader(prompt)


class ForgetsTurns(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        return super().prompt(messages[-1:], tools=tools, options=options)


class ForgetsCalls(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        said = [
            dataclasses.replace(
                message, parts=tuple(p for p in message.parts if not isinstance(p, ToolCallPart))
            )
            for message in messages
        ]
        return super().prompt(said, tools=tools, options=options)


class BelievesThoughts(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        thoughts = "".join(
            part.text for m in messages for part in m.parts if isinstance(part, ReasoningPart)
        )
        made = super().prompt(messages, tools=tools, options=options)
        ends = (END,) * thoughts.count("<|end|>")
        return dataclasses.replace(made, token_ids=(*made.token_ids, *ends))


class ChangesSlots(MockTokenizer):
    def change(self, slots: tuple[MediaSlot, ...]) -> tuple[MediaSlot, ...]:
        raise NotImplementedError

    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        return dataclasses.replace(made, media=self.change(made.media))


class TakesAllForOne(ChangesSlots):
    def change(self, slots: tuple[MediaSlot, ...]) -> tuple[MediaSlot, ...]:
        return tuple(dataclasses.replace(slot, digest=bytes(32)) for slot in slots)


class TurnsSlotsRound(ChangesSlots):
    def change(self, slots: tuple[MediaSlot, ...]) -> tuple[MediaSlot, ...]:
        return slots[::-1]


class LeavesMediaOut(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        known = [
            dataclasses.replace(m, parts=tuple(p for p in m.parts if not isinstance(p, MediaPart)))
            for m in messages
        ]
        return super().prompt(known, tools=tools, options=options)


class LeavesToolsOut(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        return super().prompt(messages, options=options)


class TakesLightForWhole(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        return super().prompt(messages, tools=tools)


class GuessesSizes(MockTokenizer):
    def prompt(
        self, messages: Seq[Message], *, tools: Any = None, options: PromptOptions = PLAIN
    ) -> Prompt:
        made = super().prompt(messages, tools=tools, options=options)
        return dataclasses.replace(made, token_ids=made.token_ids[options.light :])


class OnTokenizer(TokenizerContract):
    def __init__(self, kind: type[MockTokenizer]) -> None:
        self._kind = kind

    def make(self) -> MockTokenizer:
        return self._kind()

    def special_texts(self) -> list[str]:
        return list(SPECIAL_TOKENS)

    def reasoning_marks(self) -> tuple[list[int], list[int]]:
        return [REASONING], [REASONING_END]


def reading(reader: type[ChangedReader]) -> type[MockTokenizer]:
    return type(reader.__name__, (WithReader,), {"kind": reader})


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (SaysWhatItThinks, "reasoning_is_told_apart_from_text"),
        (reading(CountsNoMarks), "reasoning_is_told_apart_from_text"),
        (reading(CountsAtTheEnd), "reasoning_is_counted_while_it_comes"),
        (reading(CountsEveryToken), "text_alone_is_no_reasoning"),
        (reading(SaysUnfinishedThoughts), "an_answer_may_end_inside_its_reasoning"),
        (reading(ChangedReader), "what_follows_a_plain_text_is_text"),
        (ParsesSpecialTexts, "no_text_becomes_a_special_token"),
        (ShowsHalfCharacters, "two_readers_do_not_mix"),
        (SaysItsMarks, "what_is_put_around_a_text_adds_no_text"),
        (ForgetsCalls, "calls_of_tools_are_in_the_prompt_or_refused"),
        (BelievesThoughts, "no_string_of_an_earlier_answer_changes_the_structure_of_a_prompt"),
        (HonoursAnything, "only_what_a_request_may_ask_for_is_honoured"),
        (AlwaysBegins, "a_prompt_may_end_where_no_answer_begins"),
        (ClosesWhatGoesOn, "a_prompt_may_end_inside_the_last_message"),
        (MindsAnything, "variables_that_no_template_asks_for_change_nothing"),
        (ForgetsEfforts, "an_effort_is_said_to_the_model"),
        (NeverShowsSpecials, "special_tokens_show_if_asked_for"),
        (ForgetsTurns, "a_conversation_has_every_turn_in_its_prompt"),
        (LeavesToolsOut, "tools_are_in_the_prompt_or_refused"),
        (LeavesMediaOut, "media_of_unknown_kinds_are_refused_by_name"),
        (TakesAllForOne, "digests_tell_pictures_apart_and_nothing_else"),
        (TurnsSlotsRound, "slots_are_ordered_disjoint_and_inside_the_prompt"),
        (TurnsSlotsRound, "slots_follow_the_order_of_the_images"),
        (TakesLightForWhole, "sizes_alone_give_a_light_prompt_the_same_tokens"),
        (GuessesSizes, "sizes_alone_give_a_light_prompt_the_same_tokens"),
    ],
)
def test_a_broken_tokenizer_is_caught(kind: type[MockTokenizer], test: str) -> None:
    with pytest.raises(FAILURES):
        getattr(OnTokenizer(kind), f"test_{test}")()


# Encoders.


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


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (NamesNoKind, "it_names_the_kinds_of_what_it_encodes"),
        (TurnsFeaturesRound, "a_picture_alone_agrees_with_the_same_in_a_batch"),
        (EncodesTheFirst, "different_pictures_have_different_features"),
        (DropsARow, "each_picture_gets_the_rows_that_its_slot_has_places_for"),
        (ReusesItsBuffer, "features_of_an_earlier_call_stay_as_they_are"),
    ],
)
def test_a_broken_encoder_is_caught(kind: type[MockVisionEncoder], test: str) -> None:
    with pytest.raises(FAILURES):
        getattr(OnEncoder(kind), f"test_{test}")()


# Observers.


class KeepsRequests(Counters):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[RequestFacts] = []

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        self.requests.append(request)


class ExpectsAnAcceptedRequest(Counters):
    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        assert self._counts["num_accepted"]


class TellsRequestsByTheirIds(Observer):
    def __init__(self) -> None:
        self.begun: set[str] = set()

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        assert request.id not in self.begun
        self.begun.add(request.id)

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        self.begun.remove(request.id)


class DividesByNothing(Counters):
    def stats(self) -> Mapping[str, float]:
        return {"mean": float("nan"), **super().stats()}


class CountsForEverybody(Counters):
    everybody = Counters()

    def __init__(self) -> None:
        self.__dict__ = self.everybody.__dict__


class WritesLatinNames(Observer):
    def accepted(self, request: RequestFacts, at_s: float) -> None:
        request.id.encode("ascii")


class NeedsAToken(Observer):
    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        assert end.timings.decode_s / end.usage.completion_tokens


class OnObserver(ObserverContract):
    def __init__(self, kind: type[Observer]) -> None:
        self._kind = kind

    def make(self) -> Observer:
        return self._kind()


@pytest.mark.parametrize(
    ("kind", "test", "arguments"),
    [
        (KeepsRequests, "a_request_that_is_over_is_let_go", ()),
        (ExpectsAnAcceptedRequest, "a_request_may_fail_at_any_time", ()),
        (TellsRequestsByTheirIds, "requests_may_overlap_and_share_an_id", ()),
        (DividesByNothing, "its_numbers_are_numbers_at_any_time", ()),
        (CountsForEverybody, "two_observers_count_apart", ()),
        (WritesLatinNames, "names_may_hold_any_character", ("é",)),
        (NeedsAToken, "it_takes_the_whole_life_of_a_request", ()),
    ],
)
def test_a_broken_observer_is_caught(
    kind: type[Observer], test: str, arguments: tuple[str, ...]
) -> None:
    with pytest.raises((*FAILURES, ZeroDivisionError)):
        getattr(OnObserver(kind), f"test_{test}")(*arguments)
