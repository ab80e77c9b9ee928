"""The encoder queue: images are encoded beside the loop, and only their sequences wait."""

import dataclasses
import gc
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import given, settings, strategies as st

from mock_model import picture, script, wait_until
from vlmkit.errors import EngineError, ImageError, PluginError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.interfaces.sequence import Sequence
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.remote_encoder.server import EncoderServer
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEncoderSettings, MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder


class GatedEncoder(MockVisionEncoder):
    """Encodes while its gate is open; records calling threads and the images of each call."""

    def __init__(self, **settings):
        super().__init__(MockEncoderSettings(**settings))
        self.gate, self.threads, self.calls = threading.Event(), set(), []
        self.num_inside = 0

    def encode(self, slots):
        self.calls.append(len(slots))
        self.threads.add(threading.get_ident())
        self.num_inside += 1
        assert self.num_inside == 1, "two calls at once"
        assert not self._is_closed
        self.gate.wait(300)
        self.num_inside -= 1
        return super().encode(slots)


@contextmanager
def running(encoder, *, engine=None, scheduler=None, settings=None, **options):
    model = Model(
        Pipeline(
            tokenizer=MockTokenizer(),
            engine=engine or MockEngine(MockEngineSettings(**options)),
            media_encoder=encoder,
            scheduler=scheduler or ContinuousScheduler(),
            settings=PipelineSettings(**(settings or {})),
        )
    )
    try:
        yield model
    finally:
        if hasattr(encoder, "gate"):
            encoder.gate.set()
        model.close()


def ask_about(model, *pictures, tenant="", text="what?", **params):
    """Submit a question about images."""
    message = Message.of("user", text, [Image.open(p) for p in pictures])
    params = model.params(**params)
    return model.submit(Request(messages=[message], tenant=tenant, params=params))


def assert_empty(model):
    wait_until(lambda: model.runner._loop.num_jobs == model.runner._loop.num_running == 0)
    assert model.runner._engine.num_free_tokens == model.facts.limits.capacity_tokens
    assert not model.runner._loop._encodings._threads._queue


class IgnoresEncoding(ContinuousScheduler):
    """Plans chunks with an image in every step, even while it is being encoded."""

    def plan(self, cache):
        hidden = {sequence: sequence.encoding for sequence in self._running}
        for sequence in hidden:
            sequence.encoding = set()
        step = super().plan(cache)
        for sequence, encoding in hidden.items():
            sequence.encoding = encoding
        return step


class EncodesOneStepAhead(ContinuousScheduler):
    """Starts encoding in one step, and plans the chunk in the next."""

    def plan(self, cache):
        step = super().plan(cache)
        named = {encode.sequence for encode in step.encodes}
        return dataclasses.replace(
            step, items=tuple(item for item in step.items if item.sequence not in named)
        )


SCHEDULERS = [ContinuousScheduler, IgnoresEncoding, EncodesOneStepAhead]


@pytest.mark.parametrize(
    ("scheduler", "mixes"),
    [
        *((scheduler, True) for scheduler in SCHEDULERS),
        # With IgnoresEncoding, a step of one chunk has no room for another sequence.
        *((scheduler, False) for scheduler in SCHEDULERS if scheduler is not IgnoresEncoding),
    ],
)
def test_answers_continue_while_an_image_is_encoded(scheduler, mixes):
    encoder = GatedEncoder()
    with running(encoder, scheduler=scheduler(), mixes_prefill_and_decode=mixes) as model:
        stream = iter(model.submit(model.request(script(text="on", tokens=4000))))
        next(stream)
        image_stream = ask_about(model, picture())
        wait_until(lambda: encoder.calls)
        for _ in range(50):
            next(stream)
        assert model.generate(script(text="newcomer")).text == "newcomer"
        assert encoder.num_inside == 1
        assert not image_stream._channel._chunks
        encoder.gate.set()
        assert "8x6" in image_stream.result().text
        stream.close()
        assert_empty(model)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_waiting_loop_does_not_spin(scheduler):
    encoder = GatedEncoder()
    plans = []
    made = scheduler()
    plan = made.plan
    made.plan = lambda cache: (plans.append(1), plan(cache))[1]
    with running(encoder, scheduler=made) as model:
        image_stream = ask_about(model, picture())
        wait_until(lambda: encoder.calls)
        time.sleep(0.05)
        assert len(plans) < 10
        encoder.gate.set()
        assert "8x6" in image_stream.result().text


