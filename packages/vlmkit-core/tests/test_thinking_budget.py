"""Reasoning budgets hold with any delimiters, drafts and samplers, and lose no text."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from test_token_rules import ScriptedProposer

from mock_model import answers, hesitant, script
from vlmkit.interfaces.chat_format import Mark
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sampler import FOLLOWED
from vlmkit.kit.harmony_parser import HarmonyParser
from vlmkit.kit.reasoning_parser import ReasoningParser
from vlmkit.kit.tool_call_formats import CHANNELS
from vlmkit.running.constraints.thinking_budget import thinking_budget
from vlmkit.running.constraints.token_rules import RuledGrammarState
from vlmkit.running.sampling.token_sets import holds
from vlmkit.types.message import Message
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_testing import new_sequence

TEXTS = ["<", "a>", "</", "a", " ", "b", ">", "<a>", "</a>"]
"""The texts of tokens 0 to 8; the delimiters are ``<a>`` and ``</a>``."""
NAMES = ["start", "channel", "kind", "body", "end", "last", "call"]
HEADS = ["analysis", "final", "commentary", " to=functions.x"]
CHANNEL_TEXTS = [*NAMES, *HEADS, "x", " "]
FORM = replace(
    CHANNELS["harmony"],
    **{name: Mark(f"<|{name}|>", token_id) for token_id, name in enumerate(NAMES)},
)


class TextVocabulary:
    """The text side of a tiny vocabulary."""

    def __init__(self, texts, num_marks=0):
        self._texts = texts
        self._num_marks = num_marks

    def encode(self, text):
        left, made = text, []
        while left:
            fitting = [i for i, t in enumerate(self._texts) if left.startswith(t)]
            made.append(max(fitting, key=lambda i: len(self._texts[i])))
            left = left.removeprefix(self._texts[made[-1]])
        return made

    def token_bytes(self, token_id):
        return b"" if token_id < self._num_marks else self._texts[token_id].encode()

    def push(self, token_id):
        return self._texts[token_id] if token_id >= self._num_marks else ""

    def flush(self):
        return ""


def delimited(*, are_tokens, opens=False):
    """Return a prompt, its vocabulary, and a new reader for its answers."""
    texts = TextVocabulary(TEXTS)
    ids = (TEXTS.index("<a>"), TEXTS.index("</a>")) if are_tokens else (None, None)
    delimiters = Mark("<a>", ids[0]), Mark("</a>", ids[1])
    prompt = Prompt((1,), opens_reasoning=opens, reasoning_marks=delimiters)
    return prompt, texts, ReasoningParser(lambda: texts, *delimiters, is_open=opens)


def in_channels(opens=""):
    texts = TextVocabulary(CHANNEL_TEXTS, len(NAMES))
    form = replace(FORM, opens=opens)
    reader = HarmonyParser(lambda: texts, form, [{"function": {"name": "x"}}])
    return Prompt((1,), channels=form), texts, reader


MODELS = {
    "tokens": lambda: delimited(are_tokens=True),
    "opened": lambda: delimited(are_tokens=True, opens=True),
    "spelled": lambda: delimited(are_tokens=False),
    "spelled, opened": lambda: delimited(are_tokens=False, opens=True),
    "channels": in_channels,
    "channels, opened": lambda: in_channels("analysis"),
}


def allowed(state, sequence, drafts=()):
    masks = state.allocate_bitmask(1 + len(drafts))
    state.fill(sequence, drafts, masks)
    return [{i for i in range(16) if holds(mask, i)} for mask in masks]


def grammar_state_of(prompt, texts, budget, vocab_size):
    made = thinking_budget(budget, prompt, texts)
    return RuledGrammarState([made()], vocab_size)


def state_after(budget, *names):
    """Return the grammar state after these tokens of an answer with channels, and its sequence."""
    prompt, texts, _ = in_channels()
    sequence = new_sequence((1,), max_tokens=99)
    sequence.output_ids += map(CHANNEL_TEXTS.index, names)
    return grammar_state_of(prompt, texts, budget, len(CHANNEL_TEXTS)), sequence


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=150)
@given(budget=st.integers(0, 4), choices=st.lists(st.integers(0, 99), max_size=30))
def test_reasoning_never_exceeds_its_budget(kind, budget, choices):
    prompt, texts, reader = MODELS[kind]()
    vocab_size = len(texts._texts)
    state = grammar_state_of(prompt, texts, budget, vocab_size)
    sequence = new_sequence((1,), max_tokens=99)
    num_reasoning = 0
    for choice in choices:
        (mask,) = allowed(state, sequence)
        assert mask
        token_id = sorted(mask)[choice % len(mask)]
        deltas = reader.push(token_id)
        is_reasoning = any(type(delta).__name__ == "ReasoningDelta" for delta in deltas)
        num_reasoning += is_reasoning
        sequence.output_ids.append(token_id)
        if "spelled" not in kind:
            assert num_reasoning <= budget
    max_delimiters = 2 * len(texts.encode("</a>")) if "spelled" in kind else None
    if max_delimiters is not None:
        assert reader.num_reasoning_tokens <= budget + max_delimiters + 2


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=100)
@given(
    budget=st.integers(0, 3),
    choices=st.lists(st.integers(0, 99), max_size=12),
    num_drafts=st.integers(1, 6),
)
def test_drafts_are_masked_like_tokens_of_the_answer(kind, budget, choices, num_drafts):
    prompt, texts, _ = MODELS[kind]()
    vocab_size = len(texts._texts)
    one_by_one = grammar_state_of(prompt, texts, budget, vocab_size)
    ahead = grammar_state_of(prompt, texts, budget, vocab_size)
    sequence = new_sequence((1,), max_tokens=99)
    expected = []
    for choice in choices:
        (mask,) = allowed(one_by_one, sequence)
        expected.append(mask)
        sequence.output_ids.append(sorted(mask)[choice % len(mask)])
    tokens = list(sequence.output_ids)
    for start in range(0, len(tokens), num_drafts):
        del sequence.output_ids[start:]
        drafts = tokens[start : start + num_drafts]
        assert (
            allowed(ahead, sequence, drafts)[: len(drafts)] == expected[start : start + num_drafts]
        )
        assert ahead.num_possible(sequence, drafts) == len(drafts)
        sequence.output_ids.extend(tokens[start:])
    forced = one_by_one.forced(sequence)
    for token_id in forced:
        assert allowed(one_by_one, sequence) == [{token_id}]
        sequence.output_ids.append(token_id)


def test_a_closing_delimiter_of_several_tokens_is_forced_whole():
    prompt, texts, _ = delimited(are_tokens=False)
    state = grammar_state_of(prompt, texts, 1, len(TEXTS))
    sequence = new_sequence((1,), max_tokens=99)
    sequence.output_ids += [*texts.encode("<a>"), TEXTS.index("b")]
    assert state.forced(sequence) == texts.encode("</a>")
    sequence.output_ids += state.forced(sequence)
    assert state.forced(sequence) == []
    assert allowed(state, sequence) == [set(range(len(TEXTS)))]


def test_an_exhausted_channel_is_not_opened_again():
    state, sequence = state_after(1, "channel", "analysis", "body", "x")
    name = CHANNEL_TEXTS.index
    assert allowed(state, sequence) == [{name("end")}]
    sequence.output_ids += map(name, ["end", "start", "channel"])
    assert allowed(state, sequence) == [set(range(len(CHANNEL_TEXTS))) - {name("analysis")}]
    sequence.output_ids += map(name, ["final", "body", "x", "x"])
    assert allowed(state, sequence) == [set(range(len(CHANNEL_TEXTS)))]


def test_a_call_in_the_reasoning_channel_does_not_count_as_reasoning():
    head = (" to=functions.x", "channel", "analysis", "body")
    state, sequence = state_after(0, *head, "x")
    assert len(allowed(state, sequence)[0]) == len(CHANNEL_TEXTS)


@pytest.mark.parametrize("kind", [Prompt((1,), is_plain=True), Prompt((1,))], ids=["plain", "none"])
def test_reasoning_without_delimiters_is_not_bounded(kind):
    assert thinking_budget(0, kind, TextVocabulary(TEXTS)) is None


PROMPT = script(reasoning="one and one and one", text="three")


def answer_of(model, **params):
    options = params.pop("options", PromptOptions())
    request = Request(
        messages=[Message.of("user", PROMPT)], params=SamplingParams(**params), options=options
    )
    (choice,) = model.submit(request).result().choices
    return choice.reasoning, choice.text


@pytest.mark.parametrize("proposer", [None, ScriptedProposer()], ids=["", "drafts"])
@pytest.mark.parametrize(
    ("budget", "expected_reasoning"),
    [(None, "one and one and one"), (99, "one and one and one"), (5, "one a"), (0, "")],
)
def test_the_answer_follows_reasoning_cut_at_its_budget(budget, expected_reasoning, proposer):
    with hesitant(engine=MockEngine, proposer=proposer) as model:
        assert answer_of(model, thinking_token_budget=budget) == (expected_reasoning, "three")


def test_every_choice_has_its_own_budget():
    with hesitant() as model:
        request = Request(
            messages=[Message.of("user", PROMPT)],
            params=SamplingParams(
                n=4, thinking_token_budget=3, temperature=1.0, seed=3, max_tokens=20
            ),
            options=PromptOptions(chat_template_kwargs={"enable_thinking": True}),
        )
        choices = model.submit(request).result().choices
        assert len({choice.text for choice in choices}) > 1
        for choice in choices:
            assert len(choice.reasoning) <= 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_do_not_change_answers_with_a_budget(temperature):
    params = SamplingParams(thinking_token_budget=4, temperature=temperature, seed=5, max_tokens=14)
    request = Request(messages=[Message.of("user", PROMPT)], params=params)
    found = []
    for proposer in (None, ScriptedProposer()):
        with hesitant(proposer=proposer) as model:
            found.append(answers(model, [request]))
    assert found[0] == found[1]


def test_a_budget_works_with_any_sampler():
    class GreedySampler:
        ignores = FOLLOWED

        def prepare(self, rows):
            return lambda logits: np.asarray(logits).argmax(-1)

    with hesitant(engine=MockEngine, sampler=GreedySampler()) as model:
        assert answer_of(model, thinking_token_budget=3) == ("one", "three")
