"""Runners that break one promise each, made of a pipeline on the mock."""

import dataclasses
import itertools
import threading
from pickle import PicklingError

import pytest

import vlmkit
from broken.broken import Broken, Table
from mock_model import script
from vlmkit.errors import RequestError, VlmkitError
from vlmkit.interfaces.runner import CONSTRAINT
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.completion import Timings
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_testing import RunnerContract


class CountsItsFacts(vlmkit.Pipeline):
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


class TakesOneChoice(vlmkit.Pipeline):
    def submit(self, request):
        params = dataclasses.replace(request, params=request.params.replaced({"n": 1}))
        return super().submit(params if request.messages else request)


class StartsAnotherWithoutALoop(vlmkit.Pipeline):
    async def asubmit(self, request):
        other = request.params and request.params.replaced({"max_tokens": 5})
        return await super().asubmit(dataclasses.replace(request, params=other))


class NamesItsTokens(vlmkit.Pipeline):
    def token_bytes(self, token_id):
        return f"<{token_id}>".encode()


class CountsTooFew(vlmkit.Pipeline):
    async def atokenize(self, request):
        told = await super().atokenize(request)
        return dataclasses.replace(told, token_ids=told.token_ids[1:])


class CountsWhatIsWrong(vlmkit.Pipeline):
    async def atokenize(self, request):
        asked = request if request.messages or request.text or request.token_ids else None
        return await super().atokenize(asked or vlmkit.Request(text="?"))


class SaysSpecialTokens(vlmkit.Pipeline):
    def detokenize(self, token_ids):
        return f"<begin>{super().detokenize(token_ids)}"


class TakesEverything(vlmkit.Pipeline):
    def submit(self, request):
        asked = request.messages or [vlmkit.Message.of("user", "?")]
        return super().submit(dataclasses.replace(request, messages=asked))


class LeavesTheConstraintOut(vlmkit.Pipeline):
    def submit(self, request):
        return super().submit(dataclasses.replace(request, constraint=None))


class AdmitsEverything(vlmkit.Pipeline):
    def submit(self, request):
        return super().submit(dataclasses.replace(request, admit=None))


class NeverAborts(vlmkit.Pipeline):
    def submit(self, request):
        stream = super().submit(request)
        stream._abort = lambda channel: None
        return stream


class IsFull(vlmkit.Pipeline):
    is_full = True


class IsNeverReady(vlmkit.Pipeline):
    is_ready = False


class IsAlwaysReady(vlmkit.Pipeline):
    is_ready = True


class CountsFromOne(vlmkit.Pipeline):
    def stats(self):
        stats = super().stats()
        return dataclasses.replace(stats, num_running=stats.num_running + 1)


class DrainsAtOnce(vlmkit.Pipeline):
    def drain(self, timeout_s):
        super().drain(0.0)
        return True


class GoesOnWhileItDrains(vlmkit.Pipeline):
    def drain(self, timeout_s):
        return False


class ClosesOnce(vlmkit.Pipeline):
    def close(self):
        assert not self._is_closed
        super().close()


class ClosingIsAFailure(vlmkit.Pipeline):
    def on_failure(self, tell):
        self.tell = tell
        super().on_failure(tell)

    def close(self):
        super().close()
        if hasattr(self, "tell"):
            self.tell(RuntimeError("closed"))


class KeepsFailuresToItself(vlmkit.Pipeline):
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


class NamesAnotherEnd(ChangesTheFacts):
    changes = {"eos_ids": frozenset({7})}  # noqa: RUF012


class ClaimsConstraints(ChangesTheFacts):
    changes = {"options": frozenset({CONSTRAINT})}  # noqa: RUF012


