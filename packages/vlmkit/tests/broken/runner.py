"""Runners that break one promise each, made of a pipeline on the mock."""

import dataclasses
import itertools
from pickle import PicklingError

import pytest
from mock_model import script

import vlmkit
from broken.broken import Broken, Table
from vlmkit.errors import VlmkitError
from vlmkit.testing import RunnerContract
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer


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


class TellsNobodyLate(vlmkit.Pipeline):
    def on_failure(self, tell):
        if self.is_ready:
            super().on_failure(tell)


class OnRunner(RunnerContract):
    def __init__(self, kind):
        self._kind, self._made = kind, []
        if kind is not vlmkit.Pipeline:
            self.timeout_s = 1.0

    def make(self):
        runner = self._kind(tokenizer=MockTokenizer(), engine=MockEngine())
        self._made.append(runner)
        return runner

    def fail(self, runner):
        with pytest.raises(VlmkitError):
            vlmkit.Model(runner).generate(script(text="abc", crash_at_token=1))

    def tidy(self):
        for runner in self._made:
            vlmkit.Pipeline.close(runner)


TABLE = Table(
    RunnerContract,
    OnRunner,
    vlmkit.Pipeline,
    (
        Broken(
            CountsItsFacts,
            "The facts of a runner never change.",
            "its_facts_are_a_value_that_travels",
        ),
        Broken(
            KeepsAFileInItsFacts,
            "The facts of a runner can be pickled.",
            "its_facts_are_a_value_that_travels",
            raises=(AttributeError, PicklingError, TypeError),
        ),
        Broken(
            TakesOneChoice,
            "A request gets as many answers as it asks for.",
            "an_answer_is_the_same_in_whatever_way_it_is_read",
        ),
        Broken(
            StartsAnotherWithoutALoop,
            "asubmit() starts the request that submit() does.",
            "an_answer_is_the_same_in_whatever_way_it_is_read",
        ),
        Broken(
            NamesItsTokens,
            "token_bytes() returns the bytes that a token stands for.",
            "its_tokens_have_the_bytes_of_its_texts",
        ),
        Broken(
            CountsTooFew,
            "atokenize() returns what a request's prompt comes to.",
            "a_prompt_can_be_counted_and_told_without_being_answered",
        ),
        Broken(
            CountsWhatIsWrong,
            "atokenize() refuses a request that is wrong.",
            "a_prompt_can_be_counted_and_told_without_being_answered",
        ),
        Broken(
            SaysSpecialTokens,
            "detokenize() returns a text without special tokens.",
            "a_prompt_can_be_counted_and_told_without_being_answered",
        ),
        Broken(
            TakesEverything,
            "submit() refuses a request that is wrong.",
            "a_wrong_request_is_refused_and_harms_no_other",
        ),
        Broken(
            LeavesTheConstraintOut,
            "An answer is kept within its constraint, or refused.",
            "an_answer_keeps_to_its_constraint_or_is_refused",
        ),
        Broken(
            AdmitsEverything,
            "Who admits a request is told what it comes to, and may refuse.",
            "who_admits_a_request_is_told_what_it_comes_to_and_may_refuse",
        ),
        Broken(
            NeverAborts,
            "abort() stops generating and frees everything; so does dropping the stream.",
            "a_request_that_nobody_wants_any_more_leaves",
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
            "a_failure_is_told_once_and_to_those_who_ask_later",
        ),
        Broken(
            TellsNobodyLate,
            "on_failure() calls at once where that has happened already.",
            "a_failure_is_told_once_and_to_those_who_ask_later",
        ),
    ),
    is_whole=False,
)
