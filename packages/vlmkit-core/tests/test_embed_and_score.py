"""Embeddings and scores: correct values beside any other requests, and nothing left behind."""

import asyncio
import dataclasses
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mock_model import picture, script, wait_until
from vlmkit.checkpoints.pooling import Pooling
from vlmkit.errors import EngineError, PromptTooLong, RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.step import WorkItem
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import new_sequence

TEXTS = ["a", "an old red house by the sea", "an old red house by the river, far from all roads"]
LAST, MEAN, CLS = Pooling(), Pooling("mean"), Pooling("cls", normalises=False)


class ThreeRowsEngine(MockEngine):
    """Returns at most three rows of logits for an item."""

    @property
    def limits(self):
        return dataclasses.replace(super().limits, max_item_rows=3, max_draft_tokens=2)


def pipeline(pooling=LAST, engine=MockEngine, max_step_tokens=64, **options):
    model = Model(
        Pipeline(
            tokenizer=MockTokenizer(),
            engine=engine(MockEngineSettings(**({"capacity_tokens": 2**13} | options))),
            media_encoder=MockVisionEncoder(),
            scheduler=ContinuousScheduler(SchedulerSettings(max_step_tokens=max_step_tokens)),
            pooling=lambda: pooling,
        )
    )
    model.pool = model.runner._engine._pool
    return model


def reference_rows(prompt, answer=(), **item):
    """Return the mock's rows with all tokens computed at once and alone."""
    engine = MockEngine(MockEngineSettings(capacity_tokens=4096, max_chunk_tokens=2048))
    features = dict(enumerate(MockVisionEncoder().encode(prompt.media)))
    sequence = new_sequence(prompt, output_ids=answer, plan=engine.read(prompt), features=features)
    assert engine.admit(sequence)
    return engine.forward([WorkItem(sequence, 0, len(sequence), **item)])


def expected_vector(prompt, pooling):
    rows = reference_rows(prompt, num_rows=len(prompt), output="hidden").hidden.astype(np.float64)
    vector = {"last": rows[-1], "mean": rows.mean(0), "cls": rows[0]}[pooling.mode]
    return vector / np.linalg.norm(vector) if pooling.normalises else vector


def expected_logprobs(prompt, text):
    answer = list(text.encode() if isinstance(text, str) else text)
    logits = reference_rows(prompt, answer[:-1], num_rows=len(answer)).logits.astype(np.float64)
    sums = np.log(np.exp(logits).sum(-1))
    return logits[np.arange(len(answer)), answer] - sums


def text_prompt(text):
    return Prompt(tuple(MockTokenizer().encode(text, adds_special=True)))


def message_prompt(text, *pictures):
    return MockTokenizer().prompt([Message.of("user", text, [Image.open(p) for p in pictures])])


def assert_empty(model):
    wait_until(lambda: model.runner._loop.num_jobs == model.runner._loop.num_waiting == 0)
    wait_until(lambda: model.pool.num_sequences == 0)
    model.pool.check_integrity()
    assert model.pool.num_free_blocks == model.pool.num_blocks
    assert model.stats().num_running == 0


TIGHT = {"capacity_tokens": 96, "max_sequence_tokens": 96, "max_chunk_tokens": 16}


@pytest.mark.parametrize("pooling", [LAST, MEAN, CLS])
@pytest.mark.parametrize("options", [{}, TIGHT, {"shares_prefixes": False, "max_chunk_tokens": 5}])
def test_vectors_do_not_depend_on_batching_chunks_and_cache(pooling, options):
    with pipeline(pooling, **options) as model:
        for _ in range(2):  # the second time, all of them are cached
            vectors = model.embed(TEXTS * 2)
            for text, vector in zip(TEXTS * 2, vectors, strict=True):
                assert vector.dtype == np.float32
                np.testing.assert_allclose(
                    vector, expected_vector(text_prompt(text), pooling), atol=1e-6
                )
        assert_empty(model)


@pytest.mark.parametrize("pooling", [LAST, MEAN, CLS])
@pytest.mark.parametrize("is_atomic", [False, True])
def test_texts_with_images_use_the_template_and_the_encoder(pooling, is_atomic):
    pictures = [[picture()], [], [picture(4, 9), picture(8, 6, "blue")]]
    with pipeline(pooling, images_are_atomic=is_atomic, max_step_tokens=9) as model:
        vectors = model.embed(TEXTS, images=pictures)
        num_encoded = 0 if pooling is CLS else 3  # CLS needs only the first token, before any image
        assert model.stats().counters["num_media_encoded"] == num_encoded
        assert_empty(model)
    prompts = [
        message_prompt(t, *own) if own else text_prompt(t)
        for t, own in zip(TEXTS, pictures, strict=True)
    ]
    for prompt, vector in zip(prompts, vectors, strict=True):
        np.testing.assert_allclose(vector, expected_vector(prompt, pooling), atol=1e-6)


