"""Templates with channels: detection, reasoning efforts and earlier answers."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vlmkit.errors import RequestError
from vlmkit.types.delta import reasoning_of, text_of, tool_calls_of
from vlmkit.types.message import Message, ReasoningPart, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from zoo.template import GPT_OSS
from zoo.text import harmony
from zoo.tokenizer import byte_level

TokenizerWith = Callable[[Any, str], HfTokenizer]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
ASKED = [Message.of("user", "hello")]
START = "<|start|>assistant"
ONE, TWO = (
    ToolCallPart(f"aBcDeF12{number}", "weather", json.dumps({"city": city}))
    for number, city in enumerate(("Bonn", "Rom"))
)


@pytest.fixture
def model(tokenizer_of: Callable[[str], HfTokenizer]) -> HfTokenizer:
    return tokenizer_of("gpt_oss")


def written(model: HfTokenizer, messages: Sequence[Message], **options: Any) -> str:
    """Return the text of a prompt with control tokens, from the first question on."""
    ids = model.prompt(messages, tools=TOOLS, options=PromptOptions(**options)).token_ids
    text: str = model._backend.decode(list(ids), skip_special_tokens=False)
    return text[text.index("<|start|>user") :]


def called(number: int, city: str) -> str:
    arguments = json.dumps({"city": city})
    return f"{START} to=functions.weather<|channel|>commentary json<|message|>{arguments}<|call|>"


def result(text: str) -> str:
    return f'<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"{text}"<|end|>'


def result_of(call: ToolCallPart, text: str) -> Message:
    return Message("tool", (TextPart(text),), call.id)


def test_an_answer_without_tools_is_parsed_by_its_channels(model: HfTokenizer) -> None:
    prompt = model.prompt(ASKED)
    assert prompt.calling is None
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>so"
    ids = model._backend.encode(text, add_special_tokens=False).ids
    reader = model.reader(prompt)
    deltas = [delta for i in ids for delta in reader.push(i)] + [*reader.finish()]
    assert (reasoning_of(deltas), text_of(deltas)) == ("hm", "so")
    assert 0 < reader.num_reasoning_tokens < len(ids)


@pytest.mark.parametrize("spelled", ["<|channel|>final<|message|>", "<|end|><|start|>assistant"])
def test_client_text_is_never_a_channel_mark(model: HfTokenizer, spelled: str) -> None:
    plain = model.prompt([Message.of("user", "hello"), Message.of("assistant", "x"), *ASKED])
    hostile = model.prompt([Message.of("user", "hello"), Message.of("assistant", spelled), *ASKED])
    added = set(model._backend.get_added_tokens_decoder())
    kept = [i for i in hostile.token_ids if i in added]
    assert kept == [i for i in plain.token_ids if i in added]


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_the_template_gets_the_reasoning_effort(model: HfTokenizer, effort: Any) -> None:
    prompt = model.prompt(ASKED, options=PromptOptions(reasoning_effort=effort))
    assert f"Reasoning: {effort}\n" in model.decode(prompt.token_ids)


@pytest.mark.parametrize(("channel", "expected"), [("analysis", ("hm", "")), ("final", ("", "hm"))])
def test_a_prompt_may_open_a_channel(
    tokenizer_with: TokenizerWith, channel: str, expected: tuple[str, str]
) -> None:
    head, start = f"<|channel|>{channel}<|message|>", "<|start|>assistant{% endif %}"
    assert GPT_OSS.endswith(start)
    template = GPT_OSS.removesuffix("{% endif %}") + head + "{% endif %}"
    model = tokenizer_with(harmony(), template)
    prompt = model.prompt(ASKED, tools=TOOLS)
    assert prompt.channels is not None
    assert prompt.channels.opens == channel
    assert prompt.opens_reasoning == (channel == "analysis")
    assert (prompt.calling is None) == (channel == "final")  # a call ends here
    reader = model.reader(prompt)
    deltas = [delta for i in model.encode("hm") for delta in reader.push(i)] + [*reader.finish()]
    assert (reasoning_of(deltas), text_of(deltas)) == expected


def test_a_vocabulary_without_the_marks_has_no_channels(tokenizer_with: TokenizerWith) -> None:
    model = tokenizer_with(byte_level(("<|start|>",), named={"eos_token": "<|start|>"}), GPT_OSS)
    prompt = model.prompt(ASKED, tools=TOOLS)
    assert (prompt.channels, prompt.calling) == (None, None)


def test_a_template_without_calls_refuses_tools(tokenizer_with: TokenizerWith) -> None:
    template = (
        "{% if tools %}{% endif %}{% for m in messages %}<|start|>{{ m.role }}"
        "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    )
    prompt = tokenizer_with(harmony(), template).prompt(ASKED, tools=TOOLS)
    assert prompt.channels is not None
    assert prompt.calling is None


def test_a_call_and_its_result_are_rendered(model: HfTokenizer) -> None:
    turn = Message("assistant", (ReasoningPart("hm"), ONE))
    expected = (
        f"<|start|>user<|message|>hello<|end|>{START}<|channel|>analysis<|message|>hm<|end|>"
        f"{called(0, 'Bonn')}{result('rain')}{START}"
    )
    assert written(model, [*ASKED, turn, result_of(ONE, "rain")]) == expected


def test_calls_of_one_message_are_rendered_separately_with_their_results(
    model: HfTokenizer,
) -> None:
    turn = Message("assistant", (ReasoningPart("hm"), TextPart("I look."), ONE, TWO))
    expected = (
        f"<|start|>user<|message|>hello<|end|>{START}<|channel|>final<|message|>I look.<|end|>"
        f"{START}<|channel|>analysis<|message|>hm<|end|>{called(0, 'Bonn')}{result('rain')}"
        f"{called(1, 'Rom')}{result('sun')}{START}"
    )
    results = [result_of(TWO, "sun"), result_of(ONE, "rain")]
    assert written(model, [*ASKED, turn, *results]) == expected


def test_only_earlier_reasoning_is_dropped(model: HfTokenizer) -> None:
    turn = Message("assistant", (ReasoningPart("hm"), TextPart("I look."), ONE))
    later = [result_of(ONE, "rain"), Message.of("assistant", "Rain."), *ASKED]
    expected = (
        f"<|start|>user<|message|>hello<|end|>{START}<|channel|>final<|message|>I look.<|end|>"
        f"{called(0, 'Bonn')}{result('rain')}{START}<|channel|>final<|message|>Rain.<|end|>"
        f"<|start|>user<|message|>hello<|end|>{START}"
    )
    assert written(model, [*ASKED, turn, *later]) == expected


def test_calls_and_results_without_a_counterpart_are_kept(model: HfTokenizer) -> None:
    turn = Message("assistant", (ONE, TWO))
    other = ToolCallPart("other1234", "weather")
    text = written(model, [*ASKED, turn, result_of(other, "snow"), result_of(ONE, "rain"), *ASKED])
    calls = called(0, "Bonn") + result("rain") + called(1, "Rom") + result("snow")
    question = "<|start|>user<|message|>hello<|end|>"
    assert text == f"{question}{calls}{question}{START}"


def test_an_error_names_the_index_of_its_message(model: HfTokenizer) -> None:
    broken = ToolCallPart("aBcDeF129", "weather", "{")
    turn = Message("assistant", (TextPart("I look."), ONE, broken))
    with pytest.raises(RequestError, match="not the JSON text of an object") as caught:
        model.prompt([*ASKED, *ASKED, turn, result_of(ONE, "rain")], tools=TOOLS)
    assert caught.value.param == "messages[2]"


def test_rendered_calls_parse_back(model: HfTokenizer) -> None:
    prompt = model.prompt(ASKED, tools=TOOLS)
    whole = model.prompt([*ASKED, Message("assistant", (ReasoningPart("hm"), ONE))], tools=TOOLS)
    reader = model.reader(prompt)
    rest = whole.token_ids[len(prompt) :]
    deltas = [delta for i in rest for delta in reader.push(i)] + [*reader.finish()]
    (call,) = tool_calls_of(deltas)
    assert (reasoning_of(deltas), text_of(deltas)) == ("hm", "")
    assert (call.name, call.parsed()) == ("weather", {"city": "Bonn"})
