"""A pipeline on the mock: every request ends exactly once, and releases everything."""

import asyncio
import dataclasses
import threading
import time

import pytest
from hypothesis import given, settings, strategies as st

from mock_model import picture, script, wait_until
from vlmkit.errors import (
    ConfigError,
    EngineError,
    ImageError,
    MediaError,
    PromptTooLong,
    QueueFull,
    RequestError,
)
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEncoderSettings, MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder


class CountingEncoder(MockVisionEncoder):
    """Records the number of images in each call."""

    def __init__(self, settings=None):
        super().__init__(settings)
        self.calls = []

    def encode(self, slots):
        features = super().encode(slots)
        self.calls.append(len(slots))
        return features


def pipeline(*, engine=None, scheduler=None, encoder=None, images=True, **options):
    model = Model(
        Pipeline(
            tokenizer=MockTokenizer(),
            engine=MockEngine(MockEngineSettings(**(engine or {}))),
            media_encoder=(encoder or MockVisionEncoder()) if images else None,
            scheduler=ContinuousScheduler(SchedulerSettings(**(scheduler or {}))),
            settings=PipelineSettings(**options),
        )
    )
    model.engine = model.runner._engine
    return model


@pytest.fixture
def model():
    with pipeline() as made:
        yield made


def assert_empty(model):
    """Assert that nothing runs or waits, and that no block is used."""
    wait_until(lambda: model.runner._loop.num_jobs == model.runner._loop.num_waiting == 0)
    stats = model.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    wait_until(lambda: model.engine._pool.num_sequences == 0)
    model.engine._pool.check_integrity()
    pool = model.engine._pool
    assert pool.num_free_blocks == pool.num_blocks


def test_generate_returns_the_whole_answer(model):
    done = model.generate(script(text="hello"))
    assert done.text == "hello"
    assert done.choices[0].finish_reason == "stop"
    assert done.usage.completion_tokens == len("hello") + 1


def test_stream_returns_an_answer_in_pieces(model):
    assert list(model.stream(script(text="abc"))) == ["a", "b", "c"]


def test_the_model_receives_the_image(model):
    image = Image.open(picture())
    text = model.generate("what?", images=[image]).text
    assert text.startswith(f"image 1: 8x6 sha256:{image.digest.hex()[:16]}")


def test_images_keep_their_position_in_a_message(model):
    first, second = Image.open(picture(8, 6)), Image.open(picture(4, 9))
    message = Message("user", (ImagePart(second), TextPart("and"), ImagePart(first)))
    lines = model.generate([message]).text.splitlines()
    assert [line.split()[2] for line in lines[:2]] == ["4x9", "8x6"]


def test_an_answer_stops_at_max_tokens(model):
    done = model.generate(script(text="abcdef"), max_tokens=3)
    assert (done.text, done.choices[0].finish_reason) == ("abc", "length")


def test_an_answer_stops_before_a_stop_string(model):
    done = model.generate(script(text="one STOP two"), stop=("two", "STOP"))
    assert (done.text, done.choices[0].finish_reason) == ("one ", "stop")
    assert done.choices[0].stop_string == "STOP"


def test_a_stop_string_completed_only_by_the_end_still_stops(model):
    done = model.generate(script(text="é"), max_tokens=1, stop=("\ufffd",))
    assert (done.text, done.choices[0].finish_reason) == ("", "stop")


def test_text_held_back_for_a_stop_string_is_released_at_the_end(model):
    done = model.generate(script(text="one STO"), stop=("STOP",))
    assert (done.text, done.choices[0].finish_reason) == ("one STO", "stop")
    assert done.choices[0].stop_string is None


def test_a_stop_token_ends_an_answer_even_with_ignore_eos(model):
    for asked in ({}, {"ignore_eos": True}):
        done = model.generate(script(text="abcdef"), stop_token_ids=(ord("d"),), **asked)
        assert (done.text, done.choices[0].finish_reason) == ("abc", "stop")
        assert done.choices[0].token_ids == list(b"abcd")


def test_no_stop_token_is_sampled_before_min_tokens(model):
    done = model.generate(script(text="abcdef"), stop_token_ids=(ord("b"),), min_tokens=3)
    assert ord("b") not in done.choices[0].token_ids[:3]