def test_the_encoder_runs_in_its_own_thread_and_never_concurrently():
    encoder = GatedEncoder()
    encoder.gate.set()
    with running(encoder) as model:
        streams = [ask_about(model, picture(5 + i)) for i in range(20)]
        for stream in streams:
            stream.result()
        assert encoder.threads.isdisjoint({model.runner._loop._thread.ident, threading.get_ident()})


def test_the_encoder_thread_ends_when_its_queue_is_empty():
    encoder = GatedEncoder()
    before = set(threading.enumerate())
    with running(encoder) as model:
        for number in range(2):
            stream = ask_about(model, picture(5 + number))
            wait_until(lambda: encoder.calls)
            assert "vlmkit-encode" in {t.name for t in threading.enumerate() if t not in before}
            encoder.gate.set()
            stream.result()
            wait_until(
                lambda: (
                    "vlmkit-encode"
                    not in {t.name for t in threading.enumerate() if t not in before}
                )
            )
            encoder.gate.clear()
            encoder.calls.clear()


def test_a_pipeline_without_images_starts_no_encoder_thread():
    with running(MockVisionEncoder()) as model:
        model.generate("hello")
        assert model.runner._loop._encodings._threads._threads == set()


def test_images_of_one_step_are_one_batch():
    encoder = GatedEncoder()
    encoder.gate.set()
    with running(encoder) as model:
        ask_about(model, picture(5), picture(6), picture(7)).result()
        assert encoder.calls == [3]


def test_images_that_arrive_while_the_encoder_is_busy_are_one_batch():
    encoder = GatedEncoder()
    with running(encoder) as model:
        streams = [ask_about(model, picture())]
        wait_until(lambda: encoder.calls)
        streams += [ask_about(model, picture(10 + i)) for i in range(4)]
        wait_until(lambda: len(model.runner._loop._encodings._threads._queue) == 4)
        encoder.gate.set()
        for stream in streams:
            stream.result()
        assert encoder.calls == [1, 4]


def test_the_number_of_images_encoded_together_is_bounded():
    encoder = GatedEncoder()
    scheduler = ContinuousScheduler(SchedulerSettings(encoder_budget_tokens=12))  # three images
    with running(encoder, scheduler=scheduler) as model:
        streams = [ask_about(model, picture(5 + i)) for i in range(10)]
        wait_until(lambda: model.runner._loop.num_running == 10)
        encoder.gate.set()
        for stream in streams:
            stream.result()
        assert max(encoder.calls) <= 3
        assert sum(encoder.calls) == 10


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_an_image_being_encoded_is_not_encoded_again(cache_bytes):
    encoder = GatedEncoder()
    with running(encoder, settings={"feature_cache_bytes": cache_bytes}) as model:
        streams = [ask_about(model, picture(), text=f"question {i}") for i in range(5)]
        wait_until(lambda: model.runner._loop.num_jobs == 5)
        other = ask_about(model, picture(), tenant="other")
        wait_until(lambda: model.runner._loop.num_jobs == 6)
        encoder.gate.set()
        for stream in [*streams, other]:
            assert "8x6" in stream.result().text
        assert sum(encoder.calls) == 2
        assert model.stats().counters["num_media_encoded"] == 2


def test_an_image_of_aborted_requests_is_not_encoded():
    encoder = GatedEncoder()
    with running(encoder) as model:
        streams = [ask_about(model, picture())]
        wait_until(lambda: encoder.calls)
        streams += [ask_about(model, picture(10 + i)) for i in range(2)]
        wait_until(lambda: len(model.runner._loop._encodings._threads._queue) == 2)
        for stream in streams:
            stream.abort()
        wait_until(lambda: not model.runner._loop._encodings._threads._queue)
        encoder.gate.set()
        assert model.generate("still here").text == "still here"
        assert_empty(model)
        assert encoder.calls == [1]


def test_a_new_request_gets_the_image_being_encoded_for_an_aborted_one():
    encoder = GatedEncoder()
    with running(encoder, settings={"feature_cache_bytes": 0}) as model:
        first = ask_about(model, picture())
        wait_until(lambda: encoder.calls)
        first.abort()
        wait_until(lambda: model.runner._loop.num_jobs == 0)
        second = ask_about(model, picture())
        wait_until(lambda: model.runner._loop.num_running == 1)
        encoder.gate.set()
        assert "8x6" in second.result().text
        assert encoder.calls == [1]
        assert_empty(model)


