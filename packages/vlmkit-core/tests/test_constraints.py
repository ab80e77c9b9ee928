"""Constrained answers match their constraint with any drafts, samplers and options."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from mock_model import answers, hesitant, picture, script
from spelling import Spelling, SpellingCompiler
from vlmkit.errors import ConstraintError, EngineError, RequestError
from vlmkit.interfaces.tokenizer import PLAIN
from vlmkit.kit.install_command import install_command
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.types.constraint import (
    MAX_CHARS,
    MAX_TEXTS,
    JsonSchema,
    Lark,
    OneOf,
    Regex,
)
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vocabulary import VOCAB_SIZE

TEXTS = ("a red circle", "a red square", "a blue circle", "two", "two circles and a half", "größer")
COLOURS = OneOf(TEXTS)


class RandomProposer:
    """Propose random tokens: allowed ones, forbidden ones and the end."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.known = set()

    def propose(self, sequence, num_tokens):
        self.known.add(sequence)
        begun = bytes(i for i in sequence.output_ids if i < 256)
        texts = [text.encode() for text in TEXTS]
        right = [text[len(begun) :] for text in texts if text.startswith(begun)] or [b""]
        cut = self.random.choice(right)[: self.random.randint(0, 6)]
        wrong = [self.random.randint(-1, VOCAB_SIZE) for _ in range(self.random.randint(0, 3))]
        return [*cut, *wrong]

    def note(self, sequence, num_drafted, num_accepted):
        assert sequence in self.known, "it made no guess"
        assert 0 <= num_accepted <= num_drafted

    def forget(self, sequence):
        self.known.discard(sequence)


class ForcesNothing(Spelling):
    def forced(self):
        return ()


class UnforcedCompiler(SpellingCompiler):
    matcher = ForcesNothing


def pipeline(constraint=SpellingCompiler, *args, **options):
    return hesitant(*args, constraint=constraint, **options)


def make_request(number=0, show=0, constraint=COLOURS, **params):
    images = [Image.open(picture(8 + number, 6)) for _ in range(show)]
    scripted = script(text=f"{number} and on and on")
    return Request(
        messages=[Message.of("user", scripted, images)],
        params=SamplingParams(**params),
        constraint=constraint,
    )


