"""Answers with channels, as the official client sees them: whole, streamed and sent back."""

import json
import re
from dataclasses import fields, replace

import openai
import pytest
from running_server import running, scripted

from spelling import SpellingCompiler
from vlmkit.interfaces.chat_format import Calling, Mark
from vlmkit.kit.harmony_parser import HarmonyParser
from vlmkit.kit.tool_call_formats import CHANNELS
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit.types.constraint import Lark
from vlmkit_mock import vocabulary as v
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer, MockTokenStream

IDS = {
    "<|start|>": v.BEGIN,
    "<|channel|>": v.REASONING,
    "<|constrain|>": v.IMAGE_END,
    "<|message|>": v.REASONING_END,
    "<|end|>": v.SYSTEM,
    "<|return|>": v.END,
    "<|call|>": v.TOOL,
}
"""Tokens of the mock that stand for the marks; no answer of these tests has them otherwise."""

HARMONY = CHANNELS["harmony"]
FORM = replace(
    HARMONY,
    **{
        field.name: mark._replace(token_id=IDS[mark.text])
        for field in fields(HARMONY)
        if isinstance(mark := getattr(HARMONY, field.name), Mark)
    },
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
THOUGHT = "<|channel|>analysis<|message|>hm, é<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Köln"}'
SAID = "<|channel|>final<|message|>It rains."


class ChannelTokenizer(MockTokenizer):
    """The mock's tokenizer for a model that answers in channels."""

    eos_ids = frozenset({v.END, v.TOOL})
    banned_ids = v.BANNED_IDS - frozenset(IDS.values())

    def prompt(self, messages, *, tools=None, options):
        prompt = super().prompt(messages, tools=tools, options=options)
        calling = Calling(FORM, tuple(tools)) if tools else None
        return replace(prompt, calling=calling, channels=FORM, opens_reasoning=False)

    def reader(self, prompt, *, shows_special=False):
        tools = prompt.calling.tools if prompt.calling else ()
        stream = lambda: MockTokenStream(shows_special=shows_special)  # noqa: E731
        return HarmonyParser(stream, prompt.channels, tools)


class ChannelEngine(MockEngine):
    """Generates channel marks where a script spells them."""

    def read(self, prompt):
        plan = super().read(prompt)
        pieces = re.split(r"(<\|[a-z]+\|>)", bytes(plan.state.content).decode())
        said = [i for p in pieces for i in ([IDS[p]] if p in IDS else p.encode())]
        return replace(plan, state=replace(plan.state, content=said, num_tokens=len(said)))


def pipeline(**options):
    return Pipeline(
        tokenizer=ChannelTokenizer(),
        engine=ChannelEngine(),
        scheduler=ContinuousScheduler(SchedulerSettings()),
        name="mock",
        **options,
    )


@pytest.fixture(scope="module")
def channels():
    with running({"mock": pipeline()}) as server:
        yield server


def ask(server, text, **options):
    options = {"tools": [TOOL], **options}
    return server.client().chat.completions.create(
        model="mock", messages=[{"role": "user", "content": scripted(text=text)}], **options
    )


def summary(choice):
    calls = choice.message.tool_calls or []
    return (
        choice.finish_reason,
        getattr(choice.message, "reasoning_content", None),
        choice.message.content or None,  # the first chunk of a stream has an empty text
        [(call.function.name, json.loads(call.function.arguments)) for call in calls],
    )


EXPECTED = {
    THOUGHT + SAID: ("stop", "hm, é", "It rains.", []),
    THOUGHT + CALL + "<|call|>": ("tool_calls", "hm, é", None, [("weather", {"city": "Köln"})]),
    THOUGHT + PREAMBLE + CALL: ("tool_calls", "hm, é", "I look.", [("weather", {"city": "Köln"})]),
    PREAMBLE + SAID: ("stop", None, "I look.\n\nIt rains.", []),
    "It rains.": ("stop", None, "It rains.", []),
}


@pytest.mark.parametrize("text", EXPECTED)
def test_reasoning_text_and_tool_calls_are_separated(channels, text):
    (choice,) = ask(channels, text).choices
    assert summary(choice) == EXPECTED[text]