def count_objects():
    gc.collect()
    kinds = (Sequence, MediaSlot, MediaFeatures)
    return sum(type(thing) in kinds for thing in gc.get_objects())


def test_a_request_aborted_in_the_encoder_leaves_no_object_behind():
    encoder = GatedEncoder()
    with running(encoder, settings={"feature_cache_bytes": 0}) as model:
        before = count_objects()
        streams = [ask_about(model, picture(5 + i), n=2) for i in range(6)]
        wait_until(lambda: encoder.calls)
        for stream in streams:
            stream.abort()
        del streams, stream
        wait_until(lambda: model.runner._loop.num_jobs == 0)
        encoder.gate.set()
        wait_until(lambda: count_objects() == before)
        assert not model.runner._loop._encodings.is_busy
        assert_empty(model)


def test_an_image_that_breaks_the_encoder_fails_no_other_of_its_batch():
    encoder = GatedEncoder(fail_size=(6, 8))
    with running(encoder) as model:
        first = ask_about(model, picture(5))
        wait_until(lambda: encoder.calls)
        bad, same = (ask_about(model, picture(7), picture(8, 6), text=t) for t in ("a", "b"))
        good = [ask_about(model, picture(9 + i)) for i in range(2)]
        wait_until(lambda: model.runner._loop.num_running == 5)
        encoder.gate.set()
        for stream in (bad, same):
            with pytest.raises(EngineError, match="told to fail on size"):
                stream.result()
        for stream in (first, *good):
            assert "x6" in stream.result().text
        assert encoder.calls[0] == 1
        assert encoder.calls[1] == 4
        assert_empty(model)


class RefusingEncoder(GatedEncoder):
    """Refuses an image of one size, as a tower may."""

    def encode(self, slots):
        try:
            return super().encode(slots)
        except EngineError as error:
            if len(slots) > 1:
                raise
            raise ImageError("the model's image tower cannot take this image") from error


def test_an_image_that_the_encoder_refuses_is_named_by_its_index():
    encoder = RefusingEncoder(fail_size=(6, 8))
    encoder.gate.set()
    with running(encoder) as model:
        odd = picture(8, 6)
        streams = [ask_about(model, *images) for images in ((picture(7), odd), (odd,))]
        for stream, index in zip(streams, (1, 0), strict=True):
            with pytest.raises(ImageError, match="cannot take this image") as caught:
                stream.result()
            assert (caught.value.index, caught.value.param) == (index, "messages")
        assert "x6" in ask_about(model, picture(9)).result().text


def test_a_preempted_sequence_waits_for_its_image_again():
    encoder = GatedEncoder()
    engine = {"capacity_tokens": 168, "max_sequence_tokens": 168, "block_tokens": 4}
    with running(encoder, settings={"feature_cache_bytes": 0}, **engine) as model:
        long = model.submit(
            model.request(script(text="x", tokens=100, latency_s=0.01), max_tokens=100)
        )
        image_stream = ask_about(model, picture(), text="c" * 30)
        wait_until(lambda: model.stats().counters["num_preemptions"] > 0)
        encoder.gate.set()
        assert long.result().text == "x" * 100
        assert "8x6" in image_stream.result().text
        assert_empty(model)


def test_close_waits_for_the_encoder_and_ends_waiting_requests():
    encoder = GatedEncoder()
    model = Model(Pipeline(tokenizer=MockTokenizer(), engine=MockEngine(), media_encoder=encoder))
    streams = [ask_about(model, picture(5 + i)) for i in range(3)]
    wait_until(lambda: encoder.calls)
    closer = threading.Thread(target=model.close)
    closer.start()
    assert all(s.result().choices[0].finish_reason == "abort" for s in streams)
    begun = list(encoder.calls)
    assert closer.is_alive()
    assert not encoder._is_closed
    encoder.gate.set()
    closer.join(5)
    assert not closer.is_alive()
    assert encoder._is_closed
    assert encoder.calls == begun


def test_drain_waits_for_images_being_encoded():
    encoder = GatedEncoder()
    with running(encoder) as model:
        stream = ask_about(model, picture())
        wait_until(lambda: encoder.calls)
        assert not model.drain(0.05)
        threading.Timer(0.05, encoder.gate.set).start()
        assert model.drain(5.0)
        assert "8x6" in stream.result().text


class Panic(BaseException):
    """An error of a library in another language: not an Exception."""


