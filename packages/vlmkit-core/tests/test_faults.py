"""A pipeline with faulty components: only affected requests fail, and every request ends."""

import asyncio
import gc
import threading
import time
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

from mock_model import picture, script, wait_until
from vlmkit.errors import EngineError, RequestError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.model import Model
from vlmkit.running.engine_loop.feature_cache import FeatureCache
from vlmkit.running.engine_loop.job import Job
from vlmkit.running.engine_loop.stream import Channel, Stream
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.delta import text_of
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder


@contextmanager
def running(*, engine=None, tokenizer=None, encoder=None, sampler=None, scheduler=None, **options):
    model = Model(
        Pipeline(
            tokenizer=tokenizer or MockTokenizer(),
            engine=engine or MockEngine(),
            media_encoder=encoder or MockVisionEncoder(),
            sampler=sampler,
            scheduler=ContinuousScheduler(SchedulerSettings(**(scheduler or {}))),
            settings=PipelineSettings(**options),
        )
    )
    try:
        yield model
    finally:
        model.close()


def assert_serves(model):
    """Assert that a new request is answered, and that nothing is left of earlier ones."""
    assert model.generate(script(text="still here")).text == "still here"
    wait_until(lambda: model.runner._loop.num_jobs == model.runner._loop.num_running == 0)
    assert model.runner._engine.num_free_tokens == model.facts.limits.capacity_tokens


# Detokenizers.


class BreakingTokenizer(MockTokenizer):
    """Its readers raise at the letter ``!``, and at the end of an answer with ``?``."""

    def reader(self, prompt, *, shows_special=False):
        return BreakingReader(super().reader(prompt))


class BreakingReader:
    num_reasoning_tokens = 0

    def __init__(self, inner):
        self._inner, self._text = inner, ""

    def push(self, token_id):
        deltas = self._inner.push(token_id)
        text = text_of(deltas)
        self._text += text
        if "!" in text:
            raise UnicodeError("the words of a library")
        return deltas

    def finish(self):
        if "?" in self._text:
            raise UnicodeError("the words of a library")
        return self._inner.finish()


@pytest.mark.parametrize("text", ["ab!c", "why?"])
def test_a_detokenizer_that_fails_only_fails_its_own_request(text):
    with running(tokenizer=BreakingTokenizer()) as model:
        good = model.submit(model.request(script(text="fine", tokens=40, latency_s=0.002)))
        bad = model.submit(model.request(script(text=text, latency_s=0.002), n=3))
        with pytest.raises(EngineError) as caught:
            bad.result()
        assert "words of a library" not in str(caught.value)
        assert good.result().text == "fine" * 10
        assert_serves(model)


# Engines and samplers.


class WrongRows(MockEngine):
    """Returns a wrong number of rows if the answer ``bad`` is in the step."""

    change = staticmethod(lambda rows: rows[1:])

    def _logits(self, wanted):
        rows = super()._logits(wanted)
        is_bad = any(list(self._states[i.sequence].answer.content) == list(b"bad") for i in wanted)
        return self.change(rows) if is_bad else rows


@pytest.mark.parametrize("change", [lambda rows: rows[1:], lambda rows: np.repeat(rows, 2, axis=0)])
def test_a_wrong_number_of_rows_only_fails_its_own_request(change):
    engine = WrongRows()
    engine.change = change
    with running(engine=engine) as model:
        good = model.submit(model.request(script(text="fine", tokens=40, latency_s=0.002)))
        bad = model.submit(model.request(script(text="bad", latency_s=0.002)))
        with pytest.raises(EngineError):
            bad.result()
        assert good.result().text == "fine" * 10
        assert_serves(model)


class BrokenTokens(ArraySampler):
    """Replaces the sampled tokens by an invalid result."""

    def __init__(self, change):
        self._change = change

    def prepare(self, rows):
        pick = super().prepare(rows)
        return lambda logits: self._change(pick(logits))


@pytest.mark.parametrize(
    "change",
    [
        lambda picked: np.concatenate([picked, picked[:1]]),
        lambda picked: picked[None, :],
        lambda picked: picked.tolist(),
        lambda picked: None,
        lambda picked: picked - 1000,
        lambda picked: picked + 10**6,
        lambda picked: picked + 0.5,
    ],
)
def test_a_sampler_that_returns_invalid_tokens_fails_its_requests(change):
    with running(sampler=BrokenTokens(change)) as model, pytest.raises(EngineError):
        model.generate("x")