def test_the_stop_string_is_included_on_request(model):
    wanted = {"include_stop_str_in_output": True}
    assert model.generate(script(text="abcdef"), stop=("cd",), **wanted).text == "abcd"
    assert model.generate(script(text="abcdef"), stop_token_ids=(99,), **wanted).text == "abc"
    shown = model.generate(script(text="ab"), skip_special_tokens=False, **wanted)
    assert shown.text == "ab<|end|>"


def test_a_completion_includes_the_tokens_of_its_prompt(model):
    done = model.generate("hello", images=[picture()])
    assert len(done.prompt_token_ids) == done.usage.prompt_tokens
    assert bytes(i for i in done.prompt_token_ids if i < 256) == b"hello"


def test_requests_with_different_cache_salts_share_no_prefix(model):
    asked = model.request(script(text="hi") + " " * 200)
    salted = [dataclasses.replace(asked, cache_salt=salt) for salt in ("a", "a", "b", "")]
    cached = [model.submit(one).result().usage.cached_tokens for one in salted]
    assert [num > 0 for num in cached] == [False, True, False, False]


def test_ignore_eos_continues_to_max_tokens(model):
    done = model.generate(script(text="ab"), ignore_eos=True, max_tokens=7)
    assert done.usage.completion_tokens == 7


def test_choices_share_their_prompt_and_differ_by_seed(model):
    question = script(text="x" * 40) + " " * 100
    done = model.generate(question, n=3, temperature=2.0, seed=1, max_tokens=30)
    assert len(done.choices) == 3
    assert done.usage.completion_tokens == sum(len(c.samples) for c in done.choices)
    assert model.stats().counters["num_tokens_computed"] < 2 * done.usage.prompt_tokens + 90


def test_choices_of_neighbouring_seeds_are_independent(model):
    """The first choice is the answer of its seed; no choice equals one of another seed."""
    question = script(text="abc", tokens=400)
    flat = dict.fromkeys(range(100, 108), 100.0)
    asked = {"temperature": 2.0, "max_tokens": 30, "ignore_eos": True, "logit_bias": flat}
    answers = {
        seed: [each.token_ids for each in model.generate(question, n=4, seed=seed, **asked).choices]
        for seed in range(-3, 4)
    }
    for seed, choices in answers.items():
        assert choices[0] == model.generate(question, seed=seed, **asked).choices[0].token_ids
    drawn = [tuple(ids) for choices in answers.values() for ids in choices]
    assert len(set(drawn)) == len(drawn)
    again = model.generate(question, n=4, seed=2, **asked)
    assert [each.token_ids for each in again.choices] == answers[2]


def test_a_seed_repeats_an_answer(model):
    def ask(seed):
        question = script(text="abc", tokens=400)
        return model.generate(question, temperature=2.0, seed=seed).choices[0].token_ids

    assert ask(5) == ask(5)
    assert ask(5) != ask(6)


def test_a_repeated_prompt_is_found_in_the_cache(model):
    question = script(text="hi") + " " * 200
    assert model.generate(question).usage.cached_tokens == 0
    assert model.generate(question).usage.cached_tokens > 150


def test_an_image_used_before_is_not_encoded_again():
    encoder = CountingEncoder()
    with pipeline(encoder=encoder, engine={"shares_prefixes": False}) as model:
        for question in ("one", "two", "three"):
            model.generate(question, images=[picture()])
        assert encoder.calls == [1]
        assert model.stats().num_feature_hits == 2


def test_tenants_do_not_share_features():
    encoder = CountingEncoder()
    with pipeline(encoder=encoder) as model:
        messages = [Message.of("user", "hello " * 9, [Image.open(picture())])]
        for tenant in ("alice", "bob", "alice"):
            done = model.submit(Request(messages=messages, tenant=tenant)).result()
        assert encoder.calls == [1, 1]
        assert done.usage.cached_tokens > 0


def test_an_image_used_several_times_is_encoded_once():
    encoder = CountingEncoder()
    with pipeline(encoder=encoder) as model:
        done = model.generate("same?", images=[picture()] * 5)
        assert encoder.calls == [1]
        assert done.usage.image_tokens == (4,) * 5


