"""Reasoning, as the official client sees it: separate from the answer, and counted."""

import pytest
from running_server import chat, scripted

THOUGHT = "né 🙂: why?"
NUM_THOUGHT = len(THOUGHT.encode()) + 2  # with the marks


def ask(server, text, **options):
    return server.client().chat.completions.create(
        model="mock", messages=[{"role": "user", "content": text}], **options
    )


def streamed(server, text, **options):
    """Return reasoning, content, finish reason and logprob tokens of a stream."""
    texts = {"reasoning_content": "", "content": ""}
    tokens, reason = [], None
    for chunk in ask(server, text, stream=True, **options):
        for choice in chunk.choices:
            for name in texts:
                texts[name] += getattr(choice.delta, name, None) or ""
            tokens += choice.logprobs.content if choice.logprobs else []
            reason = choice.finish_reason or reason
    return *texts.values(), reason, [token for entry in tokens for token in entry.bytes]


def test_reasoning_is_separated_from_the_answer_and_counted(server):
    answer = ask(server, scripted(text="so", reasoning=f" {THOUGHT}\n"))
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHT, "so")
    details = answer.usage.completion_tokens_details
    assert details.reasoning_tokens == NUM_THOUGHT + 2
    assert answer.usage.completion_tokens == NUM_THOUGHT + 2 + len("so") + 1


def test_a_stream_has_the_same_reasoning_as_a_whole_answer(server):
    text = scripted(text="so", reasoning=THOUGHT)
    assert streamed(server, text)[:3] == (THOUGHT, "so", "stop")
    *_, last = ask(server, text, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details.reasoning_tokens == NUM_THOUGHT


def test_logprobs_include_reasoning_tokens(server):
    text = scripted(text="so", reasoning=THOUGHT)
    reasoning, content, _, tokens = streamed(server, text, logprobs=True)
    assert (reasoning, content) == (THOUGHT, "so")
    assert bytes(tokens) == f"{THOUGHT}so".encode()
    whole = ask(server, text, logprobs=True).choices[0].logprobs.content
    assert len(whole) == NUM_THOUGHT + len("so")


@pytest.mark.parametrize("num_tokens", [1, 2, 5])
def test_an_answer_can_reach_max_tokens_inside_its_reasoning(server, num_tokens):
    thought = "a long thought"
    text, begun = scripted(text="so", reasoning=thought), thought[: num_tokens - 1].strip()
    answer = ask(server, text, max_tokens=num_tokens)
    (choice,) = answer.choices
    assert choice.message.content == ""
    assert getattr(choice.message, "reasoning_content", "") == begun
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens_details.reasoning_tokens == num_tokens
    assert streamed(server, text, max_tokens=num_tokens)[:3] == (begun, "", "length")


def test_stop_strings_do_not_apply_to_reasoning(server):
    answer = ask(server, scripted(text="to be or not", reasoning="to or fro"), stop=[" or"])
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("to or fro", "to be")


def test_reasoning_tokens_are_the_sum_over_choices(server):
    answer = ask(server, scripted(text="so", reasoning="why"), n=3)
    assert [choice.message.reasoning_content for choice in answer.choices] == ["why"] * 3
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3 * len("<why>")


def test_an_answer_without_reasoning_has_no_reasoning_field(server):
    answer = server.post(chat(scripted(text="so"))).json()
    assert answer["choices"][0]["message"].keys() == {"role", "content", "refusal"}
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


NAMES = (
    "thinking_token_budget",
    "thinking_budget",
    "thinking_budget_tokens",
    "reasoning_budget",
    "reasoning_budget_tokens",
)


@pytest.mark.parametrize("name", NAMES)
def test_reasoning_ends_at_its_budget_and_the_answer_follows(server, name):
    text = scripted(text="so", reasoning="a long thought")
    options = {"extra_body": {name: 6}}
    answer = ask(server, text, **options)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("a long", "so")
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("<a long>")
    assert streamed(server, text, **options)[:3] == ("a long", "so", "stop")
    assert ask(server, text, extra_body={name: -1}).choices[0].message.reasoning_content == (
        "a long thought"
    )


def test_a_reasoning_budget_is_supported_by_the_other_apis(server):
    text = scripted(text="so", reasoning="a long thought")
    sent = {"model": "mock", "input": text, "thinking_token_budget": 6}
    thought, said = server.post(sent, "/v1/responses").json()["output"]
    assert thought["content"][0]["text"] == "a long"
    assert said["content"][0]["text"] == "so"
    sent = {
        "model": "mock",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": text}],
        "thinking": {"type": "enabled", "budget_tokens": 6},
    }
    thought, said = server.post(sent, "/v1/messages").json()["content"]
    assert (thought["thinking"], said["text"]) == ("a long", "so")
    answer = server.post(sent | {"thinking_token_budget": 6}, "/v1/messages")
    assert answer.status_code == 400
    assert "exclude each other" in answer.json()["error"]["message"]


def test_the_reasoning_budget_of_a_plain_prompt_is_ignored_and_reported(server):
    sent = {"model": "mock", "prompt": "a long thought", "thinking_token_budget": 2}
    answer = server.post(sent, "/v1/completions")
    assert answer.headers["x-vlmkit-ignored"] == "thinking_token_budget"
    assert answer.json()["choices"][0]["text"] == "a long thought"


@pytest.mark.parametrize("value", [-2, 1.5, "6", 2**31])
def test_an_invalid_reasoning_budget_is_refused(server, value):
    answer = server.post(chat("hi", thinking_token_budget=value))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "thinking_token_budget"