class Unprepared(ArraySampler):
    def prepare(self, rows):
        if any(row.sequence.params.top_k == 7 for row in rows):
            raise KeyError("the words of a library")
        return super().prepare(rows)


def test_a_sampler_that_fails_in_prepare_only_fails_its_own_request():
    with running(sampler=Unprepared()) as model:
        good = model.submit(model.request(script(text="fine", tokens=40, latency_s=0.002)))
        bad = model.submit(model.request(script(text="bad", latency_s=0.002), top_k=7))
        with pytest.raises(EngineError, match="the sampler failed on this request"):
            bad.result()
        assert good.result().text == "fine" * 10
        assert_serves(model)


class NotANumber(MockEngine):
    """Returns rows with one NaN for the answer ``bad``."""

    def _logits(self, wanted):
        rows = super()._logits(wanted)
        for row, item in enumerate(wanted):
            if list(self._states[item.sequence].answer.content) == list(b"bad"):
                rows[row, 5] = np.nan
        return rows


def test_a_row_that_is_not_finite_only_fails_its_own_request():
    with running(engine=NotANumber()) as model:
        good = model.submit(model.request(script(text="fine", tokens=40, latency_s=0.002)))
        bad = model.submit(model.request(script(text="bad", latency_s=0.002), temperature=1.0))
        with pytest.raises(EngineError, match="without a finite value"):
            bad.result()
        assert good.result().text == "fine" * 10
        assert_serves(model)


class Panic(BaseException):
    """The error of a Rust library that panics: not an Exception."""


class PanickingEngine(MockEngine):
    def forward(self, items):
        time.sleep(0.02)
        raise Panic("told to")


def test_a_panic_of_the_engine_fails_every_request_and_ends_readiness():
    with running(engine=PanickingEngine()) as model:
        streams = [model.submit(model.request("x")) for _ in range(3)]
        for stream in streams:
            with pytest.raises(EngineError, match="the engine failed"):
                stream.result()
        wait_until(lambda: not model.runner.is_ready)
        assert model.stats().counters["num_failed"] == 3


def test_a_failure_callback_may_raise_or_close_the_pipeline():
    failures = []

    def fail(failure):
        raise RuntimeError("told to")

    model = Model(
        Pipeline(
            tokenizer=MockTokenizer(), engine=PanickingEngine(), media_encoder=MockVisionEncoder()
        )
    )
    for watcher in (fail, lambda _: model.close(), failures.append):
        model.runner.on_failure(watcher)
    with pytest.raises(EngineError):
        model.generate("x", images=[picture()])  # this starts the encoder's thread, too
    wait_until(lambda: failures)
    assert isinstance(failures[0], Panic)


def test_tracebacks_of_refusals_after_a_failure_do_not_grow():
    with running(engine=PanickingEngine()) as model:
        with pytest.raises(EngineError):
            model.generate("x")
        depths = []
        for _ in range(3):
            try:
                model.submit(model.request("x"))
            except EngineError as error:
                depth, frame = 0, error.__traceback__
                while frame is not None:
                    depth, frame = depth + 1, frame.tb_next
                depths.append(depth)
        assert depths[0] == depths[-1]


class BadRelease(MockEngine):
    def release(self, sequence):
        raise RuntimeError("told to")


def test_requests_end_at_close_although_the_engine_cannot_release():
    with running(engine=BadRelease()) as model:
        streams = [
            model.submit(model.request(script(text="x", tokens=4000, latency_s=0.001)))
            for _ in range(3)
        ]
        chunks = iter(streams[0])
        next(chunks)
        model.close()
        for stream in streams:
            wait_until(lambda stream=stream: stream.is_done)


# Encoders.


class WrongCount(MockVisionEncoder):
    def encode(self, slots):
        return super().encode(slots)[1:]


class WrongTokens(MockVisionEncoder):
    def encode(self, slots):
        return [MediaFeatures(f.num_tokens - 1, f.embeddings[1:]) for f in super().encode(slots)]


class NoFeatures(MockVisionEncoder):
    def encode(self, slots):
        return None


@pytest.mark.parametrize("encoder", [WrongCount, WrongTokens, NoFeatures])
def test_an_encoder_that_breaks_its_contract_only_fails_requests_with_images(encoder):
    with running(encoder=encoder()) as model:
        good = model.submit(model.request(script(text="fine", tokens=40, latency_s=0.002)))
        with pytest.raises(EngineError, match="the media encoder"):
            model.generate("x", images=[picture(), picture(9, 9)])
        assert good.result().text == "fine" * 10
        assert_serves(model)