class PanickingEncoder(MockVisionEncoder):
    def encode(self, slots):
        raise Panic("the words of a library")


def test_a_panic_of_the_encoder_fails_every_request_and_ends_readiness():
    with running(PanickingEncoder()) as model:
        other = model.submit(model.request(script(text="x", tokens=4000, latency_s=0.001)))
        with pytest.raises(EngineError, match="the media encoder failed") as caught:
            ask_about(model, picture()).result()
        assert "words of a library" not in str(caught.value)
        with pytest.raises(EngineError):
            other.result()
        wait_until(lambda: not model.runner.is_ready)


def test_a_fatal_engine_error_also_stops_the_encoder():
    encoder = GatedEncoder()
    with running(encoder) as model:
        image_stream = ask_about(model, picture())
        wait_until(lambda: encoder.calls)
        with pytest.raises(EngineError):
            model.generate(script(text="abc", crash_at_token=1))
        with pytest.raises(EngineError):
            image_stream.result()
        encoder.gate.set()
        assert model.runner._loop._encodings.join(5)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_answers_do_not_depend_on_the_scheduler(scheduler):
    with running(MockVisionEncoder(MockEncoderSettings(latency_s=0.003))) as model:
        questions = [(picture(5 + i % 3), picture(9, 5 + i)) for i in range(8)]
        wanted = [ask_about(model, *shown).result().text for shown in questions]
    encoder = MockVisionEncoder(MockEncoderSettings(latency_s=0.003))
    made = scheduler(SchedulerSettings(max_step_tokens=16, encoder_budget_tokens=10))
    with running(encoder, scheduler=made, capacity_tokens=512, max_sequence_tokens=256) as model:
        streams = [ask_about(model, *shown) for shown in questions]
        assert [stream.result().text for stream in streams] == wanted
        assert_empty(model)


class ConcurrentEncoder(MockVisionEncoder):
    """Encodes several calls at once, each while its gate is open; records the calls."""

    def __init__(self, max_concurrency, **settings):
        super().__init__(MockEncoderSettings(**settings))
        self.max_concurrency = max_concurrency
        self.gate, self.changed = threading.Event(), threading.Condition()
        self.calls, self.num_inside, self.most_inside = [], 0, 0

    def encode(self, slots):
        with self.changed:
            self.calls.append(len(slots))
            self.num_inside += 1
            self.most_inside = max(self.most_inside, self.num_inside)
        self.gate.wait(300)
        with self.changed:
            self.num_inside -= 1
        return super().encode(slots)


def test_an_encoder_that_states_it_is_called_concurrently_and_never_more_often():
    encoder = ConcurrentEncoder(3)
    with running(encoder) as model:
        streams = [ask_about(model, picture(5 + i)) for i in range(12)]
        wait_until(lambda: encoder.num_inside == 3)
        wait_until(lambda: model.runner._loop.num_running == 12)
        time.sleep(0.05)
        assert encoder.num_inside == 3
        encoder.gate.set()
        for stream in streams:
            assert "x6" in stream.result().text
        assert encoder.most_inside == 3
        assert sum(encoder.calls) == 12
        assert_empty(model)
        wait_until(lambda: not model.runner._loop._encodings._threads._threads)


def test_media_that_wait_are_shared_between_the_threads():
    encoder = ConcurrentEncoder(4)
    with running(encoder) as model:
        stream = ask_about(model, *[picture(5 + i) for i in range(8)])
        wait_until(lambda: len(encoder.calls) == 4)
        assert encoder.calls[0] == 2  # a fourth of eight
        encoder.gate.set()
        assert stream.result().text
        assert sum(encoder.calls) == 8
        assert max(encoder.calls) == 2


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=12),
)
@settings(max_examples=40, deadline=None)
def test_answers_are_the_same_with_any_number_of_threads(max_concurrency, asked):
    """Some requests are aborted, and one size fails; every other answer names its own image."""
    encoder = ConcurrentEncoder(max_concurrency, fail_size=(6, 8))
    encoder.gate.set()
    with running(encoder) as model:
        streams = [(w, kind, ask_about(model, picture(4 + w))) for w, kind in asked]
        for width, kind, stream in streams:
            if kind == 0:
                stream.abort()
            elif width + 4 == 8:
                with pytest.raises(EngineError, match="told to fail on size"):
                    stream.result()
            else:
                assert f"{width + 4}x6" in stream.result().text
        assert_empty(model)
    assert encoder.most_inside <= max_concurrency