REQUESTS = st.builds(
    make_request,
    st.integers(0, 3),
    st.integers(0, 1),
    st.sampled_from([COLOURS, COLOURS, OneOf(("yes", "no")), None]),
    max_tokens=st.integers(1, 30),
    temperature=st.sampled_from([0.0, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.7]),
    top_k=st.sampled_from([0, 2]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    frequency_penalty=st.sampled_from([0.0, 0.8]),
    logit_bias=st.sampled_from([{}, {ord("a"): -100.0, ord("x"): 100.0}]),
    stop=st.sampled_from([(), (" ",)]),
    seed=st.integers(0, 5),
    logprobs=st.booleans(),
    n=st.integers(1, 3),
)


@given(st.lists(REQUESTS, min_size=1, max_size=4), st.integers(0, 2**16), st.booleans())
@settings(max_examples=60)
def test_drafts_and_cache_size_do_not_change_answers_and_every_answer_matches(
    requests, seed, is_tight
):
    limits = {"capacity_tokens": 192, "max_sequence_tokens": 192} if is_tight else {}
    with pipeline(UnforcedCompiler) as model:
        expected = answers(model, requests)
    with pipeline(proposer=RandomProposer(seed), **limits) as model:
        assert answers(model, requests) == expected
        pool = model.runner._engine._pool
        assert pool.num_free_blocks == pool.num_blocks
        assert model.runner._loop._steps._drafting._forced == set()
        assert model.runner._loop._steps._drafting._proposer is not None, (
            "it failed, and nothing was tried"
        )
    for request, choices in zip(requests, expected, strict=True):
        for text, reason, _ in choices if request.constraint else ():
            whole = request.constraint.texts
            if reason == "stop" and not request.params.stop:
                assert text in whole
            begun = text.rstrip("\ufffd")  # a length may end inside a character
            assert any(t.startswith(begun) for t in whole)


def test_forced_tokens_are_drafted_and_save_steps():
    request = make_request(temperature=1.0, seed=3)
    with pipeline(UnforcedCompiler) as model:
        (expected,) = answers(model, [request])
        num_steps = model.runner.stats().counters["num_steps"]
    with pipeline() as model:
        assert answers(model, [request]) == [expected]
        counters = model.runner.stats().counters
    assert counters["num_drafts_accepted"] == counters["num_tokens_drafted"] > 1
    assert counters["num_steps"] == num_steps - counters["num_drafts_accepted"]


def test_drafts_that_the_constraint_forbids_are_not_computed():
    class WrongProposer(RandomProposer):
        def propose(self, sequence, num_tokens):
            self.known.add(sequence)
            return [ord("?"), ord("!")]

    with pipeline(UnforcedCompiler, WrongProposer(0)) as model:
        answers(model, [make_request(temperature=1.0)])
        assert model.runner.stats().counters["num_tokens_drafted"] == 0


def test_an_engine_without_drafts_samples_forced_tokens_one_by_one():
    request = make_request(temperature=1.0, seed=3)
    with pipeline() as model:
        expected = answers(model, [request])
    with pipeline(max_draft_tokens=0) as model:
        assert answers(model, [request]) == expected
        assert model.runner.stats().counters["num_tokens_drafted"] == 0


def test_each_choice_has_its_own_matcher():
    with pipeline() as model:
        (choices,) = answers(model, [make_request(temperature=2.0, n=12, seed=1)])
    assert {text for text, _, _ in choices} <= set(TEXTS)
    assert len({text for text, _, _ in choices}) > 2


def test_a_constraint_does_not_change_answers_of_other_requests():
    params = {"temperature": 1.0, "max_tokens": 12, "logprobs": True}
    free = [make_request(i, constraint=None, seed=i, **params) for i in range(3)]
    with pipeline() as model:
        alone = answers(model, free)
    bound = [make_request(i, 1, temperature=1.0, seed=i) for i in range(3)]
    mixed = [request for pair in zip(free, bound, strict=True) for request in pair]
    with pipeline() as model:
        assert answers(model, mixed)[::2] == alone


def test_log_probabilities_of_a_constrained_answer_are_those_of_the_model():
    with pipeline() as model:
        done = model.submit(make_request(1, logprobs=True, temperature=1.0, seed=2)).result()
        samples = done.choices[0].samples
        prompt = [Message.of("user", script(text="1 and on and on"))]
        (score,) = model.score(prompt, [done.text])
    sample_logprobs = [sample.logprob for sample in samples[:-1]]  # the last one is the end
    assert sample_logprobs == pytest.approx([sample.logprob for sample in score.samples], abs=1e-5)
    assert min(sample_logprobs) < -3.0, "what was chosen was unlikely without the constraint"


# Samplers without support for constraints.


class GreedySampler:
    def prepare(self, rows):
        return lambda logits: logits.argmax(-1)


class ConstantSampler:
    """Samples the same token for any logits."""

    def prepare(self, rows):
        return lambda logits: logits.argmax(-1) * 0 + ord("x")


@pytest.mark.parametrize("show", [0, 1])
def test_a_sampler_that_knows_no_constraints_samples_within_the_constraint(show):
    with pipeline(sampler=GreedySampler()) as model:
        (((text, reason, _),),) = answers(model, [make_request(show=show)])
    assert text in TEXTS
    assert reason == "stop"


@pytest.mark.parametrize("show", [0, 1])
def test_a_sampler_that_ignores_masks_fails_only_the_constrained_request(show):
    with pipeline(sampler=ConstantSampler()) as model:
        bound = model.submit(make_request(show=show))
        free = model.submit(make_request(constraint=None, max_tokens=4))
        with pytest.raises(EngineError, match="a token that the constraint does not allow"):
            bound.result()
        assert free.result().text == "xxxx"
        assert model.runner.is_ready


# Matchers that fail.


class RaisesLater(Spelling):
    def fill(self, mask):
        if len(self.rests) > 2:
            raise RuntimeError("it said: a red circle")
        super().fill(mask)


class AllowsNothingLater(Spelling):
    """Allows no token after the first ones, and no end."""

    def fill(self, mask):
        if len(self.rests) < 4:
            super().fill(mask)

    may_end = False


class AcceptsNothing(Spelling):
    def accept(self, token_id):
        return False


def with_matcher(matcher_class):
    class Compiler(SpellingCompiler):
        matcher = matcher_class

    return Compiler


@pytest.mark.parametrize("show", [0, 1])
@pytest.mark.parametrize(
    ("broken", "error", "match"),
    [
        (RaisesLater, EngineError, "^the constraint failed on this request"),
        (AllowsNothingLater, ConstraintError, "cannot go on"),
        (AcceptsNothing, EngineError, "refuses a token that it allowed"),
    ],
)
def test_a_matcher_that_fails_ends_only_its_own_request(broken, error, match, show):
    free = make_request(1, constraint=None, max_tokens=20)
    with pipeline() as model:
        expected = answers(model, [free])
    with pipeline(with_matcher(broken)) as model:
        streams = [model.submit(make_request(show=show)), model.submit(free)]
        with pytest.raises(error, match=match):
            streams[0].result()
        found = [(c.text, c.finish_reason, tuple(c.samples)) for c in streams[1].result().choices]
        assert [found] == expected
        assert model.runner.stats().counters["num_failed"] == 1
        pool = model.runner._engine._pool
        assert pool.num_free_blocks == pool.num_blocks
        assert model.runner.is_ready


@pytest.mark.parametrize("is_resettable", [False, True])
@pytest.mark.parametrize("fails", ["fill", "accept", "forced"])
def test_a_matcher_that_fails_on_a_draft_does_not_fail_the_answer(fails, is_resettable, caplog):
    texts = tuple(map("".join, itertools.product("xyz", repeat=6)))
    request = make_request(constraint=OneOf(texts), temperature=1.0, seed=3)
    with pipeline() as model:
        expected = answers(model, [request])
    truth = expected[0][0][0].encode()

    class FailsOffPath(Spelling):
        """Fails for good after a wrong draft, as a library's matcher may."""

        def __init__(self, token_bytes, texts):
            super().__init__(token_bytes, texts)
            self.said, self.is_broken = [], False

        def fill(self, mask):
            self.check("fill")
            super().fill(mask)

        def accept(self, token_id):
            was_accepted = super().accept(token_id)
            self.said += [token_id] * was_accepted
            self.check("accept")
            return was_accepted

        def forced(self):
            self.is_broken |= fails == "forced"
            self.check("forced")
            return super().forced()

        def check(self, called):
            self.is_broken |= called == fails and not truth.startswith(bytes(self.said))
            if self.is_broken:
                raise RuntimeError("no more")

        def roll_back(self, num_tokens):
            super().roll_back(num_tokens)
            del self.said[len(self.said) - num_tokens :]

    def reset(self):
        Spelling.reset(self)
        self.said.clear()
        self.is_broken = False

    FailsOffPath.reset = reset if is_resettable else None

    class OffPathProposer(RandomProposer):
        def propose(self, sequence, num_tokens):
            self.known.add(sequence)
            return [ord(self.random.choice("xyz")) for _ in range(2)]

    with pipeline(with_matcher(FailsOffPath), OffPathProposer(1)) as model:
        assert answers(model, [request]) == expected
    assert caplog.text.count("a constraint failed on a draft") == 1


def test_a_minimum_length_that_the_constraint_cannot_reach_is_an_error():
    with pipeline() as model:
        with pytest.raises(ConstraintError, match="cannot go on") as caught:
            model.submit(make_request(constraint=OneOf(("yes", "no")), min_tokens=9)).result()
        assert "min_tokens" in caught.value.hint
        assert model.submit(make_request(min_tokens=4, max_tokens=40)).result().text in set(
            TEXTS
        ) - {"two"}


def test_a_stop_token_before_the_minimum_length_is_not_sampled():
    last = ord("s")
    with pipeline() as model:
        with pytest.raises(ConstraintError, match="no token is left") as caught:
            model.submit(
                make_request(constraint=OneOf(("yes",)), min_tokens=3, stop_token_ids=(last,))
            ).result()
        assert "min_tokens" in caught.value.hint
        texts = OneOf(("yes", "yellow"))
        waits = make_request(
            constraint=texts, min_tokens=3, stop_token_ids=(last,), logit_bias={last: 100}
        )
        assert model.submit(waits).result().text == "yellow"
        stops = make_request(
            constraint=texts, min_tokens=2, stop_token_ids=(last,), logit_bias={last: 100}
        )
        assert model.submit(stops).result().text == "ye"


def test_a_compiler_that_allows_every_token_allows_no_end_and_no_banned_token():
    class AllowsAll(Spelling):
        may_end = False

        def fill(self, mask):
            mask[:] = -1

        def accept(self, token_id):
            return 0 <= token_id < 256

        def roll_back(self, num_tokens):
            pass

    class PrefersSpecialTokens(MockEngine):
        def _logits(self, wanted):
            logits = super()._logits(wanted)
            logits[:, 256:] += 100.0
            return logits

    with pipeline(with_matcher(AllowsAll), engine=PrefersSpecialTokens) as model:
        done = model.submit(make_request(max_tokens=30, temperature=1.0)).result()
    assert len(done.choices[0].samples) == 30
    assert max(sample.token_id for sample in done.choices[0].samples) < 256


def test_an_end_before_the_minimum_length_leaves_the_longer_text():
    texts = OneOf(("two", "two circles"))
    with pipeline(engine=MockEngine) as model:
        request = make_request(constraint=texts, min_tokens=4, logit_bias={})
        assert model.submit(request).result().text == "two circles"


def test_masks_are_computed_between_forward_and_sampling():
    calls = []

    class RecordingMatcher(Spelling):
        def fill(self, mask):
            calls.append("fill")
            super().fill(mask)

    class RecordingEngine(MockEngine):
        def forward(self, items):
            calls.append("forward")
            return super().forward(items)

    class RecordingSampler(GreedySampler):
        def prepare(self, rows):
            calls.append("prepare")
            pick = super().prepare(rows)

            def sample_logprobs(logits):
                calls.append("pick")
                return pick(logits)

            return sample_logprobs

    with pipeline(
        with_matcher(RecordingMatcher), engine=RecordingEngine, sampler=RecordingSampler()
    ) as model:
        model.submit(make_request(max_tokens=1)).result()
    assert calls[-4:] == ["prepare", "forward", "fill", "pick"]


def test_a_constrained_answer_is_text_from_its_first_token():
    class ReasoningTokenizer(MockTokenizer):
        """Its prompts open the model's reasoning."""

        def prompt(self, messages, *, tools=None, options=PLAIN):
            return replace(
                super().prompt(messages, tools=tools, options=options), opens_reasoning=True
            )

    runner = Pipeline(
        tokenizer=ReasoningTokenizer(),
        engine=MockEngine(MockEngineSettings()),
        constraint=SpellingCompiler,
    )
    with Model(runner) as model:
        free = model.generate("hello", max_tokens=8)
        assert (free.text, free.choices[0].reasoning) == ("", "hello")
        bound = model.generate("hello", constraint=COLOURS)
        assert bound.text in TEXTS
        assert not bound.choices[0].reasoning


# Requests.


def test_a_constraint_without_a_provider_is_refused_with_a_hint():
    with pipeline(None) as model:
        with pytest.raises(ConstraintError, match="no plugin") as caught:
            model.generate("hello", constraint=COLOURS)
        assert install_command("vlmkit-guidance") in caught.value.hint
        assert caught.value.param == "constraint"


def test_an_unsupported_use_of_a_constraint_is_refused():
    with pipeline() as model:
        with pytest.raises(ConstraintError, match="ignore_eos"):
            model.generate("hello", constraint=COLOURS, ignore_eos=True)
        with pytest.raises(RequestError, match="only an answer"):
            model.submit(Request(text="hello", task="embed", constraint=COLOURS))
        with pytest.raises(ConstraintError, match="only texts to choose from") as caught:
            model.generate("hello", constraint=Regex("a*"))
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: OneOf(()),
        lambda: OneOf("yes"),
        lambda: OneOf(("",)),
        lambda: OneOf((1,)),
        lambda: OneOf(("a",) * (MAX_TEXTS + 1)),
        lambda: OneOf(("a" * 999,) * 999),
        lambda: OneOf(("\ud800",)),
        lambda: Regex(""),
        lambda: Regex("a" * (MAX_CHARS + 1)),
        lambda: Lark(None),
        lambda: JsonSchema("{"),
        lambda: JsonSchema("[1]"),
        lambda: JsonSchema("[" * 50_000),
        lambda: JsonSchema.of({"a": object()}),
        lambda: JsonSchema.of({1: {2, 3}}),
        lambda: Request(messages=[Message.of("user", "hi")], constraint="yes|no"),
        lambda: Request(messages=[Message.of("user", "hi")], constraint={"type": "object"}),
    ],
)
def test_an_invalid_constraint_is_refused_at_submission(make):
    with pytest.raises(ConstraintError) as caught:
        make()
    assert caught.value.param == "constraint"