def test_features_of_unknown_size_are_not_cached():
    cache = FeatureCache(100)
    for number in range(1000):
        cache.put("", number.to_bytes(2, "big"), MediaFeatures(1, np.zeros((1, 1))))
    assert len(cache._entries) == 0


def test_small_features_stay_within_the_memory_bound_of_the_cache():
    cache = FeatureCache(2**20)
    tracemalloc.start()
    try:
        for number in range(5000):
            features = MediaFeatures(1, np.zeros((1, 1)), {"size": np.zeros(2)}, num_bytes=24)
            cache.put(b"", number.to_bytes(32, "big"), features)
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.num_bytes <= 2**20
    assert num_bytes < 1.25 * 2**20
    assert cache.get(b"", (4999).to_bytes(32, "big")) is not None


# Requests without validation by a schema.


class EmptyPromptTokenizer(MockTokenizer):
    def prompt(self, messages, *, tools=None, options=PLAIN):
        return Prompt(())


def test_a_prompt_without_tokens_is_refused():
    with (
        running(tokenizer=EmptyPromptTokenizer()) as model,
        pytest.raises(RequestError, match="no tokens"),
    ):
        model.generate("")


class OutsideVocabulary(MockTokenizer):
    """Has special tokens without a column in the logits, as some checkpoints do."""

    @property
    def banned_ids(self):
        return super().banned_ids | {999}

    @property
    def eos_ids(self):
        return super().eos_ids | {1000}


def test_special_tokens_outside_the_vocabulary_are_harmless():
    with running(tokenizer=OutsideVocabulary()) as model:
        assert model.generate(script(text="fine"), min_tokens=2).text == "fine"


def test_a_tenant_can_be_any_string():
    with running() as model:
        request = model.request(script(text="fine"))
        odd = Request(messages=request.messages, params=request.params, tenant="\ud800")
        assert model.submit(odd).result().text == "fine"


def test_a_priority_that_is_no_number_is_refused():
    with running() as model:
        request = model.request("x")
        with pytest.raises(RequestError, match="priority"):
            model.submit(Request(messages=request.messages, priority="high"))
        assert_serves(model)


def test_more_choices_than_the_queue_can_hold_are_a_request_error():
    with running(scheduler={"max_waiting": 4}) as model:
        with pytest.raises(RequestError) as caught:
            model.generate("x", n=5)
        assert caught.value.param == "n"


# Endings.


def test_close_ends_requests_that_wait_to_be_accepted():
    async def main():
        with running() as model:
            first = model.submit(model.request(script(text="x", prefill_latency_s=0.3)))
            wait_until(lambda: model.runner._loop.num_running)
            waiting = asyncio.create_task(model.asubmit(model.request("late")))
            await asyncio.to_thread(wait_until, lambda: model.runner._loop._inbox.num_jobs)
            await asyncio.to_thread(model.close)
            stream = await asyncio.wait_for(waiting, 5)
            assert first.is_done
            return (await stream.aresult()).choices[0].finish_reason

    assert asyncio.run(main()) == "abort"


class SlowTokenizer(MockTokenizer):
    def __init__(self):
        self.started, self.go_on = threading.Event(), threading.Event()

    def prompt(self, messages, *, tools=None, options=PLAIN):
        self.started.set()
        assert self.go_on.wait(300)
        return super().prompt(messages, tools=tools, options=options)


def test_requests_waiting_for_a_worker_when_the_pipeline_closes_get_an_error():
    async def main():
        tokenizer = SlowTokenizer()
        with running(tokenizer=tokenizer, num_workers=1) as model:
            tasks = [asyncio.create_task(model.asubmit(model.request("x"))) for _ in range(3)]
            await asyncio.to_thread(tokenizer.started.wait, 5)
            closing = asyncio.create_task(asyncio.to_thread(model.close))
            await asyncio.sleep(0.05)
            tokenizer.go_on.set()
            await closing
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(error) for error in errors] == [EngineError] * 3
            with pytest.raises(EngineError, match="is closed"):
                await model.asubmit(model.request("later"))

    asyncio.run(main())