@pytest.mark.parametrize("text", EXPECTED)
def test_a_stream_has_the_same_channels_as_a_whole_answer(channels, text):
    with channels.client().chat.completions.stream(
        model="mock",
        messages=[{"role": "user", "content": scripted(text=text)}],
        tools=[TOOL],
    ) as stream:
        kinds = [event.type for event in stream]
        (choice,) = stream.get_final_completion().choices
    expected = EXPECTED[text]
    assert summary(choice) == expected
    assert (kinds.count("tool_calls.function.arguments.delta") > 10) == bool(expected[3])


def test_reasoning_tokens_are_counted_and_stop_strings_ignore_reasoning(channels):
    answer = ask(channels, THOUGHT + SAID, stop=["hm", "rain"])
    assert summary(answer.choices[0]) == ("stop", "hm, é", "It ", [])
    num_thought = len("analysis") + len("hm, é".encode()) + 3
    assert answer.usage.completion_tokens_details.reasoning_tokens == num_thought


@pytest.mark.parametrize("options", [{"tools": openai.omit}, {"tool_choice": "none"}])
def test_a_tool_call_is_text_if_the_request_has_no_callable_tools(channels, options):
    (choice,) = ask(channels, THOUGHT + CALL, **options).choices
    assert summary(choice) == ("stop", "hm, é", '{"city": "Köln"}', [])


def test_an_answer_and_its_tool_results_can_be_sent_back(channels):
    message = ask(channels, THOUGHT + PREAMBLE + CALL).choices[0].message
    (call,) = message.tool_calls
    messages = [
        {"role": "user", "content": "hello"},
        message,
        {"role": "tool", "tool_call_id": call.id, "content": scripted(text=SAID)},
    ]
    answer = channels.client().chat.completions.with_raw_response.create(
        model="mock", messages=messages, tools=[TOOL]
    )
    assert answer.parse().choices[0].message.content == "It rains."
    assert "x-vlmkit-ignored" not in answer.headers


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
def test_a_required_call_is_refused_without_a_constraint_compiler(channels, options, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(channels, SAID, **options)
    assert refused.value.param == param
    (choice,) = ask(channels, THOUGHT + SAID).choices
    assert summary(choice) == EXPECTED[THOUGHT + SAID]


def test_each_request_compiles_to_one_grammar_of_the_whole_answer():
    constraints = []

    class RecordingCompiler(SpellingCompiler):
        def compile(self, constraint):
            constraints.append(constraint)
            return super().compile(constraint)

    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes"]}}}
    cases = [
        ({}, {"arguments_0"}),
        ({"tool_choice": "required"}, {"arguments_0"}),
        ({"tool_choice": "none"}, set()),
        ({"response_format": form}, {"arguments_0", "content"}),
        ({"response_format": form, "tools": openai.omit}, {"content"}),
        ({"response_format": {"type": "json_object"}, "tool_choice": "none"}, {"content"}),
        ({"extra_body": {"structured_outputs": {"regex": "a"}}}, {"arguments_0"}),
    ]
    with running({"mock": pipeline(constraint=RecordingCompiler)}) as server:
        for options, schemas in cases:
            with pytest.raises(openai.BadRequestError):  # the compiler supports lists of texts only
                ask(server, SAID, **options)
            grammar = constraints[0]  # trials of its parts follow
            assert isinstance(grammar, Lark)
            assert {name for name, _ in grammar.schemas} == schemas
            constraints.clear()
        with pytest.raises(openai.BadRequestError, match="answers in channels"):
            ask(server, SAID, extra_body={"structured_outputs": {"grammar": 'start: "a"'}})
        assert summary(ask(server, SAID, tools=openai.omit).choices[0])[2] == "It rains."
        assert constraints == []


def test_a_reasoning_budget_ends_the_analysis_channel(channels):
    (choice,) = ask(
        channels, THOUGHT + SAID, tools=openai.NOT_GIVEN, extra_body={"thinking_token_budget": 2}
    ).choices
    assert choice.message.reasoning_content == "hm"
    (choice,) = ask(channels, THOUGHT + SAID, extra_body={"thinking_token_budget": 99}).choices
    assert summary(choice) == EXPECTED[THOUGHT + SAID]