def test_a_schema_keeps_the_order_of_its_properties():
    schema = JsonSchema.of({"properties": {"z": {}, "a": {"const": "ü"}}})
    assert schema.text == '{"properties":{"z":{},"a":{"const":"ü"}}}'
    assert JsonSchema.of(True).text == "true"


async def collected(stream):
    return "".join([text async for text in stream])


def test_every_method_of_a_model_accepts_a_constraint():
    import asyncio

    with pipeline() as model:
        assert model.generate("hello", constraint=COLOURS).text in TEXTS
        assert "".join(model.stream("hello", constraint=COLOURS)) in TEXTS
        assert asyncio.run(model.agenerate("hello", constraint=COLOURS)).text in TEXTS
        assert asyncio.run(collected(model.astream("hello", constraint=COLOURS))) in TEXTS


def test_a_constrained_answer_can_be_cut_by_max_tokens():
    with pipeline() as model:
        done = model.generate("hello", constraint=OneOf(("a red circle",)), max_tokens=5)
    assert (done.text, done.choices[0].finish_reason) == ("a red", "length")


def test_an_aborted_answer_leaves_no_matcher_behind():
    with pipeline(latency_s=0.01) as model:
        stream = model.submit(make_request(n=2))
        next(iter(stream))
        stream.abort()
        stream.result()
        pool = model.runner._engine._pool
        assert pool.num_free_blocks == pool.num_blocks


