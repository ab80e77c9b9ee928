"""What every runner must do.

Facts and answers are in a further module.
"""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from vlmkit.errors import EngineError, QueueFull, VlmkitError
from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.kit.runner_state import is_restarting
from vlmkit.types.request import Request
from vlmkit_testing.contracts.runner_answers_contract import RunnerAnswersContract
from vlmkit_testing.contracts.runner_requests_contract import RunnerRequestsContract
from vlmkit_testing.contracts.runner_subject import token_ids_of


class RunnerContract(RunnerAnswersContract, RunnerRequestsContract):
    """Inherit, override :meth:`make` and :meth:`fail`, and run pytest.

    It is about resources: abandoned requests, full queues, the end and failures.
    """

    @pytest.mark.parametrize("how", ["aborted", "dropped"])
    def test_an_abandoned_request_frees_its_resources(self, how: str) -> None:
        """Others can use what it held."""
        with self._runner() as runner:
            stream = self._endless(runner)
            assert self._eventually(lambda: self._num_open(runner) == 1)
            if how == "aborted":
                stream.abort()
                assert stream.result().choices[0].finish_reason == "abort"
            del stream
            gc.collect()
            assert self._eventually(lambda: not self._num_open(runner))

    def test_a_finished_answer_may_be_aborted(self) -> None:
        """Neither an abort after the end nor a second one has an effect."""
        with self._runner() as runner:
            stream = runner.submit(self.request())
            stream.result()
            stream.abort()
            stream.abort()
            assert list(stream.reasons) == ["length"]

    def test_requests_with_one_id_do_not_mix(self) -> None:
        """Clients choose ids: one answer is aborted, and the others are complete."""
        same = replace(self.request(), id="the-same")
        with self._runner() as runner:
            expected = token_ids_of(runner.submit(same).result())
            endless = self._endless(runner, id="the-same")
            streams = [runner.submit(same) for _ in range(2)]
            endless.abort()
            assert [token_ids_of(stream.result()) for stream in streams] == [expected] * 2
            assert endless.result().choices[0].finish_reason == "abort"
            assert self._eventually(lambda: not self._num_open(runner))

    def test_requests_may_come_from_any_thread(self) -> None:
        """Concurrently, for answers and everything else."""

        def ask(runner: Runner) -> list[list[int]]:
            assert runner.is_ready
            assert runner.stats().num_running >= 0
            return token_ids_of(runner.submit(self.request()).result())

        with self._runner() as runner:
            expected = ask(runner)
            with ThreadPoolExecutor(4) as others:
                answers = [others.submit(ask, runner) for _ in range(8)]
                assert [answer.result() for answer in answers] == [expected] * 8

    def test_a_full_queue_refuses_at_once(self) -> None:
        """A request that would only wait fails at once."""
        if not self.too_many:
            pytest.skip("too_many was not given")

        async def accepted(runner: Runner, request: Request) -> AnswerStream:
            return await runner.asubmit(request)

        with self._runner() as runner:
            held = [self._endless(runner)]
            asked = self.request(runner.facts.limits.max_sequence_tokens // 2)
            with pytest.raises(QueueFull):
                while len(held) < self.too_many:
                    held.append(asyncio.run(accepted(runner, asked)))
            assert runner.is_full
            for stream in held:
                stream.abort()
            assert self._eventually(lambda: not runner.is_full)

    def test_an_idle_runner_takes_requests(self) -> None:
        """It is ready, not full and without work."""
        with self._runner() as runner:
            assert runner.is_ready
            assert not runner.is_full
            assert not self._num_open(runner)

    def test_a_drain_lets_answers_end_and_takes_no_more(self) -> None:
        """It returns whether all ended in time."""
        with self._runner() as runner:
            held = self._endless(runner)
            running = runner.submit(self.request())
            assert not runner.drain(0.0)
            self._check_refused(runner, VlmkitError)
            assert len(running.result().choices[0].token_ids) == 6
            held.abort()
            assert runner.drain(self.timeout_s)

    def test_closing_ends_everything(self) -> None:
        """Of requests that run and of those that wait; a second call has no effect."""
        with self._runner() as runner:
            facts, held = runner.facts, [self._endless(runner)]
            with contextlib.suppress(QueueFull):
                while len(held) < self.too_many:
                    held.append(self._endless(runner))
            runner.close()
            for stream in held:
                assert stream.result().choices[0].finish_reason == "abort"
            assert not runner.is_ready
            self._check_refused(runner, EngineError)
            assert runner.facts == facts
            runner.close()

    def test_closing_is_no_failure(self) -> None:
        """Otherwise a server would start another runner."""
        told: list[BaseException] = []
        with self._runner() as runner:
            runner.on_failure(told.append)
        assert not told

    def test_a_failure_is_reported_once_and_fails_later_requests(self) -> None:
        """Every request has its error by then, and later ones fail."""
        told: list[BaseException] = []
        others: list[BaseException] = []
        late: list[BaseException] = []
        with self._runner() as runner:
            runner.on_failure(told.append)
            runner.on_failure(others.append)
            self.fail(runner)
            assert self._eventually(lambda: bool(told and others)), "it is not reported to all"
            assert not runner.is_ready
            assert not is_restarting(runner)
            runner.on_failure(late.append)
            assert (len(told), len(others), len(late)) == (1, 1, 1)
            self._check_refused(runner, EngineError)

    def test_every_reader_gets_the_error_of_a_failure(self) -> None:
        """However the answer is read; a partial answer is never complete."""

        async def in_lots(stream: AnswerStream) -> None:
            while await stream.next_chunks():
                pass

        async def each(stream: AnswerStream) -> None:
            async for _ in stream:
                pass

        async def whole(stream: AnswerStream) -> None:
            await stream.aresult()

        ways: list[Callable[[AnswerStream], object]] = [
            list,
            lambda stream: stream.result(),
            *(
                lambda stream, read=read: asyncio.run(read(stream))
                for read in (in_lots, each, whole)
            ),
        ]
        with self._runner() as runner:
            streams = [self._endless(runner) for _ in ways]
            self.fail(runner)
            for read, stream in zip(ways, streams, strict=True):
                with pytest.raises(VlmkitError):
                    read(stream)

    def test_requests_have_their_errors_when_a_failure_is_reported(self) -> None:
        """The callback can read every answer to its end."""
        ended: list[bool] = []
        with self._runner() as runner:
            streams = [self._endless(runner) for _ in range(2)]

            def read_all(_: BaseException) -> None:
                readers = [threading.Thread(target=_error_of, args=(each,)) for each in streams]
                for reader in readers:
                    reader.daemon = True
                    reader.start()
                for reader in readers:
                    reader.join(self.timeout_s / 4)
                ended.extend(not reader.is_alive() for reader in readers)

            runner.on_failure(read_all)
            self.fail(runner)
            assert self._eventually(lambda: len(ended) == len(streams)), "it is not reported"
        assert all(ended), "an answer had no error yet"

    def test_closing_after_a_failure_waits_for_no_reader(self) -> None:
        """Unread answers are behind when the failure comes."""
        with self._runner() as runner:
            streams = [self._endless(runner) for _ in range(2)]
            enough = runner.facts.bounds.max_unread_tokens
            self._eventually(lambda: all(s.usage.completion_tokens >= enough for s in streams))
            self.fail(runner)
            assert self._eventually(lambda: not runner.is_ready)
            closing = threading.Thread(target=runner.close, daemon=True)
            closing.start()
            closing.join(self.timeout_s)
            assert not closing.is_alive(), "close() did not return"
            assert all(map(_error_of, streams))

    def _check_refused(self, runner: Runner, error: type[VlmkitError]) -> None:
        """Fail unless a request is refused, in an event loop, too."""

        async def submitted() -> None:
            await runner.asubmit(self.request())

        with pytest.raises(error):
            runner.submit(self.request()).result()
        with pytest.raises(error):
            asyncio.run(submitted())


def _error_of(stream: AnswerStream) -> VlmkitError | None:
    """Read a stream to its end; return its error."""
    try:
        stream.result()
    except VlmkitError as error:
        return error
    return None
