"""What every runner must do."""

import asyncio
import gc
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from vlmkit.errors import EngineError, QueueFull, RequestError, VlmkitError
from vlmkit.interfaces.runner import CONSTRAINT, AnswerStream, Runner
from vlmkit.types.completion import Chunk, Completion
from vlmkit.types.constraint import OneOf
from vlmkit.types.demand import Demand
from vlmkit.types.message import Message
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams


class RunnerContract:
    """Inherit, override :meth:`make` and :meth:`fail`, and run pytest.

    Attributes:
        timeout_s: how long tests wait for what a runner must do eventually.
        too_many: long requests that overfill the queue of a runner of :meth:`make`; 0 skips the
            test of a full queue.
    """

    timeout_s = 300.0
    too_many = 0

    def make(self) -> Runner:
        """Return a new runner, which is idle and ready."""
        raise NotImplementedError

    def fail(self, runner: Runner) -> None:
        """Make a runner fail permanently, such as by crashing all its engines."""
        raise NotImplementedError

    def request(self, num_tokens: int = 6, **params: object) -> Request:
        """Return a request for a number of answer tokens; override it if needed."""
        asked = SamplingParams().replaced(
            {"max_tokens": num_tokens, "ignore_eos": True, "seed": 7} | params
        )
        return Request(messages=[Message.of("user", "Tell me a story.")], params=asked)

    def test_its_facts_can_be_serialized(self) -> None:
        """A server may learn them from another process, before any request."""
        with self._runner() as runner:
            facts = runner.facts
            runner.submit(self.request()).result()
            assert runner.facts == facts
            assert pickle.loads(pickle.dumps(facts)) == facts  # noqa: S301 - what we wrote
            assert facts.modalities[0] == "text"
            assert facts.limits.max_sequence_tokens > 0
            assert facts.eos_ids, "no token ends an answer"

    def test_its_facts_name_the_tokens_that_end_an_answer(self) -> None:
        """An answer that ends by itself ends with one of them."""
        with self._runner() as runner:
            asked = self.request(runner.facts.limits.max_sequence_tokens // 2, ignore_eos=False)
            choice = runner.submit(asked).result().choices[0]
            if choice.finish_reason != "stop":
                pytest.skip("its answer does not end by itself")
            assert choice.token_ids[-1] in runner.facts.eos_ids

    def test_an_answer_is_the_same_however_it_is_read(self) -> None:
        """As a whole or in chunks, in async code or not."""
        request = self.request(n=2)

        async def read(runner: Runner) -> list[list[list[int]]]:
            lots = await runner.asubmit(request)
            chunks = []
            while lot := await lots.next_chunks():
                chunks += lot
            done = await (await runner.asubmit(request)).aresult()
            each = [chunk async for chunk in await runner.asubmit(request)]
            return [_gathered(chunks), _token_ids(done), _gathered(each)]

        with self._runner() as runner:
            stream = runner.submit(request)
            assert stream.num_choices == 2
            assert len(stream.prompt_token_ids) == stream.usage.prompt_tokens
            done = stream.result()
            assert tuple(stream.prompt_token_ids) == done.prompt_token_ids
            whole = _token_ids(done)
            assert [len(ids) for ids in whole] == [6, 6]
            assert stream.usage.completion_tokens == 12
            assert list(stream.reasons) == ["length", "length"]
            assert _gathered(runner.submit(request)) == whole
            assert asyncio.run(read(runner)) == [whole] * 3

    def test_usage_and_timings_grow_with_the_answer(self) -> None:
        """Usage, timings and finish reasons, while it runs and at the end."""
        with self._runner() as runner:
            stream = self._endless(runner)
            num_read = 0
            for chunk in stream:
                num_read += len(chunk.samples)
                assert stream.usage.completion_tokens >= num_read
                assert not list(stream.reasons)
                if num_read >= 8:
                    break
            timings = stream.timings
            assert timings.began_s > 0
            assert min(timings.queue_s, timings.first_token_s, timings.decode_s) >= 0
            whole = runner.submit(self.request())
            done = whole.result()
            assert whole.usage == done.usage
            assert done.timings.prompt_s >= 0
            assert done.timings.first_token_s + done.timings.decode_s > 0

    def test_its_tokens_have_the_bytes_of_its_texts(self) -> None:
        """Log-probabilities are reported with them."""
        with self._runner() as runner:
            ends = runner.facts.eos_ids
            choice = runner.submit(self.request()).result().choices[0]
            tokens = [runner.token_bytes(i) for i in choice.token_ids if i not in ends]
            said = b"".join(tokens).decode(errors="replace")
            assert said.strip() == choice.text.strip()

    def test_a_prompt_can_be_tokenized_without_an_answer(self) -> None:
        """Its tokens agree with the usage of an answer, and may be sent as a prompt."""
        plain = Request(text="Once upon a time", task="embed")

        async def counted(runner: Runner, request: Request) -> PromptTokens:
            return await runner.atokenize(request)

        with self._runner() as runner:
            request = self.request()
            told = asyncio.run(counted(runner, request))
            stream = runner.submit(request)
            stream.result()
            assert len(told.token_ids) == stream.usage.prompt_tokens
            assert told.image_tokens == ()
            ids = asyncio.run(counted(runner, plain)).token_ids
            assert asyncio.run(counted(runner, replace(plain, text=None, token_ids=ids))) == (
                PromptTokens(ids)
            )
            assert runner.detokenize(ids).strip() == plain.text
            with pytest.raises(RequestError):
                asyncio.run(counted(runner, Request()))

    def test_a_token_beyond_the_vocabulary_is_refused(self) -> None:
        """Also beside known tokens."""
        with self._runner() as runner:
            ids = runner.submit(self.request()).result().choices[0].token_ids
            for beside in (-1, runner.facts.limits.vocab_size):
                with pytest.raises(RequestError):
                    runner.detokenize([*ids, beside])

    def test_a_prompt_beyond_the_context_is_counted_and_not_answered(self) -> None:
        """It is not truncated, which would answer another prompt."""

        async def counted(runner: Runner, request: Request) -> int:
            return len((await runner.atokenize(request)).token_ids)

        with self._runner() as runner:
            most = runner.facts.limits.max_sequence_tokens
            ids = runner.submit(self.request()).result().choices[0].token_ids
            plain = [i for i in ids if i not in runner.facts.eos_ids][:1]
            asked = Request(token_ids=plain * (most + 1), params=self.request().params)
            assert asyncio.run(counted(runner, asked)) == most + 1
            with pytest.raises(RequestError):
                runner.submit(asked).result()

    def test_a_wrong_request_is_refused_and_harms_no_other(self) -> None:
        """The error comes at once if the caller waits for acceptance."""

        async def refused(runner: Runner) -> None:
            with pytest.raises(RequestError):
                await runner.asubmit(Request())

        with self._runner() as runner:
            running = runner.submit(self.request())
            with pytest.raises(RequestError):
                runner.submit(Request()).result()
            asyncio.run(refused(runner))
            assert len(running.result().choices[0].token_ids) == 6

    def test_admission_sees_the_demand_and_may_refuse(self) -> None:
        """It runs once, before any computation; a refused request leaves nothing behind."""
        told: list[Demand] = []

        def refuse(_: Demand) -> None:
            raise QueueFull("not now")

        async def refused(runner: Runner, request: Request) -> None:
            with pytest.raises(QueueFull):
                await runner.asubmit(request)

        with self._runner() as runner:
            request = self.request(n=2)
            stream = runner.submit(replace(request, admit=told.append))
            stream.result()
            assert told == [Demand(stream.usage.prompt_tokens, (), 12, 2)]
            asyncio.run(refused(runner, replace(request, admit=refuse)))
            assert self._eventually(lambda: not self._num_open(runner))
            travelled = pickle.loads(pickle.dumps(replace(request, admit=refuse)))  # noqa: S301
            runner.submit(travelled).result()

    def test_a_constraint_is_enforced_or_refused(self) -> None:
        """As the facts state; a constraint is never ignored."""
        asked = self.request(16, ignore_eos=False)
        with self._runner() as runner:
            request = replace(asked, constraint=OneOf(("a", "b")))
            if CONSTRAINT in runner.facts.options:
                assert runner.submit(request).result().choices[0].text in ("a", "b")
                return
            with pytest.raises(RequestError):
                runner.submit(request).result()

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

    def test_requests_may_come_from_any_thread(self) -> None:
        """Concurrently, for answers and everything else."""

        def ask(runner: Runner) -> list[list[int]]:
            assert runner.is_ready
            assert runner.stats().num_running >= 0
            return _token_ids(runner.submit(self.request()).result())

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
            with pytest.raises(VlmkitError):
                runner.submit(self.request()).result()
            assert len(running.result().choices[0].token_ids) == 6
            held.abort()
            assert runner.drain(self.timeout_s)

    def test_closing_ends_everything(self) -> None:
        """A second call has no effect."""
        with self._runner() as runner:
            stream = self._endless(runner)
            runner.close()
            assert stream.result().choices[0].finish_reason == "abort"
            assert not runner.is_ready
            with pytest.raises(EngineError):
                runner.submit(self.request()).result()
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
        late: list[BaseException] = []
        with self._runner() as runner:
            runner.on_failure(told.append)
            self.fail(runner)
            assert self._eventually(lambda: bool(told))
            assert not runner.is_ready
            runner.on_failure(late.append)
            assert (len(told), len(late)) == (1, 1)
            with pytest.raises(EngineError):
                runner.submit(self.request()).result()

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

    @contextmanager
    def _runner(self) -> Iterator[Runner]:
        with closing(self.make()) as runner:
            yield runner

    def _endless(self, runner: Runner) -> AnswerStream:
        """Start an answer that cannot end unread, because the loop holds it long before."""
        num_tokens = runner.facts.limits.max_sequence_tokens // 2
        if num_tokens <= 2 * runner.facts.bounds.max_unread_tokens:
            pytest.skip("this model's context ends before a reader is behind")
        return runner.submit(self.request(num_tokens))

    def _num_open(self, runner: Runner) -> int:
        stats = runner.stats()
        return stats.num_running + stats.num_waiting

    def _eventually(self, is_true: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self.timeout_s
        while not is_true():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


def _token_ids(done: Completion) -> list[list[int]]:
    return [choice.token_ids for choice in done.choices]


def _gathered(chunks: Iterable[Chunk]) -> list[list[int]]:
    ids: list[list[int]] = [[], []]
    for chunk in chunks:
        ids[chunk.index] += [sample.token_id for sample in chunk.samples]
    return ids