# Compiling.


def test_a_compiler_is_built_on_first_use_and_compiles_once_for_each_tenant():
    made, compiled = [], []

    class CountingCompiler(SpellingCompiler):
        def __init__(self, vocabulary):
            made.append(len(vocabulary.token_bytes))
            super().__init__(vocabulary)

        def compile(self, constraint):
            compiled.append(constraint)
            return super().compile(constraint)

    with pipeline(CountingCompiler) as model:
        model.generate("hello", max_tokens=2)
        assert made == []
        for _ in range(3):
            model.generate("hello", constraint=OneOf(("yes", "no")), n=2)
        assert made == [VOCAB_SIZE]
        assert compiled == [OneOf(("yes", "no"))]
        other = Request(text="hello", constraint=OneOf(("yes", "no")), tenant="another")
        model.runner.submit(other).result()
        assert compiled == [OneOf(("yes", "no"))] * 2, "no tenant learns what others sent"


def test_an_error_of_a_compiler_is_reported_without_its_text():
    class Fails(SpellingCompiler):
        def compile(self, constraint):
            raise ValueError("some library's words")

    with pipeline(Fails) as model:
        with pytest.raises(EngineError, match="constraint could not be compiled"):
            model.generate("hello", constraint=COLOURS)
        assert model.generate("hello", max_tokens=2).text


def test_special_tokens_have_no_bytes_in_the_vocabulary_of_a_compiler():
    seen = []

    class RecordingCompiler(SpellingCompiler):
        def __init__(self, vocabulary):
            seen.append(vocabulary)
            super().__init__(vocabulary)

    class NamedSpecialTokens(MockTokenizer):
        """Gives special tokens a text, as tokenizers do."""

        def token_bytes(self, token_id):
            return super().token_bytes(token_id) or b"<|special|>"

    engine = MockEngine(MockEngineSettings())
    with Model(
        Pipeline(tokenizer=NamedSpecialTokens(), engine=engine, constraint=RecordingCompiler)
    ) as model:
        model.generate("hello", constraint=OneOf(("<|special|>",)))
    (vocabulary,) = seen
    assert vocabulary.token_bytes[:256] == [bytes([i]) for i in range(256)]
    assert set(vocabulary.token_bytes[256:]) == {b""}
    assert vocabulary.encode("ab") == [97, 98]
