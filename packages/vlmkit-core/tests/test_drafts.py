"""Drafts change only the speed: answers are the same with any proposer and without one."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from mock_model import answers, hesitant, picture, script
from vlmkit.running.engine_loop.ngram import NgramProposer
from vlmkit.settings.ngram import NgramSettings
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.vocabulary import END, VOCAB_SIZE
from vlmkit_testing import ProposerContract, new_sequence


class RandomProposer:
    """Propose random mixtures of correct tokens, wrong tokens and the end."""

    def __init__(self, seed, answers=()):
        self.random = random.Random(seed)
        self.answers = answers
        self.known = set()

    def propose(self, sequence, num_tokens):
        self.known.add(sequence)
        done = sequence.output_ids
        right = [a[len(done) :] for a in self.answers if a[: len(done)] == done]
        proposed = list(self.random.choice(right))[: self.random.randint(0, 9)] if right else []
        wrong = [self.random.randint(-2, VOCAB_SIZE + 2) for _ in range(self.random.randint(0, 4))]
        end = [END] * self.random.randint(0, 1)
        return self.random.choice([proposed + wrong, proposed + end + wrong, wrong + proposed * 3])

    def note(self, sequence, num_drafted, num_accepted):
        assert sequence in self.known
        assert 0 <= num_accepted <= num_drafted

    def forget(self, sequence):
        self.known.discard(sequence)


def make_request(number, show, **params):
    scripted = script(text=f"{number} and on and on and on, {number} times")
    pictures = [picture(8 + number, 6)] * show
    message = Message.of("user", scripted, [open_image(p) for p in pictures])
    return Request(messages=[message], params=SamplingParams(**params))


def open_image(picture):
    from vlmkit.types.image import Image

    return Image.open(picture)


REQUESTS = st.builds(
    make_request,
    st.integers(0, 5),
    st.integers(0, 1),
    max_tokens=st.integers(1, 60),
    min_tokens=st.integers(0, 1),
    temperature=st.sampled_from([0.0, 0.4, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 3]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.sampled_from([{}, {END: 3.0}, {ord("a"): -5.0}]),
    stop=st.sampled_from([(), ("on and",), (" ",)]),
    seed=st.integers(0, 5),
    logprobs=st.booleans(),
    n=st.integers(1, 3),
)


@given(st.lists(REQUESTS, min_size=1, max_size=5), st.integers(0, 2**16), st.booleans())
@settings(max_examples=60)
def test_drafts_do_not_change_answers(requests, seed, is_tight):
    limits = {"capacity_tokens": 192, "max_sequence_tokens": 192} if is_tight else {}
    with hesitant(**limits) as model:
        expected = answers(model, requests)
    known = [[s.token_id for s in samples] for a in expected for _, _, samples in a]
    with hesitant(RandomProposer(seed, known), **limits) as model:
        found = answers(model, requests)
        counters = model.stats().counters
        pool, drafting = model.runner._engine._pool, model.runner._loop._steps._drafting
        assert drafting._proposer is not None, "it failed, and nothing was tried"
    assert found == expected
    assert counters["num_drafts_accepted"] <= counters["num_tokens_drafted"]
    assert pool.num_free_blocks == pool.num_blocks


def test_correct_drafts_save_steps():
    request = make_request(1, 0, max_tokens=40, ignore_eos=True)
    with hesitant(engine=MockEngine) as model:
        (expected,) = answers(model, [request])
        num_steps = model.stats().counters["num_steps"]
    known = [sample.token_id for sample in expected[0][2]]

    class CorrectProposer(RandomProposer):
        def propose(self, sequence, num_tokens):
            self.known.add(sequence)
            return known[len(sequence.output_ids) :][:num_tokens]

    with hesitant(CorrectProposer(0), engine=MockEngine) as model:
        assert answers(model, [request]) == [expected]
        counters = model.stats().counters
    assert counters["num_drafts_accepted"] == counters["num_tokens_drafted"] == 34
    assert (num_steps, counters["num_steps"]) == (40, 6)


def test_an_answer_that_repeats_the_prompt_is_drafted_from_it():
    request = make_request(2, 1, max_tokens=50, ignore_eos=True)
    with hesitant(NgramProposer(), engine=MockEngine) as model:
        found = answers(model, [request])
        counters = model.stats().counters
    with hesitant(engine=MockEngine) as model:
        assert answers(model, [request]) == found
    assert counters["num_drafts_accepted"] > 20
    assert counters["num_steps"] < 30


def test_a_proposer_that_fails_only_stops_drafting(caplog):
    class FailingProposer(RandomProposer):
        def propose(self, sequence, num_tokens):
            if len(sequence.output_ids) > 3:
                raise RuntimeError("no more ideas")
            return [1, 2]

    requests = [make_request(i, 0, max_tokens=20) for i in range(3)]
    with hesitant() as model:
        expected = answers(model, requests)
    with hesitant(FailingProposer(0)) as model:
        assert answers(model, requests) == expected
        assert model.runner.is_ready
    assert caplog.text.count("the proposer failed") == 1


def test_a_proposer_forgets_finished_sequences():
    random_proposer = RandomProposer(3)
    with hesitant(random_proposer) as model:
        answers(model, [make_request(i, 0, max_tokens=12, n=2) for i in range(4)])
    assert random_proposer.known == set()


def test_a_request_that_fails_only_with_drafts_is_answered_without_them():
    class FailsOnDrafts(MockEngine):
        def forward(self, items):
            if any(item.drafts for item in items):
                raise RuntimeError("drafts!")
            return super().forward(items)

    requests = [make_request(i, 0, max_tokens=20) for i in range(3)]
    with hesitant(engine=MockEngine) as model:
        expected = answers(model, requests)
    known = [[s.token_id for s in samples] for a in expected for _, _, samples in a]
    with hesitant(RandomProposer(1, known), engine=FailsOnDrafts) as model:
        assert answers(model, requests) == expected


class TestNgramProposer(ProposerContract):
    def make(self):
        return NgramProposer()


def proposed(proposer, ids, num_tokens=4):
    sequence = new_sequence(ids[:1], output_ids=ids[1:])
    return list(proposer.propose(sequence, num_tokens))


def test_tokens_that_followed_the_last_equal_ngram_are_drafted():
    settings = NgramSettings(match_tokens=2)
    assert proposed(NgramProposer(settings), [1, 2, 3, 9, 1, 2, 4, 9, 1, 2]) == [4, 9, 1]
    assert proposed(NgramProposer(settings), [1, 2, 3, 4]) == []
    assert proposed(NgramProposer(settings), [1]) == []


def draft_counts(*accepted):
    """Return the number of drafts of each proposal, after the given numbers were accepted."""
    proposer, sequence = NgramProposer(), new_sequence([5] * 30)
    found = [len(proposer.propose(sequence, 100))]
    for num_accepted in accepted:
        if found[-1]:
            proposer.note(sequence, found[-1], num_accepted)
        sequence.output_ids.append(5)
        found.append(len(proposer.propose(sequence, 100)))
    return found


def test_the_number_of_drafts_follows_how_many_were_accepted():
    assert draft_counts(3, 6, 10) == [3, 6, 10, 10]
    assert draft_counts(3, 2) == [3, 6, 3]


def test_an_answer_without_repetition_gets_no_drafts():
    assert draft_counts(*[0] * 10) == [3, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("length", [2049, 5000])
def test_a_long_prompt_is_indexed_in_pieces(length):
    proposer, sequence = NgramProposer(), new_sequence([*range(length), 0, 1, 2])
    found = [list(proposer.propose(sequence, 2)) for _ in range(4)]
    assert found[0] == []
    assert found[-1] == [3, 4]