def test_a_failing_request_does_not_affect_others_of_its_step(model):
    good = [model.submit(model.request(script(text="fine", latency_s=0.002))) for _ in range(4)]
    bad = model.submit(model.request(script(text="doomed", fail_at_token=2, latency_s=0.002)))
    assert [stream.result().text for stream in good] == ["fine"] * 4
    with pytest.raises(EngineError, match="told to fail at token 2"):
        bad.result()
    assert_empty(model)


def test_text_before_a_failure_is_delivered(model):
    pieces = model.stream(script(text="abcdef", fail_at_token=3))
    assert [next(pieces), next(pieces), next(pieces)] == ["a", "b", "c"]
    with pytest.raises(EngineError):
        next(pieces)


def test_an_image_that_breaks_the_encoder_only_fails_its_own_request():
    encoder = MockVisionEncoder(MockEncoderSettings(fail_size=(6, 8)))
    with pipeline(encoder=encoder) as model:
        bad = model.submit(model.request("x", images=[picture(8, 6), picture(8, 6, "blue")], n=2))
        good = model.submit(model.request("y", images=[picture(9, 9)]))
        assert "9x9" in good.result().text
        with pytest.raises(EngineError):
            bad.result()
        assert_empty(model)


def test_a_crashed_engine_fails_all_requests_without_details(model):
    with pytest.raises(EngineError) as caught:
        model.generate(script(text="abc", crash_at_token=1))
    assert "told to crash" not in str(caught.value)
    wait_until(lambda: not model.runner.is_ready)
    with pytest.raises(EngineError, match="the engine failed"):
        model.generate("anyone")


def test_requests_that_raise_inside_a_library_do_not_stop_the_engine():
    class FailsOnLongPrompts(MockEngine):
        def forward(self, items):
            if any(item.sequence.num_prompt_tokens > 100 for item in items):
                raise RuntimeError("out of memory")
            return super().forward(items)

    with Model(Pipeline(tokenizer=MockTokenizer(), engine=FailsOnLongPrompts())) as model:
        for _ in range(20):
            with pytest.raises(EngineError, match="the engine failed on this request"):
                model.generate("x" * 200)
        assert model.runner.is_ready
        assert model.generate(script(text="fine")).text == "fine"


def test_an_abort_frees_everything_and_is_reported(model):
    stream = model.submit(model.request(script(text="x", tokens=4000, latency_s=0.001)))
    chunks = iter(stream)
    next(chunks)
    stream.abort()
    assert [c.finish_reason for c in chunks][-1] == "abort"
    assert_empty(model)


def test_leaving_an_iteration_aborts_its_request(model):
    for _ in model.stream(script(text="x", tokens=4000, latency_s=0.001)):
        break
    assert_empty(model)


def test_a_slow_reader_pauses_its_answer_while_others_continue():
    with pipeline(max_unread_tokens=10) as model:
        slow = model.submit(model.request(script(text="s", tokens=500)))
        assert model.generate(script(text="f", tokens=300)).text == "f" * 300
        time.sleep(0.05)
        assert len(slow._channel._chunks) <= 12
        assert slow.result().text == "s" * 500
        assert_empty(model)


@pytest.mark.parametrize(("max_unread_tokens", "most"), [(256, 5), (20, 45)])
def test_the_reader_of_a_whole_answer_does_not_wake_for_each_token(max_unread_tokens, most):
    async def wake_ups(model):
        event_loop, num = asyncio.get_running_loop(), 0
        stream = await model.asubmit(model.request(script(text="s", tokens=400, latency_s=1e-4)))
        call = event_loop.call_soon_threadsafe

        def counted(*arguments, **options):
            nonlocal num
            num += 1
            return call(*arguments, **options)

        event_loop.call_soon_threadsafe = counted
        assert (await stream.aresult()).text == "s" * 400
        return num

    with pipeline(max_unread_tokens=max_unread_tokens) as model:
        assert asyncio.run(wake_ups(model)) <= most


