"""Runners that break one promise each, derived from a pipeline on the mock engine."""

import dataclasses
import itertools
import threading
import time

import pytest

import vlmkit
from broken import runner_requests
from broken.broken import Broken, Table
from mock_model import script
from vlmkit.errors import QueueFull, RequestError, VlmkitError
from vlmkit.interfaces.runner import CONSTRAINT
from vlmkit.running.engine_loop.stream import Stream
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.completion import Timings
from vlmkit.wire.buffers import NotSerializable
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import RunnerContract


class ChangesItsFacts(vlmkit.Pipeline):
    numbers = itertools.count()

    @property
    def facts(self):
        return dataclasses.replace(self._facts, name=f"model {next(self.numbers)}")

    @facts.setter
    def facts(self, facts):
        self._facts = facts


class KeepsAFileInItsFacts(vlmkit.Pipeline):
    def __init__(self, **parts):
        super().__init__(**parts)
        self.facts = dataclasses.replace(self.facts, name=(lambda: "model"))


class ReturnsOneChoice(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        params = dataclasses.replace(request, params=request.params.replaced({"n": 1}))
        return super().submit(params if request.messages else request, admit)


class ChangesRequestsOfAsubmit(vlmkit.Pipeline):
    async def asubmit(self, request, admit=None):
        other = request.params and request.params.replaced({"max_tokens": 5})
        return await super().asubmit(dataclasses.replace(request, params=other), admit)


class ReturnsTheNamesOfTokens(vlmkit.Pipeline):
    def token_bytes(self, token_id):
        return f"<{token_id}>".encode()


class ShiftsItsTokenTable(vlmkit.Pipeline):
    def token_table(self):
        return [b"", *super().token_table()]


class HasATokenTableOfTheUsualTokens(vlmkit.Pipeline):
    def token_table(self):
        return super().token_table()[:256]


class DetokenizesSpecialTokensInAnEventLoop(vlmkit.Pipeline):
    async def adetokenize(self, token_ids):
        return f"<begin>{await super().adetokenize(token_ids)}"


class DetokenizesAnythingInAnEventLoop(vlmkit.Pipeline):
    async def adetokenize(self, token_ids):
        known = [i for i in token_ids if i < self.facts.limits.vocab_size]
        return await super().adetokenize(known)


class CountsTooFew(vlmkit.Pipeline):
    async def atokenize(self, request):
        told = await super().atokenize(request)
        return dataclasses.replace(told, token_ids=told.token_ids[1:])


class CountsInvalidRequests(vlmkit.Pipeline):
    async def atokenize(self, request):
        asked = request if request.messages or request.text or request.token_ids else None
        return await super().atokenize(asked or vlmkit.Request(text="?"))


class ShowsSpecialTokens(vlmkit.Pipeline):
    def detokenize(self, token_ids):
        return f"<begin>{super().detokenize(token_ids)}"


class AcceptsEverything(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        asked = request.messages or [vlmkit.Message.of("user", "?")]
        return super().submit(dataclasses.replace(request, messages=asked), admit)


class IgnoresConstraints(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        return super().submit(dataclasses.replace(request, constraint=None), admit)


class IgnoresAdmission(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        return super().submit(request)


class AdmitsTwice(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        return super().submit(request, admit and (lambda demand: (admit(demand), admit(demand))))


class ReplacesTheErrorOfAdmission(vlmkit.Pipeline):
    async def asubmit(self, request, admit=None):
        try:
            return await super().asubmit(request, admit)
        except QueueFull as error:
            raise QueueFull(str(error)) from None


class NeverAborts(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        stream = super().submit(request, admit)
        stream._abort = lambda channel: None
        return stream


class IsAlwaysFull(vlmkit.Pipeline):
    is_full = True


class IsNeverReady(vlmkit.Pipeline):
    is_ready = False


class IsAlwaysReady(vlmkit.Pipeline):
    is_ready = True


class CountsOneRequestTooMany(vlmkit.Pipeline):
    def stats(self):
        stats = super().stats()
        return dataclasses.replace(stats, num_running=stats.num_running + 1)


class EndsADrainAtOnce(vlmkit.Pipeline):
    def drain(self, timeout_s):
        super().drain(0.0)
        return True


class AcceptsRequestsDuringADrain(vlmkit.Pipeline):
    def drain(self, timeout_s):
        return False


class FailsOnASecondClose(vlmkit.Pipeline):
    def close(self):
        assert not self._is_closed
        super().close()


class ReportsClosingAsAFailure(vlmkit.Pipeline):
    def on_failure(self, tell):
        self.tell = tell
        super().on_failure(tell)

    def close(self):
        super().close()
        if hasattr(self, "tell"):
            self.tell(RuntimeError("closed"))


class ReportsNoFailures(vlmkit.Pipeline):
    def on_failure(self, tell):
        pass


class IgnoresLateCallbacks(vlmkit.Pipeline):
    def on_failure(self, tell):
        if self.is_ready:
            super().on_failure(tell)


class ChangesTheFacts(vlmkit.Pipeline):
    changes = {}  # noqa: RUF012 - of each that is made

    def __init__(self, **parts):
        super().__init__(**parts)
        self.facts = dataclasses.replace(self.facts, **self.changes)


class PutsTextLast(ChangesTheFacts):
    changes = {"modalities": ("image", "text")}  # noqa: RUF012


class NamesAnotherEndToken(ChangesTheFacts):
    changes = {"eos_ids": frozenset({7})}  # noqa: RUF012


class ClaimsConstraints(ChangesTheFacts):
    changes = {"options": frozenset({CONSTRAINT})}  # noqa: RUF012


class ChangedStream:
    """A stream with some changed attributes."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def __iter__(self):
        return iter(self._stream)

    def __aiter__(self):
        return self._stream.__aiter__()


class WithStreams(vlmkit.Pipeline):
    stream = ChangedStream

    def submit(self, request, admit=None):
        return self.stream(super().submit(request, admit))


class StreamWithLateUsage(ChangedStream):
    @property
    def usage(self):
        usage = self._stream.usage
        return usage if self._stream.is_done else dataclasses.replace(usage, completion_tokens=0)


class CountsOnlyAtTheEnd(WithStreams):
    stream = StreamWithLateUsage


class StreamWithEarlyReasons(ChangedStream):
    @property
    def reasons(self):
        return ("length",) * self._stream.num_choices


class StatesReasonsTooEarly(WithStreams):
    stream = StreamWithEarlyReasons


class StreamWithoutTimings(ChangedStream):
    timings = Timings()


class StatesNoTimings(WithStreams):
    stream = StreamWithoutTimings


class StreamWithoutPrompt(ChangedStream):
    def result(self):
        return dataclasses.replace(self._stream.result(), prompt_token_ids=())


class DropsThePromptFromCompletions(WithStreams):
    stream = StreamWithoutPrompt


class StreamThatAbortsOnce(ChangedStream):
    def abort(self):
        assert not self._stream.is_done
        self._stream.abort()


class StreamThatAbortsItsId(ChangedStream):
    known: dict = {}  # noqa: RUF012 - of all pipelines

    def __init__(self, stream):
        super().__init__(stream)
        self.known.setdefault(stream.id, []).append(stream)

    def abort(self):
        for stream in self.known.pop(self._stream.id, []):
            stream.abort()


class AbortsAllRequestsOfAnId(WithStreams):
    stream = StreamThatAbortsItsId


class AbortsOnce(WithStreams):
    stream = StreamThatAbortsOnce


class StreamWithoutErrorsInLots(ChangedStream):
    async def next_chunks(self):
        try:
            return await self._stream.next_chunks()
        except VlmkitError:
            return []


class SwallowsErrorsOfNextChunks(WithStreams):
    stream = StreamWithoutErrorsInLots


class StreamWithoutErrorsInChunks(ChangedStream):
    def __iter__(self):
        try:
            yield from self._stream
        except VlmkitError:
            return


class SwallowsErrorsOfIteration(WithStreams):
    stream = StreamWithoutErrorsInChunks


class StreamWithLateErrors(ChangedStream):
    def result(self):
        try:
            return self._stream.result()
        except VlmkitError:
            time.sleep(1.0)
            raise


class ReportsFailuresBeforeItsRequestsHaveThem(WithStreams):
    stream = StreamWithLateErrors


class WaitsForReadersAfterAFailure(vlmkit.Pipeline):
    def close(self):
        if not self.is_ready and not self._is_closed:
            time.sleep(2.0)
        super().close()


class SkipsUnknownTokens(vlmkit.Pipeline):
    def detokenize(self, token_ids):
        most = self.facts.limits.vocab_size
        return super().detokenize([i for i in token_ids if 0 <= i < most])


class TruncatesLongPrompts(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        ids = request.token_ids
        return super().submit(dataclasses.replace(request, token_ids=ids and ids[:9]), admit)


class CountsOnlyWhatFits(vlmkit.Pipeline):
    async def atokenize(self, request):
        told = await super().atokenize(request)
        if len(told.token_ids) > self.facts.limits.max_sequence_tokens:
            raise RequestError("too long")
        return told


class WorksInOneThread(vlmkit.Pipeline):
    def __init__(self, **parts):
        super().__init__(**parts)
        self.thread = threading.get_ident()

    def submit(self, request, admit=None):
        if threading.get_ident() != self.thread:
            raise RuntimeError("another thread")
        return super().submit(request, admit)


class IsNeverFull(vlmkit.Pipeline):
    is_full = False


class RestartsForEver(vlmkit.Pipeline):
    is_restarting = True


class ReportsFailuresTwice(vlmkit.Pipeline):
    def on_failure(self, tell):
        super().on_failure(tell)
        super().on_failure(tell)


class ComputesWhatIsRefused(vlmkit.Pipeline):
    refused = None

    def submit(self, request, admit=None):
        demands = []
        stream = super().submit(request, demands.append)
        if admit is not None:
            try:
                admit(demands[0])
            except BaseException:
                self.refused = stream
                raise
        return stream


class StreamWithSortedReasons(Stream):
    @property
    def reasons(self):
        return sorted(super().reasons)


class SortsItsReasons(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        stream = super().submit(request, admit)
        stream.__class__ = StreamWithSortedReasons
        return stream


class StreamWithOneToken(Stream):
    @property
    def usage(self):
        return dataclasses.replace(super().usage, completion_tokens=1)


class CountsScoresAsOneToken(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        stream = super().submit(request, admit)
        if request.task == "score":
            stream.__class__ = StreamWithOneToken
        return stream


class KeepsOneCallback(vlmkit.Pipeline):
    """Keeps the function that was registered last."""

    tell = failure = None

    def on_failure(self, tell):
        if self.tell is None:
            super().on_failure(self.report)
        self.tell = tell
        if self.failure is not None:
            tell(self.failure)

    def report(self, error):
        self.failure = error
        self.tell(error)


class StreamOfTexts(Stream):
    async def next_chunks(self):
        return [chunk for chunk in await super().next_chunks() if chunk.deltas]


class DropsChunksWithoutText(vlmkit.Pipeline):
    async def asubmit(self, request, admit=None):
        stream = await super().asubmit(request, admit)
        stream.__class__ = StreamOfTexts
        return stream


class OnRunner(RunnerContract):
    too_many = 14

    def __init__(self, kind):
        self._kind, self._made = kind, []
        if kind is not vlmkit.Pipeline:
            self.timeout_s = 1.0

    def make(self):
        few = ContinuousScheduler(SchedulerSettings(max_running=6, max_waiting=6))
        runner = self._kind(
            tokenizer=MockTokenizer(),
            engine=MockEngine(),
            media_encoder=MockVisionEncoder(),
            scheduler=few,
        )
        self._made.append(runner)
        return runner

    def fail(self, runner):
        with pytest.raises(VlmkitError):
            vlmkit.Model(runner).generate(script(text="abc", crash_at_token=1))

    def tidy(self):
        for runner in self._made:
            vlmkit.Pipeline.close(runner)


FACTS = "its_facts_can_be_serialized"
GROWS = "usage_and_timings_grow_with_the_answer"
TABLE = Table(
    RunnerContract,
    OnRunner,
    vlmkit.Pipeline,
    (
        Broken(
            ChangesItsFacts,
            "The facts of a runner are constant.",
            "its_facts_can_be_serialized",
        ),
        Broken(
            KeepsAFileInItsFacts,
            "The facts of a runner can be sent by the wire codec.",
            "its_facts_can_be_serialized",
            raises=(NotSerializable,),
        ),
        Broken(
            ReturnsOneChoice,
            "A request gets as many choices as it asks for.",
            "an_answer_is_the_same_however_it_is_read",
        ),
        Broken(
            ChangesRequestsOfAsubmit,
            "asubmit() starts the request that submit() does.",
            "an_answer_is_the_same_however_it_is_read",
        ),
        Broken(
            ReturnsTheNamesOfTokens,
            "token_bytes() returns the bytes of a token.",
            "its_tokens_have_the_bytes_of_its_texts",
        ),
        Broken(
            ShiftsItsTokenTable,
            "token_table() has the bytes of each token at its id.",
            "its_token_table_has_the_bytes_of_its_tokens",
        ),
        Broken(
            HasATokenTableOfTheUsualTokens,
            "token_table() has an item for every column of the logits.",
            "its_token_table_has_the_bytes_of_its_tokens",
        ),
        Broken(
            DetokenizesSpecialTokensInAnEventLoop,
            "adetokenize() returns the text that detokenize() does.",
            "tokens_have_the_same_text_in_an_event_loop",
        ),
        Broken(
            DetokenizesAnythingInAnEventLoop,
            "adetokenize() refuses ids outside the vocabulary.",
            "tokens_have_the_same_text_in_an_event_loop",
        ),
        Broken(
            CountsTooFew,
            "atokenize() returns the tokens of the prompt.",
            "a_prompt_can_be_tokenized_without_an_answer",
        ),
        Broken(
            CountsInvalidRequests,
            "atokenize() refuses an invalid request.",
            "a_prompt_can_be_tokenized_without_an_answer",
        ),
        Broken(
            ShowsSpecialTokens,
            "detokenize() returns a text without special tokens.",
            "a_prompt_can_be_tokenized_without_an_answer",
        ),
        Broken(
            AcceptsEverything,
            "submit() refuses an invalid request.",
            "a_wrong_request_is_refused_and_harms_no_other",
        ),
        Broken(
            IgnoresConstraints,
            "A constraint is enforced or refused.",
            "a_constraint_is_enforced_or_refused",
        ),
        Broken(
            IgnoresAdmission,
            "The admission callback gets the demand of a request and may refuse it.",
            "admission_sees_the_demand_and_may_refuse",
        ),
        Broken(
            AdmitsTwice,
            "The admission callback is called once for each request.",
            "admission_sees_the_demand_and_may_refuse",
        ),
        Broken(
            ReplacesTheErrorOfAdmission,
            "A request that admission refuses raises the error of admission itself.",
            "admission_sees_the_demand_and_may_refuse",
            raises=(QueueFull,),
        ),
        Broken(
            NeverAborts,
            "abort() or dropping the stream stops generation and frees everything.",
            "an_abandoned_request_frees_its_resources",
        ),
        Broken(
            IsAlwaysFull,
            "is_full states whether a request would be refused now.",
            "an_idle_runner_takes_requests",
        ),
        Broken(
            IsNeverReady,
            "is_ready states whether requests can be answered.",
            "an_idle_runner_takes_requests",
        ),
        Broken(
            CountsOneRequestTooMany,
            "stats() counts open requests.",
            "an_idle_runner_takes_requests",
        ),
        Broken(
            EndsADrainAtOnce,
            "drain() returns whether all requests ended in time.",
            "a_drain_lets_answers_end_and_takes_no_more",
        ),
        Broken(
            AcceptsRequestsDuringADrain,
            "drain() refuses new requests.",
            "a_drain_lets_answers_end_and_takes_no_more",
        ),
        Broken(
            FailsOnASecondClose,
            "close() may be called twice.",
            "closing_ends_everything",
        ),
        Broken(
            IsAlwaysReady,
            "A closed runner is not ready.",
            "closing_ends_everything",
        ),
        Broken(
            ReportsClosingAsAFailure,
            "on_failure() reports failures; closing is not a failure.",
            "closing_is_no_failure",
        ),
        Broken(
            KeepsOneCallback,
            "Each function of on_failure() is called.",
            "a_failure_is_reported_once_and_fails_later_requests",
        ),
        Broken(
            DropsChunksWithoutText,
            "next_chunks() returns all chunks, also those without text.",
            "tokens_whose_text_is_held_back_are_delivered",
        ),
        Broken(
            ReportsNoFailures,
            "on_failure() calls its function when the runner fails for good.",
            "a_failure_is_reported_once_and_fails_later_requests",
        ),
        Broken(
            RestartsForEver,
            "is_restarting is false once the runner has failed for good.",
            "a_failure_is_reported_once_and_fails_later_requests",
        ),
        Broken(
            IgnoresLateCallbacks,
            "on_failure() calls its function at once if the runner has failed already.",
            "a_failure_is_reported_once_and_fails_later_requests",
        ),
        Broken(PutsTextLast, "modalities begins with text.", FACTS),
        Broken(
            NamesAnotherEndToken,
            "eos_ids are the tokens that end an answer.",
            "its_facts_name_the_tokens_that_end_an_answer",
        ),
        Broken(
            ClaimsConstraints,
            "options names constraints only if the runner enforces them.",
            "a_constraint_is_enforced_or_refused",
            raises=(RequestError,),
        ),
        Broken(
            DropsThePromptFromCompletions,
            "A completion has the prompt tokens that its stream has.",
            "an_answer_is_the_same_however_it_is_read",
        ),
        Broken(CountsOnlyAtTheEnd, "usage counts the tokens of the request so far.", GROWS),
        Broken(StatesReasonsTooEarly, "reasons covers only choices that ended.", GROWS),
        Broken(StatesNoTimings, "timings covers the time of the request so far.", GROWS),
        Broken(
            AbortsAllRequestsOfAnId,
            "abort() ends its own request alone, whatever ids clients choose.",
            "requests_with_one_id_do_not_mix",
        ),
        Broken(
            AbortsOnce,
            "abort() may be called after an answer has ended.",
            "a_finished_answer_may_be_aborted",
        ),
        Broken(
            SwallowsErrorsOfNextChunks,
            "next_chunks() raises the error of a failed request.",
            "every_reader_gets_the_error_of_a_failure",
        ),
        Broken(
            SwallowsErrorsOfIteration,
            "Iteration raises the error of a failed request.",
            "every_reader_gets_the_error_of_a_failure",
        ),
        Broken(
            SkipsUnknownTokens,
            "detokenize() refuses ids outside the vocabulary.",
            "a_token_beyond_the_vocabulary_is_refused",
        ),
        Broken(
            TruncatesLongPrompts,
            "submit() refuses a request that is too long.",
            "a_prompt_beyond_the_context_is_counted_and_not_answered",
        ),
        Broken(
            CountsOnlyWhatFits,
            "atokenize() also counts prompts that are too long to be answered.",
            "a_prompt_beyond_the_context_is_counted_and_not_answered",
            raises=(RequestError,),
        ),
        Broken(
            WorksInOneThread,
            "The methods of a runner may be called from any thread.",
            "requests_may_come_from_any_thread",
            raises=(RuntimeError,),
        ),
        Broken(
            ComputesWhatIsRefused,
            "admit() decides before the request is queued.",
            "a_refused_request_is_never_computed",
        ),
        Broken(
            SortsItsReasons,
            "Reasons are in the order in which the choices ended.",
            "reasons_are_in_the_order_in_which_the_choices_end",
        ),
        Broken(
            CountsScoresAsOneToken,
            "The usage counts every token of a chunk.",
            "usage_counts_every_token_of_an_answer",
        ),
        Broken(
            IsNeverFull,
            "is_full states whether the queue is full.",
            "a_full_queue_refuses_at_once",
        ),
        Broken(
            ReportsFailuresTwice,
            "on_failure() calls its function once.",
            "a_failure_is_reported_once_and_fails_later_requests",
        ),
        Broken(
            ReportsFailuresBeforeItsRequestsHaveThem,
            "By the time that a failure is reported, every request has its error.",
            "requests_have_their_errors_when_a_failure_is_reported",
        ),
        Broken(
            WaitsForReadersAfterAFailure,
            "close() does not wait for readers.",
            "closing_after_a_failure_waits_for_no_reader",
        ),
        *runner_requests.BROKEN,
    ),
)