def test_a_closing_pipeline_waits_for_every_call_and_then_closes_the_encoder():
    encoder = ConcurrentEncoder(3)
    with running(encoder) as model:
        streams = [ask_about(model, picture(5 + i)) for i in range(6)]
        wait_until(lambda: encoder.num_inside == 3)
        closing = threading.Thread(target=model.close)
        closing.start()
        wait_until(lambda: all(stream._channel.is_done for stream in streams))
        assert not encoder._is_closed
        encoder.gate.set()
        closing.join(60)
        assert encoder._is_closed
        assert len(encoder.calls) == 3


def test_a_call_that_hangs_beside_others_is_reported_with_its_own_media(caplog):
    class HangsOnce(ConcurrentEncoder):
        def encode(self, slots):
            if tuple(slots[0].inputs["size"].tolist()) != (6, 8):
                return MockVisionEncoder.encode(self, slots)
            return super().encode(slots)

    encoder = HangsOnce(2)
    with running(encoder, settings={"slow_step_s": 0.2}) as model:
        hanging = ask_about(model, picture(8, 6))
        wait_until(lambda: encoder.num_inside)
        for number in range(10):
            assert ask_about(model, picture(20 + number)).result().text
        wait_until(lambda: model.stats().counters["num_slow_encodings"] == 1)
        assert "media: 1, tokens: 4" in caplog.text
        encoder.gate.set()
        assert "8x6" in hanging.result().text


@pytest.mark.parametrize("stated", [0, 65, "2", True, 1.0, None])
def test_an_encoder_that_states_no_valid_number_is_refused(stated):
    encoder = MockVisionEncoder()
    encoder.max_concurrency = stated
    with pytest.raises(PluginError, match="not a number from 1 to 64"), running(encoder):
        raise AssertionError("it was built")


class ScopedEncoder(MockVisionEncoder):
    """Records the scope of each medium."""

    def __init__(self):
        super().__init__()
        self.scopes = []

    def encode_in_scopes(self, slots, scopes):
        self.scopes += scopes
        return super().encode(slots)

    def counters(self):
        return {"num_scopes": len(set(self.scopes))}


def test_an_encoder_with_caches_gets_the_scope_of_each_image_and_shows_its_counters():
    encoder = ScopedEncoder()
    with running(encoder) as model:
        for tenant in ("a", "b", "a"):
            for width in (5, 6):
                assert f"{width}x6" in ask_about(model, picture(width), tenant=tenant).result().text
        assert len(encoder.scopes) == 4  # the last two were cached here
        assert len(set(encoder.scopes)) == 2
        assert model.stats().counters["num_scopes"] == 2


def results_of(server, scope, slot):
    """Start an encoding, and return the list that gets its result."""
    found = []
    server.start(scope, slot, found.append)
    return found


def slots_of(*pictures):
    message = Message.of("user", "what?", [Image.open(each) for each in pictures])
    return MockTokenizer().prompt([message]).media


def test_an_encoder_for_other_processes_shares_work_within_a_scope_alone():
    encoder = ConcurrentEncoder(1)
    server = EncoderServer(encoder, 2**20, lambda _: None)
    first, second = slots_of(picture(5), picture(7))
    found = [results_of(server, scope, first) for scope in (b"a", b"a", b"b")]
    found.append(results_of(server, b"a", second))
    left = results_of(server, b"c", second)
    server.cancel(b"c", second.digest, left.append)
    assert server.num_open == 4
    encoder.gate.set()
    wait_until(lambda: all(found))
    wait_until(lambda: not server.num_open)
    assert sum(encoder.calls) in (3, 4)  # one of them may have begun before it was cancelled
    assert found[0][0] is found[1][0]
    assert not left
    assert server.cached(b"a", first.digest) is found[0][0]
    assert server.cached(b"d", first.digest) is None
    server.close(60.0)
    assert encoder._is_closed
    (error,) = results_of(server, b"a", first)
    assert "closed" in str(error)


def test_an_encoder_for_other_processes_ends_all_calls_when_it_panics():
    class Panics(MockVisionEncoder):
        def encode(self, slots):
            raise SystemExit

    failures = []
    server = EncoderServer(Panics(), 2**20, failures.append)
    found = results_of(server, b"", slots_of(picture(5))[0])
    wait_until(lambda: found and failures)
    assert "closed" in str(found[0])
    assert isinstance(failures[0], SystemExit)
    server.close(60.0)