def test_a_full_queue_refuses_requests_and_serves_the_accepted_ones():
    with pipeline(scheduler={"max_running": 1, "max_waiting": 2}) as model:
        question = script(text="ab", tokens=50, latency_s=0.001)
        streams, refused = [], 0
        for _ in range(6):
            try:
                streams.append(model.submit(model.request(question)))
            except QueueFull:
                refused += 1
        assert refused >= 2
        finished = [s.result() for s in streams]
        assert all(f.text == "ab" * 25 for f in finished)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt": []}, RequestError, "messages is empty"),
        ({"prompt": None}, RequestError, "a prompt must be a text or a list of"),
        ({"prompt": [7]}, RequestError, "messages[0] must be a Message or a dictionary"),
        ({"prompt": "x", "images": "no-such.png"}, MediaError, "cannot be read: No such file"),
        ({"prompt": "x" * 300}, PromptTooLong, "context length is 256 tokens. However, your mess"),
        ({"prompt": "x", "max_tokens": 255}, PromptTooLong, "255 in the completion)"),
        ({"prompt": "x", "max_tokens": 999}, RequestError, "max_tokens is over the limit of 500"),
        ({"prompt": "x", "images": [picture()] * 3}, RequestError, "3 images are over the limit"),
        ({"prompt": "x", "images": [b"no"]}, ImageError, "the file is a text, which no media"),
        ({"prompt": "x", "temperature": 9}, RequestError, "temperature: Expected `float` <= 2"),
        ({"prompt": "x", "tempo": 1}, RequestError, "no sampling parameter 'tempo'"),
        ({"prompt": "x", "top_logprobs": 3}, RequestError, "top_logprobs needs logprobs"),
        ({"prompt": "x", "logit_bias": {-1: 1.0}}, RequestError, "logit_bias: Expected `int` >= 0"),
        ({"prompt": "x", "logit_bias": {999: 1.0}}, RequestError, "token id 999 is not in the"),
        ({"prompt": script(wrong=1)}, RequestError, "mock directive is not valid"),
    ],
)
def test_an_invalid_request_is_refused_with_the_field(arguments, error, message):
    with pipeline(
        engine={"max_sequence_tokens": 256}, max_images=2, max_output_tokens=500
    ) as model:
        with pytest.raises(error) as caught:
            model.generate(**arguments)
        assert message in str(caught.value)
        assert_empty(model)


def test_a_misspelt_sampling_parameter_is_reported_with_the_nearest_name():
    with pytest.raises(RequestError) as caught:
        SamplingParams().replaced({"max_token": 3})
    assert (caught.value.param, caught.value.hint) == ("max_token", "did you mean 'max_tokens'?")


def test_a_text_model_refuses_images():
    with pipeline(images=False) as model, pytest.raises(RequestError, match="takes no images"):
        model.generate("x", images=[picture()])


def test_a_cache_smaller_than_one_sequence_is_refused():
    class SmallEngine(MockEngine):
        @property
        def limits(self):
            return type(super().limits)(
                vocab_size=9,
                max_sequence_tokens=99,
                max_sequences=1,
                capacity_tokens=9,
                max_chunk_tokens=9,
            )

    with pytest.raises(ConfigError, match="9 tokens does not hold one sequence of 99"):
        Pipeline(tokenizer=MockTokenizer(), engine=SmallEngine())


def test_two_pipelines_run_side_by_side():
    with pipeline() as one, pipeline(engine={"text": "two"}) as two:
        assert (one.generate("one").text, two.generate("x").text) == ("one", "two")


def test_close_ends_running_requests_as_aborted():
    model = pipeline()
    stream = model.submit(model.request(script(text="x", tokens=4000, latency_s=0.001)))
    model.close()
    model.close()
    assert stream.result().choices[0].finish_reason == "abort"
    with pytest.raises(EngineError, match="the pipeline is closing"):
        model.runner._loop.submit([])


def test_drain_serves_running_requests_and_refuses_new_ones(model):
    stream = model.submit(model.request(script(text="ab", tokens=60, latency_s=0.002)))
    drained = []
    waiter = threading.Thread(target=lambda: drained.append(model.drain(5.0)))
    waiter.start()
    wait_until(lambda: model.runner._loop._inbox._is_draining)
    with pytest.raises(EngineError, match="closing"):
        model.generate("late")
    assert stream.result().choices[0].finish_reason == "stop"
    waiter.join()
    assert drained == [True]