class Tells:
    """A stream that tells some things otherwise."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def __iter__(self):
        return iter(self._stream)

    def __aiter__(self):
        return self._stream.__aiter__()


class WithStreams(vlmkit.Pipeline):
    stream = Tells

    def submit(self, request):
        return self.stream(super().submit(request))


class TellsUsageLate(Tells):
    @property
    def usage(self):
        usage = self._stream.usage
        return usage if self._stream.is_done else dataclasses.replace(usage, completion_tokens=0)


class CountsAtTheEnd(WithStreams):
    stream = TellsUsageLate


class TellsTheEndFirst(Tells):
    @property
    def reasons(self):
        return ("length",) * self._stream.num_choices


class KnowsTheEndBefore(WithStreams):
    stream = TellsTheEndFirst


class TellsNoTimes(Tells):
    timings = Timings()


class TakesNoTime(WithStreams):
    stream = TellsNoTimes


class WithoutPrompt(Tells):
    def result(self):
        return dataclasses.replace(self._stream.result(), prompt_token_ids=())


class ForgetsThePrompt(WithStreams):
    stream = WithoutPrompt


class AbortsWhatRuns(Tells):
    def abort(self):
        assert not self._stream.is_done
        self._stream.abort()


class AbortsOnce(WithStreams):
    stream = AbortsWhatRuns


class EndsInSilence(Tells):
    async def next_chunks(self):
        try:
            return await self._stream.next_chunks()
        except VlmkitError:
            return []


class SwallowsErrorsInLots(WithStreams):
    stream = EndsInSilence


class BreaksOff(Tells):
    def __iter__(self):
        try:
            yield from self._stream
        except VlmkitError:
            return


class SwallowsErrorsInChunks(WithStreams):
    stream = BreaksOff


class SkipsUnknownTokens(vlmkit.Pipeline):
    def detokenize(self, token_ids):
        most = self.facts.limits.vocab_size
        return super().detokenize([i for i in token_ids if 0 <= i < most])


class CutsLongPrompts(vlmkit.Pipeline):
    def submit(self, request):
        ids = request.token_ids
        return super().submit(dataclasses.replace(request, token_ids=ids and ids[:9]))


class CountsWhatFits(vlmkit.Pipeline):
    async def atokenize(self, request):
        told = await super().atokenize(request)
        if len(told.token_ids) > self.facts.limits.max_sequence_tokens:
            raise RequestError("too long")
        return told


class MindsItsThread(vlmkit.Pipeline):
    def __init__(self, **parts):
        super().__init__(**parts)
        self.thread = threading.get_ident()

    def submit(self, request):
        if threading.get_ident() != self.thread:
            raise RuntimeError("another thread")
        return super().submit(request)


class IsNeverFull(vlmkit.Pipeline):
    is_full = False


class TellsTwice(vlmkit.Pipeline):
    def on_failure(self, tell):
        super().on_failure(tell)
        super().on_failure(tell)


class OnRunner(RunnerContract):
    too_many = 14

    def __init__(self, kind):
        self._kind, self._made = kind, []
        if kind is not vlmkit.Pipeline:
            self.timeout_s = 1.0

    def make(self):
        few = ContinuousScheduler(SchedulerSettings(max_running=6, max_waiting=6))
        runner = self._kind(tokenizer=MockTokenizer(), engine=MockEngine(), scheduler=few)
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
            CountsItsFacts,
            "The facts of a runner never change.",
            "its_facts_can_be_serialized",
        ),
        Broken(
            KeepsAFileInItsFacts,
            "The facts of a runner can be pickled.",
            "its_facts_can_be_serialized",
            raises=(AttributeError, PicklingError, TypeError),
        ),
        Broken(
            TakesOneChoice,
            "A request gets as many answers as it asks for.",
            "an_answer_is_the_same_however_it_is_read",
        ),
        Broken(
            StartsAnotherWithoutALoop,
            "asubmit() starts the request that submit() does.",
            "an_answer_is_the_same_however_it_is_read",
        ),
        Broken(
            NamesItsTokens,
            "token_bytes() returns the bytes that a token stands for.",
            "its_tokens_have_the_bytes_of_its_texts",
        ),
        Broken(
            CountsTooFew,
            "atokenize() returns what a request's prompt comes to.",
            "a_prompt_can_be_tokenized_without_an_answer",
        ),
        Broken(
            CountsWhatIsWrong,
            "atokenize() refuses a request that is wrong.",
            "a_prompt_can_be_tokenized_without_an_answer",
        ),
        Broken(
            SaysSpecialTokens,
            "detokenize() returns a text without special tokens.",
            "a_prompt_can_be_tokenized_without_an_answer",
        ),
        Broken(
            TakesEverything,
            "submit() refuses a request that is wrong.",
            "a_wrong_request_is_refused_and_harms_no_other",
        ),
        Broken(
            LeavesTheConstraintOut,
            "An answer is kept within its constraint, or refused.",
            "a_constraint_is_enforced_or_refused",
        ),
        Broken(
            AdmitsEverything,
            "Who admits a request is told what it comes to, and may refuse.",
            "admission_sees_the_demand_and_may_refuse",
        ),
        Broken(
            NeverAborts,
            "abort() stops generating and frees everything; so does dropping the stream.",
            "an_abandoned_request_frees_its_resources",
        ),
        Broken(
            IsFull,
            "is_full tells whether a request would be refused now.",
            "an_idle_runner_takes_requests",
        ),
        Broken(
            IsNeverReady,
            "is_ready tells whether requests can be answered.",
            "an_idle_runner_takes_requests",
        ),
        Broken(
            CountsFromOne,
            "stats() counts the requests that are open.",
            "an_idle_runner_takes_requests",
        ),
        Broken(
            DrainsAtOnce,
            "drain() tells whether all requests ended in time.",
            "a_drain_lets_answers_end_and_takes_no_more",
        ),
        Broken(
            GoesOnWhileItDrains,
            "drain() refuses new requests.",
            "a_drain_lets_answers_end_and_takes_no_more",
        ),
        Broken(
            ClosesOnce,
            "close() is harmless when done twice.",
            "closing_ends_everything",
        ),
        Broken(
            IsAlwaysReady,
            "No runner is ready that was closed.",
            "closing_ends_everything",
        ),
        Broken(
            ClosingIsAFailure,
            "on_failure() tells of failures, and closing is none.",
            "closing_is_no_failure",
        ),
        Broken(
            KeepsFailuresToItself,
            "on_failure() calls a function when no request can be answered any more.",
            "a_failure_is_reported_once_and_fails_later_requests",
        ),
        Broken(
            IgnoresLateCallbacks,
            "on_failure() calls at once where that has happened already.",
            "a_failure_is_reported_once_and_fails_later_requests",
        ),
        Broken(PutsTextLast, "modalities begins with text.", FACTS),
        Broken(
            NamesAnotherEnd,
            "eos_ids are the tokens that end an answer.",
            "its_facts_name_the_tokens_that_end_an_answer",
        ),
        Broken(
            ClaimsConstraints,
            "options says that an answer can be kept within a constraint where it can.",
            "a_constraint_is_enforced_or_refused",
            raises=(RequestError,),
        ),
        Broken(
            ForgetsThePrompt,
            "A completion has the tokens of its prompt, as its stream has.",
            "an_answer_is_the_same_however_it_is_read",
        ),
        Broken(CountsAtTheEnd, "usage is what the request took so far.", GROWS),
        Broken(KnowsTheEndBefore, "reasons is of choices that ended.", GROWS),
        Broken(TakesNoTime, "timings is where its time went so far.", GROWS),
        Broken(
            AbortsOnce,
            "abort() is harmless when an answer is over already.",
            "a_finished_answer_may_be_aborted",
        ),
        Broken(
            SwallowsErrorsInLots,
            "next_chunks() raises where the request failed.",
            "every_reader_gets_the_error_of_a_failure",
        ),
        Broken(
            SwallowsErrorsInChunks,
            "Iteration raises where the request failed.",
            "every_reader_gets_the_error_of_a_failure",
        ),
        Broken(
            SkipsUnknownTokens,
            "detokenize() refuses what is not in the vocabulary.",
            "a_token_beyond_the_vocabulary_is_refused",
        ),
        Broken(
            CutsLongPrompts,
            "submit() refuses a request that is too long.",
            "a_prompt_beyond_the_context_is_counted_and_not_answered",
        ),
        Broken(
            CountsWhatFits,
            "What atokenize() counts may be longer than what can be answered.",
            "a_prompt_beyond_the_context_is_counted_and_not_answered",
            raises=(RequestError,),
        ),
        Broken(
            MindsItsThread,
            "The methods of a runner may be called from any thread.",
            "requests_may_come_from_any_thread",
            raises=(RuntimeError,),
        ),
        Broken(
            IsNeverFull,
            "is_full tells whether a request would be refused because too many wait.",
            "a_full_queue_refuses_at_once",
        ),
        Broken(
            TellsTwice,
            "on_failure() calls a function once.",
            "a_failure_is_reported_once_and_fails_later_requests",
        ),
    ),
)