@pytest.mark.parametrize("engine", [MockEngine, ThreeRowsEngine])
@pytest.mark.parametrize("options", [{}, TIGHT])
def test_scores_are_the_log_probabilities_of_the_given_tokens(engine, options):
    continuations = ["This is so.", "no", "x", "This is not so, as everybody knows."]
    question, shown = "Is it?", [picture()]
    with pipeline(engine=engine, max_step_tokens=24, **options) as model:
        for _ in range(2):
            scores = model.score(question, continuations, images=shown)
            assert [score.text for score in scores] == continuations
            for text, score in zip(continuations, scores, strict=True):
                logprobs = expected_logprobs(message_prompt(question, *shown), text)
                assert [s.token_id for s in score.samples] == list(text.encode())
                assert [s.logprob for s in score.samples] == pytest.approx(logprobs, abs=1e-5)
                assert score.logprob == pytest.approx(logprobs.sum(), abs=1e-4)
        assert_empty(model)


@pytest.mark.parametrize("engine", [MockEngine, ThreeRowsEngine])
@pytest.mark.parametrize("options", [{}, TIGHT, {"images_are_atomic": True}])
def test_continuations_are_scored_behind_the_whole_prompt(engine, options):
    shown = [Image.open(picture()), Image.open(picture(4, 9))]
    parts = (TextPart("see"), ImagePart(shown[0]), ImagePart(shown[1]), TextPart("well?"))
    messages = [Message("user", parts), Message.of("assistant", "a tree")]
    prompt = MockTokenizer().prompt(messages)
    request = Request(messages=messages, task="score")
    with pipeline(engine=engine, max_step_tokens=24, **options) as model:
        for _ in range(2):
            read = asyncio.run(model.runner.atokenize(request))
            choices = model.submit(request).result().choices
            assert read.texts == [(1, 5), (17, len(prompt))]
            for (start, stop), choice in zip(read.texts, choices, strict=True):
                ids = prompt.token_ids[start:stop]
                media = tuple(slot for slot in prompt.media if slot.stop <= start)
                expected = expected_logprobs(Prompt(prompt.token_ids[:start], media), ids)
                assert [s.token_id for s in choice.samples] == list(ids)
                assert [s.logprob for s in choice.samples] == pytest.approx(expected, abs=1e-5)
        assert_empty(model)


def test_a_prompt_without_text_to_score_is_refused():
    with pipeline() as model, pytest.raises(RequestError, match="no token that could be scored"):
        model.submit(Request(token_ids=[1], task="score"))


def test_continuations_share_the_prefill_of_their_prompt():
    question = "a question that is read once, " * 4
    with pipeline() as model:
        model.score(question, ["one", "two", "three"])
        num_computed = model.stats().counters["num_tokens_computed"]
    assert num_computed < 2 * len(message_prompt(question))


def test_cached_texts_are_computed_again_for_a_mean():
    with pipeline(MEAN) as model:
        model.embed([TEXTS[2]])
        before = model.stats().counters["num_tokens_computed"]
        model.embed([TEXTS[2]])
        assert model.stats().counters["num_tokens_computed"] == 2 * before


def test_cls_pooling_computes_only_the_first_token():
    with pipeline(CLS) as model:
        model.embed([TEXTS[2]])
        assert model.stats().counters["num_tokens_computed"] == 1


class SkipsWantedRows(MockEngine):
    def admit(self, sequence):
        wanted, sequence.wanted = sequence.wanted, None
        admission = super().admit(sequence)
        sequence.wanted = wanted
        return admission


def test_a_cache_that_skips_wanted_rows_is_an_error():
    with pipeline(MEAN, SkipsWantedRows) as model:
        model.embed([TEXTS[2]])
        with pytest.raises(EngineError, match="passed over a token whose row is wanted"):
            model.embed([TEXTS[2]])
        assert model.runner.is_ready
        assert_empty(model)


def test_an_engine_without_hidden_states_refuses_to_embed_and_still_answers():
    class WithoutHiddenStates(MockEngine):
        @property
        def limits(self):
            return dataclasses.replace(super().limits, hidden_size=0)

    with pipeline(engine=WithoutHiddenStates) as model:
        with pytest.raises(RequestError, match="gives no embeddings"):
            model.embed(["text"])
        assert model.generate(script(text="still here")).text == "still here"
        assert model.score("?", ["a"])[0].logprob < 0


