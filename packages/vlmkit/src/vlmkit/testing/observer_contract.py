"""What every observer must do."""

import gc
import math
import weakref

import pytest

from vlmkit.ask.completion import Chunk, FinishReason, Timings, Usage
from vlmkit.ask.delta import TextDelta
from vlmkit.ask.sample import Sample
from vlmkit.ask.sampling import SamplingParams
from vlmkit.errors import EngineError
from vlmkit.seams.observer import Observer, RequestEnd, RequestFacts, StepFacts

STEP = StepFacts(
    num_sequences=2,
    num_tokens=9,
    num_sampled=1,
    num_preempted=0,
    num_running=2,
    num_waiting=0,
    step_s=0.01,
)


class ObserverContract:
    """Inherit, override :meth:`make`, and run pytest."""

    def make(self) -> Observer:
        """Return a fresh observer."""
        raise NotImplementedError

    def test_it_takes_the_whole_life_of_a_request(self) -> None:
        """Also where an answer has no token, and where choices end for different reasons."""
        observer = self.make()
        self._serve(observer, self._request(n=2), reasons=("stop", "length"))
        observer.step(STEP, 5.0)
        request = self._request()
        observer.accepted(request, 6.0)
        observer.finished(request, self._end(("abort",), num_tokens=0), 7.0)
        observer.close()

    def test_a_request_may_fail_at_any_time(self) -> None:
        """Before it is accepted, before its first token and after it."""
        observer = self.make()
        for num_events in range(3):
            request = self._request()
            if num_events > 0:
                observer.accepted(request, 1.0)
            if num_events > 1:
                observer.first_token(request, 2.0)
            observer.failed(request, EngineError("the engine failed"), 3.0)
        observer.close()

    def test_requests_may_overlap_and_share_an_id(self) -> None:
        """An id is the client's; a request is told from others by identity."""
        observer = self.make()
        one, other = self._request(), self._request()
        observer.accepted(one, 1.0)
        observer.accepted(other, 1.0)
        for request in (one, other):
            observer.first_token(request, 2.0)
        for request in (one, other):
            observer.finished(request, self._end(), 3.0)
        observer.close()

    @pytest.mark.parametrize("text", ['"', "\n", "\\", "é", "\ud800", ""])
    def test_names_may_hold_any_character(self, text: str) -> None:
        """Ids and tenants come from outside."""
        observer = self.make()
        self._serve(observer, self._request(id=text, tenant=text, model=text or "model"))
        observer.close()

    def test_a_request_that_is_over_is_let_go(self) -> None:
        """An observer runs for months."""
        observer = self.make()
        observer.stats()
        gone = []
        for error in (None, EngineError("the engine failed")):
            request = self._request()
            gone.append(weakref.ref(request))
            if error is None:
                self._serve(observer, request)
            else:
                observer.accepted(request, 1.0)
                observer.failed(request, error, 2.0)
            del request, error
        gc.collect()
        assert [ref() for ref in gone] == [None, None]
        observer.close()

    def test_its_numbers_are_numbers_at_any_time(self) -> None:
        """From the start until after the end, by names that are texts."""
        observer = self.make()
        numbers = [observer.stats()]
        self._serve(observer, self._request())
        numbers.append(observer.stats())
        observer.close()
        numbers.append(observer.stats())
        for name, number in (pair for found in numbers for pair in found.items()):
            assert isinstance(name, str)
            assert isinstance(number, int | float)
            assert math.isfinite(number)

    def test_two_observers_count_apart(self) -> None:
        """Each pipeline has its own."""
        one, other = self.make(), self.make()
        before = dict(other.stats())
        self._serve(one, self._request())
        assert dict(other.stats()) == before
        one.close()
        self._serve(other, self._request())
        other.close()

    def _request(
        self,
        *,
        id: str = "req-1",  # noqa: A002 - the field's name
        n: int = 1,
        tenant: str = "",
        model: str = "model",
    ) -> RequestFacts:
        return RequestFacts(id, model, tenant, SamplingParams(n=n), 7, (4,))

    def _end(
        self, reasons: tuple[FinishReason, ...] = ("stop",), *, num_tokens: int = 2
    ) -> RequestEnd:
        return RequestEnd(reasons, Usage(7, num_tokens, 0, (4,)), Timings(0.1, 0.0, 0.2, 0.3))

    def _serve(
        self,
        observer: Observer,
        request: RequestFacts,
        reasons: tuple[FinishReason, ...] = ("stop",),
    ) -> None:
        observer.accepted(request, 1.0)
        observer.first_token(request, 2.0)
        for index, reason in enumerate(reasons):
            observer.tokens(request, Chunk(index, (TextDelta("a"),), (Sample(1),)), 2.0)
            observer.tokens(request, Chunk(index, (), (Sample(2),), reason), 3.0)
        observer.finished(request, self._end(reasons), 3.0)
