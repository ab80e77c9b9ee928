"""What a model thinks, as the official client sees it: apart from what it says, and counted."""

import pytest
from running_server import chat, scripted

THOUGHT = "né 🙂: why?"
NUM_THOUGHT = len(THOUGHT.encode()) + 2  # with the marks


def ask(server, text, **options):
    return server.client().chat.completions.create(
        model="mock", messages=[{"role": "user", "content": text}], **options
    )


def streamed(server, text, **options):
    """Reasoning, content, reason and the tokens of a stream's log-probabilities."""
    told = {"reasoning_content": "", "content": ""}
    tokens, reason = [], None
    for chunk in ask(server, text, stream=True, **options):
        for choice in chunk.choices:
            for name in told:
                told[name] += getattr(choice.delta, name, None) or ""
            tokens += choice.logprobs.content if choice.logprobs else []
            reason = choice.finish_reason or reason
    return *told.values(), reason, [token for entry in tokens for token in entry.bytes]


def test_reasoning_is_told_apart_from_the_answer_and_counted(server):
    answer = ask(server, scripted(text="so", reasoning=f" {THOUGHT}\n"))
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHT, "so")
    details = answer.usage.completion_tokens_details
    assert details.reasoning_tokens == NUM_THOUGHT + 2
    assert answer.usage.completion_tokens == NUM_THOUGHT + 2 + len("so") + 1


def test_a_stream_tells_the_same(server):
    text = scripted(text="so", reasoning=THOUGHT)
    assert streamed(server, text)[:3] == (THOUGHT, "so", "stop")
    *_, last = ask(server, text, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details.reasoning_tokens == NUM_THOUGHT


def test_log_probabilities_cover_the_tokens_of_reasoning_too(server):
    text = scripted(text="so", reasoning=THOUGHT)
    reasoning, content, _, tokens = streamed(server, text, logprobs=True)
    assert (reasoning, content) == (THOUGHT, "so")
    assert bytes(tokens) == f"{THOUGHT}so".encode()
    whole = ask(server, text, logprobs=True).choices[0].logprobs.content
    assert len(whole) == NUM_THOUGHT + len("so")


@pytest.mark.parametrize("num_tokens", [1, 2, 5])
def test_an_answer_of_full_length_may_end_inside_its_reasoning(server, num_tokens):
    thought = "a long thought"
    text, begun = scripted(text="so", reasoning=thought), thought[: num_tokens - 1].strip()
    answer = ask(server, text, max_tokens=num_tokens)
    (choice,) = answer.choices
    assert choice.message.content == ""
    assert getattr(choice.message, "reasoning_content", "") == begun
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens_details.reasoning_tokens == num_tokens
    assert streamed(server, text, max_tokens=num_tokens)[:3] == (begun, "", "length")


def test_a_stop_string_counts_in_the_answer_alone(server):
    answer = ask(server, scripted(text="to be or not", reasoning="to or fro"), stop=[" or"])
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("to or fro", "to be")


def test_choices_are_counted_together(server):
    answer = ask(server, scripted(text="so", reasoning="why"), n=3)
    assert [choice.message.reasoning_content for choice in answer.choices] == ["why"] * 3
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3 * len("<why>")


def test_an_answer_without_reasoning_says_nothing_of_it(server):
    answer = server.post(chat(scripted(text="so"))).json()
    assert answer["choices"][0]["message"].keys() == {"role", "content", "refusal"}
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