def test_texts_over_the_length_limit_are_refused():
    with pipeline(max_sequence_tokens=32) as model:
        assert model.embed(["x" * 30])[0].shape == (8,)
        with pytest.raises(PromptTooLong, match="your text resulted in 32 tokens"):
            model.embed(["x" * 31])
        engine_options = 32 - len(message_prompt("?"))
        assert len(model.score("?", ["x" * engine_options])[0].samples) == engine_options
        with pytest.raises(PromptTooLong, match="prompt and continuation resulted in 33 tokens"):
            model.score("?", ["fine", "x" * (engine_options + 1)])
        assert_empty(model)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda m: m.embed("one text"), "texts must be a list"),
        (lambda m: m.embed(["a", "b"], images=[[]]), "images has 1 lists for 2 texts"),
        (lambda m: m.score("?", "no list"), "continuations must be a list"),
        (lambda m: m.score("?", []), "continuations are empty"),
        (lambda m: m.score("?", ["a", ""]), r"continuations\[1\] has no tokens"),
        (lambda m: m.submit(Request(text="a", continuations=["b"])), "continuations are what"),
        (lambda m: m.submit(Request(task="embed")), "messages is empty"),
        (
            lambda m: m.submit(Request(text="a", messages=[Message.of("user", "b")])),
            "exclude each other",
        ),
    ],
)
def test_an_invalid_request_is_refused_with_a_reason(call, problem):
    with pipeline() as model, pytest.raises(RequestError, match=problem):
        call(model)


def test_an_empty_list_of_texts_gives_an_empty_list():
    with pipeline() as model:
        assert model.embed([]) == []


def test_close_ends_an_embedding_with_an_error():
    class BlockedEngine(MockEngine):
        begun, go_on = threading.Event(), threading.Event()

        def forward(self, items):
            self.begun.set()
            assert self.go_on.wait(300)
            return super().forward(items)

    model, errors = pipeline(MEAN, BlockedEngine, max_chunk_tokens=4), []

    def embed():
        try:
            model.embed([TEXTS[2]])
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=embed)
    thread.start()
    BlockedEngine.begun.wait(300)
    closer = threading.Thread(target=model.close)
    closer.start()
    wait_until(lambda: model.runner._loop._inbox._is_closing)
    BlockedEngine.go_on.set()
    thread.join()
    closer.join()
    assert [str(error) for error in errors] == ["the request was cut off"]


def test_a_text_that_fails_does_not_affect_others():
    class FailsOnLongTexts(MockEngine):
        def forward(self, items):
            if any(len(item.sequence) > 40 for item in items):
                raise RuntimeError("too much to think of")
            return super().forward(items)

    with pipeline(MEAN, FailsOnLongTexts) as model:
        streams = [model.submit(Request(text=text, task="embed")) for text in TEXTS]
        for text, stream in zip(TEXTS[:2], streams, strict=False):
            vector = stream.result().choices[0].embedding
            np.testing.assert_allclose(vector, expected_vector(text_prompt(text), MEAN), atol=1e-6)
        with pytest.raises(EngineError, match="failed on this request"):
            streams[2].result()
        assert_empty(model)


def test_states_that_are_not_finite_fail_only_their_text():
    class NotFiniteStates(MockEngine):
        def _hidden(self, wanted):
            rows = super()._hidden(wanted)
            ends = np.cumsum([item.num_rows for item in wanted])
            long = [len(item.sequence) > 40 for item in wanted]
            rows[ends[long] - 1] = np.nan
            return rows

    with pipeline(LAST, NotFiniteStates) as model:
        streams = [model.submit(Request(text=text, task="embed")) for text in TEXTS]
        assert [s.result().choices[0].embedding.shape for s in streams[:2]] == [(8,), (8,)]
        with pytest.raises(EngineError, match="not finite"):
            streams[2].result()


def test_aembed_and_ascore_equal_embed_and_score():
    async def both(model):
        return await asyncio.gather(model.aembed(TEXTS * 3), model.ascore("?", ["a", "bc"]))

    with pipeline(MEAN, max_sequences=2) as model:
        vectors, scores = asyncio.run(both(model))
        np.testing.assert_array_equal(vectors, model.embed(TEXTS * 3))
        assert [s.logprob for s in scores] == [s.logprob for s in model.score("?", ["a", "bc"])]


def make_request(kind, number, shows):
    pictures = [Image.open(picture(8 + number % 3, 6))] * shows
    message = Message.of("user", script(text=f"{number} and on and on") + " " * number, pictures)
    if kind == "generate":
        params = SamplingParams(max_tokens=5 + number, temperature=0.7, seed=number, logprobs=True)
        return Request(messages=[message], params=params)
    if kind == "score":
        continuations = [f"{number} and", "o", "no and on, for as long as it takes"]
        return Request(messages=[message], task="score", continuations=continuations)
    if shows:
        return Request(messages=[message], task="embed")
    return Request(text=TEXTS[number % 3] + "!" * number, task="embed")


