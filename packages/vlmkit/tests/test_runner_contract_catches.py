"""Runners that are broken in one way each, and found out by the contract."""

import dataclasses
import itertools

import pytest
from mock_model import script

import vlmkit
from vlmkit.errors import VlmkitError
from vlmkit.testing import RunnerContract, runner_contract
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer

FAILURES = (AssertionError, AttributeError, TypeError, VlmkitError, pytest.fail.Exception)


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
        self._kind, self.made = kind, []

    def make(self):
        runner = self._kind(tokenizer=MockTokenizer(), engine=MockEngine())
        self.made.append(runner)
        return runner

    def fail(self, runner):
        with pytest.raises(VlmkitError):
            vlmkit.Model(runner).generate(script(text="abc", crash_at_token=1))


@pytest.mark.parametrize(
    ("kind", "test", "arguments"),
    [
        (CountsItsFacts, "its_facts_are_a_value_that_travels", ()),
        (KeepsAFileInItsFacts, "its_facts_are_a_value_that_travels", ()),
        (TakesOneChoice, "an_answer_is_the_same_in_whatever_way_it_is_read", ()),
        (StartsAnotherWithoutALoop, "an_answer_is_the_same_in_whatever_way_it_is_read", ()),
        (NamesItsTokens, "its_tokens_have_the_bytes_of_its_texts", ()),
        (CountsTooFew, "a_prompt_can_be_counted_and_told_without_being_answered", ()),
        (CountsWhatIsWrong, "a_prompt_can_be_counted_and_told_without_being_answered", ()),
        (SaysSpecialTokens, "a_prompt_can_be_counted_and_told_without_being_answered", ()),
        (TakesEverything, "a_wrong_request_is_refused_and_harms_no_other", ()),
        (LeavesTheConstraintOut, "an_answer_keeps_to_its_constraint_or_is_refused", ()),
        (AdmitsEverything, "who_admits_a_request_is_told_what_it_comes_to_and_may_refuse", ()),
        (NeverAborts, "a_request_that_nobody_wants_any_more_leaves", ("aborted",)),
        (NeverAborts, "a_request_that_nobody_wants_any_more_leaves", ("dropped",)),
        (IsFull, "an_idle_runner_takes_requests", ()),
        (IsNeverReady, "an_idle_runner_takes_requests", ()),
        (CountsFromOne, "an_idle_runner_takes_requests", ()),
        (DrainsAtOnce, "a_drain_lets_answers_end_and_takes_no_more", ()),
        (GoesOnWhileItDrains, "a_drain_lets_answers_end_and_takes_no_more", ()),
        (ClosesOnce, "closing_ends_everything", ()),
        (IsAlwaysReady, "closing_ends_everything", ()),
        (ClosingIsAFailure, "closing_is_no_failure", ()),
        (KeepsFailuresToItself, "a_failure_is_told_once_and_to_those_who_ask_later", ()),
        (TellsNobodyLate, "a_failure_is_told_once_and_to_those_who_ask_later", ()),
    ],
)
def test_a_broken_runner_is_caught(kind, test, arguments, monkeypatch):
    monkeypatch.setattr(runner_contract, "TIMEOUT_S", 1.0)
    broken = OnRunner(kind)
    try:
        with pytest.raises(FAILURES):
            getattr(broken, f"test_{test}")(*arguments)
    finally:
        for runner in broken.made:
            vlmkit.Pipeline.close(runner)