def test_a_cancelled_task_waiting_for_a_worker_is_cancelled():
    async def main():
        tokenizer = SlowTokenizer()
        with running(tokenizer=tokenizer, num_workers=1) as model:
            request = model.request(script(text="x", tokens=4000, latency_s=0.001))
            tasks = [asyncio.create_task(model.asubmit(request)) for _ in range(2)]
            await asyncio.to_thread(tokenizer.started.wait, 5)
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(error) for error in done] == [asyncio.CancelledError] * 2
            tokenizer.go_on.set()
            await asyncio.to_thread(assert_serves, model)
            assert model.stats().counters["num_finished"] == 1

    asyncio.run(main())


class CountingEngine(MockEngine):
    num_closed = 0

    def close(self):
        time.sleep(0.02)
        self.num_closed += 1
        super().close()


def test_two_threads_that_close_free_the_engine_once():
    engine = CountingEngine()
    with running(engine=engine) as model:
        closers = [threading.Thread(target=model.close) for _ in range(4)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        assert engine.num_closed == 1


class BadCloseEncoder(MockVisionEncoder):
    def close(self):
        raise RuntimeError("told to")


def test_an_encoder_that_cannot_close_does_not_keep_the_engine_open():
    engine = CountingEngine()
    runner = Pipeline(tokenizer=MockTokenizer(), engine=engine, media_encoder=BadCloseEncoder())
    with pytest.raises(RuntimeError):
        runner.close()
    assert engine.num_closed == 1


def test_a_failure_ends_a_drain_immediately():
    engine = PanickingEngine()
    with running(engine=engine) as model:
        stream = model.submit(model.request("x"))
        assert model.drain(3600.0)
        assert stream.is_done


def test_close_ends_a_drain_immediately():
    with running() as model:
        stream = model.submit(model.request(script(text="x", tokens=4000, latency_s=0.001)))
        threading.Timer(0.05, model.close).start()
        assert model.drain(3600.0)
        assert stream.is_done


# Readers.


@pytest.mark.parametrize("overrides", [{"scheduler": {"max_running": 1}}, {"capacity": 512}])
def test_a_client_that_never_reads_does_not_block_others(overrides):
    settings = MockEngineSettings(
        capacity_tokens=overrides.get("capacity", 2**14), max_sequence_tokens=512
    )
    with running(
        engine=MockEngine(settings), scheduler=overrides.get("scheduler"), max_unread_tokens=10
    ) as model:
        slow = model.submit(model.request(script(text="s", tokens=300), max_tokens=350))
        wait_until(lambda: model.runner._loop._jobs._held)
        for _ in range(3):
            assert model.generate(script(text="f", tokens=300), max_tokens=350).text == "f" * 300
        assert slow.result().text == "s" * 300
        assert_serves(model)


def test_a_stream_that_is_dropped_unread_releases_its_room():
    with running(max_unread_tokens=10) as model:
        stream = model.submit(model.request(script(text="s", tokens=3000)))
        wait_until(lambda: model.runner._loop._jobs._held)
        del stream
        wait_until(lambda: model.runner._loop.num_jobs == 0)
        assert model.stats().counters["num_aborted"] == 1
        assert_serves(model)


def test_a_task_without_other_references_gets_its_answer():
    async def main():
        with running() as model:
            answers = asyncio.Queue()

            async def ask():
                question = script(text="fine", latency_s=0.01)
                await answers.put((await model.agenerate(question)).text)

            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(ask()) and None)
            await asyncio.sleep(0.02)
            gc.collect()
            return await asyncio.wait_for(answers.get(), 5)

    assert asyncio.run(main()) == "fine"


def count_objects():
    gc.collect()
    kinds = (Channel, Stream, Sequence, Job, Prompt, MediaFeatures)
    return sum(type(thing) in kinds for thing in gc.get_objects())


def test_an_idle_pipeline_holds_no_object_of_the_last_request():
    with running(feature_cache_bytes=0) as model:
        before = count_objects()
        assert "8x6" in model.generate("x", images=[picture()]).text
        wait_until(lambda: count_objects() == before)


def test_a_thousand_aborted_requests_leave_no_object_behind():
    with running(scheduler={"max_waiting": 4000}, feature_cache_bytes=0) as model:
        message = [Message.of("user", script(text="x", tokens=3000), [Image.open(picture())])]
        before = count_objects()
        streams = [
            model.submit(Request(messages=message, params=SamplingParams(n=1 + i % 2)))
            for i in range(1000)
        ]
        for stream in streams[::2]:
            stream.abort()
        del streams, stream
        wait_until(lambda: model.runner._loop.num_jobs == model.runner._loop.num_waiting == 0)
        wait_until(lambda: count_objects() == before)
        assert model.runner._loop._scheduler._queue._heap == []