REQUESTS = st.builds(
    make_request,
    st.sampled_from(["generate", "embed", "score"]),
    st.integers(0, 9),
    st.integers(0, 1),
)


def comparable(done):
    return [
        (c.text, c.samples, None if c.embedding is None else c.embedding.tolist())
        for c in done.choices
    ]


@given(
    work=st.lists(st.tuples(REQUESTS, st.booleans()), min_size=1, max_size=8),
    pooling=st.sampled_from([LAST, MEAN, CLS]),
    is_tight=st.booleans(),
    few=st.booleans(),
    is_atomic=st.booleans(),
)
@settings(max_examples=60)
def test_mixed_requests_equal_requests_alone_and_leave_nothing(
    work, pooling, is_tight, few, is_atomic
):
    engine_options = {"capacity_tokens": 192, "max_sequence_tokens": 192} if is_tight else {}
    engine_options |= {"max_chunk_tokens": 16, "images_are_atomic": is_atomic}
    with pipeline(pooling) as model:
        alone = [None if quits else comparable(model.submit(r).result()) for r, quits in work]
    engine = ThreeRowsEngine if few else MockEngine
    with pipeline(pooling, engine, max_step_tokens=40, **engine_options) as model:
        streams = [model.submit(request) for request, _ in work]
        for stream, (_, quits) in zip(streams, work, strict=True):
            if quits:
                stream.abort()
        for stream, expected in zip(streams, alone, strict=True):
            found = comparable(stream.result())
            if expected is None:
                continue
            for together, separate in zip(found, expected, strict=True):
                assert together[0] == separate[0]
                assert [s.token_id for s in together[1]] == [s.token_id for s in separate[1]]
                logprobs = [s.logprob for s in separate[1]]
                assert [s.logprob for s in together[1]] == pytest.approx(logprobs, abs=1e-5)
                if separate[2] is not None:
                    np.testing.assert_allclose(together[2], separate[2], atol=1e-6)
        assert_empty(model)


# Token ids instead of text.


def test_token_ids_are_answered_embedded_and_scored_like_their_text():
    with pipeline() as model:
        runner = model.runner
        ids = asyncio.run(runner.atokenize(Request(text="an old house"))).token_ids
        greedy = SamplingParams(temperature=0.0, max_tokens=4)
        for task, fields, other in [
            ("generate", {"params": greedy}, {}),
            ("embed", {}, {}),
            ("score", {"continuations": ["by the sea"]}, {"continuations": [list(b"by the sea")]}),
        ]:
            text = Request(text="an old house", task=task, **fields)
            tokens = Request(token_ids=ids, task=task, **fields | other)
            one, two = (runner.submit(request).result() for request in (text, tokens))
            assert one.usage.prompt_tokens == two.usage.prompt_tokens
            assert one.choices[0].samples == two.choices[0].samples
            np.testing.assert_array_equal(one.choices[0].embedding, two.choices[0].embedding)


def test_a_text_can_be_tokenized_without_special_tokens():
    with pipeline() as model:
        request = Request(text="old", adds_special=False)
        assert asyncio.run(model.runner.atokenize(request)).token_ids == tuple(b"old")


def test_a_scored_token_includes_its_top_alternatives():
    with pipeline() as model:
        message_prompt = Request(
            token_ids=b"an",
            task="score",
            continuations=[b" old"],
            params=SamplingParams(logprobs=True, top_logprobs=3),
        )
        samples = model.submit(message_prompt).result().choices[0].samples
        assert [len(sample.top) for sample in samples] == [3] * 4


def test_tokens_of_a_prompt_over_the_limit_are_counted():
    with pipeline() as model:
        text = "x" * (model.facts.limits.max_sequence_tokens + 5)
        assert len(asyncio.run(model.runner.atokenize(Request(text=text))).token_ids) > len(text)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": [1, 100_000]}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"token_ids": []}, "messages"),
        ({"token_ids": [1], "text": "x"}, "messages"),
        ({"token_ids": [1], "messages": [Message.of("user", "x")]}, "messages"),
        ({"token_ids": [1], "task": "score", "continuations": [[-1]]}, "continuations[0]"),
        ({"token_ids": [1], "task": "score", "continuations": [[]]}, "continuations[0]"),
    ],
)
def test_invalid_token_ids_are_refused(fields, param):
    with pipeline() as model, pytest.raises(RequestError) as caught:
        model.submit(Request(**fields))
    assert caught.value.param == param


def test_an_answer_to_a_plain_text_has_no_reasoning():
    with pipeline() as model:
        thinks = script(text="four", reasoning="two and two")
        fields = model.submit(Request(text=thinks)).result().choices[0]
        assert (fields.text, fields.reasoning) == ("two and twofour", "")
        assert model.generate(thinks).choices[0].reasoning == "two and two"