def test_timings_add_up(model):
    done = model.generate(script(text="abc", prefill_latency_s=0.02, latency_s=0.01))
    assert done.timings.first_token_s >= 0.02
    assert done.timings.decode_s >= 0.03


def test_many_concurrent_requests_do_not_block_the_event_loop(model):
    async def ask(i):
        text = ""
        async for piece in model.astream(script(text=f"answer {i}")):
            text += piece
        return text

    async def main():
        return await asyncio.gather(*(ask(i) for i in range(50)))

    assert asyncio.run(main()) == [f"answer {i}" for i in range(50)]
    assert_empty(model)


def test_a_cancelled_task_cancels_its_request(model):
    async def main():
        request = model.request(script(text="x", tokens=4000, latency_s=0.001))
        task = asyncio.create_task(model.agenerate(request.messages))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert_empty(model)


def test_a_refusal_reaches_an_async_caller_before_the_first_chunk(model):
    async def main():
        with pytest.raises(RequestError, match="directive"):
            await model.asubmit(model.request(script(wrong=1)))

    asyncio.run(main())


ACTIONS = st.lists(
    st.tuples(
        st.integers(1, 40),  # tokens of the answer
        st.integers(1, 3),  # choices
        st.integers(0, 2),  # images
        st.integers(-1, 1),  # priority
        st.sampled_from(["read", "abort at once", "abort later", "fail"]),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=40)
@given(
    actions=ACTIONS,
    capacity=st.sampled_from([160, 512]),
    step=st.sampled_from([3, 16, 64]),
    mixes=st.booleans(),
    atomic=st.booleans(),
    encoder_s=st.sampled_from([0.0, 0.002]),
)
def test_nothing_is_left_whatever_is_requested_and_cancelled(
    actions, capacity, step, mixes, atomic, encoder_s
):
    engine = {
        "capacity_tokens": capacity,
        "max_sequence_tokens": 160,
        "block_tokens": 4,
        "mixes_prefill_and_decode": mixes,
        "images_are_atomic": atomic,
    }
    encoder = CountingEncoder(MockEncoderSettings(latency_s=encoder_s))
    with pipeline(engine=engine, scheduler={"max_step_tokens": step}, encoder=encoder) as model:
        streams = []
        for tokens, n, num_images, priority, fate in actions:
            fail = tokens // 2 if fate == "fail" else None
            text = script(text="ab", tokens=tokens, fail_at_token=fail)
            opened = [Image.open(picture(5 + i, 5)) for i in range(num_images)]
            params = SamplingParams(n=n, max_tokens=60)
            request = Request(
                messages=[Message.of("user", text, opened)], params=params, priority=priority
            )
            streams.append((model.submit(request), fate, tokens))
            if fate == "abort at once":
                streams[-1][0].abort()
        for stream, fate, tokens in streams:
            if fate == "abort later":
                next(iter(stream), None)
            elif fate == "fail":
                with pytest.raises(EngineError, match="told to fail"):
                    stream.result()
            elif fate == "read":
                done = stream.result()
                assert {c.text for c in done.choices} == {("ab" * 20)[:tokens]}
        assert_empty(model)
        assert not model.runner._loop._encodings._threads._queue
        counters = model.stats().counters
        ended = sum(counters[f"num_{how}"] for how in ("finished", "aborted", "failed"))
        assert ended == sum(action[1] for action in actions)


def test_a_token_without_a_logit_has_a_text_and_one_outside_the_vocabulary_has_none(monkeypatch):
    model = pipeline()
    monkeypatch.setattr(MockTokenizer, "vocab_size", 1000)  # the engine has fewer
    try:
        assert model.runner.facts.limits.vocab_size < 999
        assert model.runner.detokenize([ord("a"), 999]) == "a"
        with pytest.raises(RequestError, match="not in the vocabulary"):
            model.runner.detokenize([ord("a"), 1000])
    finally:
        model.close()
