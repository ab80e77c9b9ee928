"""Tool calls, results and reasoning in templates of different kinds."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import RequestError
from vlmkit.types.message import Message, ReasoningPart, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from zoo.tokenizer import byte_level

MARKS = ("<think>", "</think>")
ENDS = ("<|im_start|>", "<|im_end|>")
CALLS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[TOOL_RESULTS]", "<arg_key>")
TOKENS = (*ENDS, *MARKS, *CALLS)

_TOOL = "{% elif m.role == 'tool' %}<|im_start|>tool\n{{ m.content }}<|im_end|>\n"
_TURNS = (
    "{% for m in messages %}"
    "{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
    "{tool}{% elif m.role == 'assistant' %}{assistant}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def turns(assistant: str, tool: str = _TOOL) -> str:
    return _TURNS.replace("{tool}", tool).replace("{assistant}", assistant)


TEMPLATES = {
    # Arguments as an object or as JSON text; reasoning only after the last user turn.
    "either": turns(
        "<|im_start|>assistant\n"
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content.strip('\n') }}\n</think>\n\n"
        "{% endif %}{% if m.content %}{{ m.content }}{% endif %}"
        "{% for call in m.tool_calls %}{% if call.function %}{% set call = call.function %}"
        '{% endif %}\n<tool_call>\n{"name": "{{ call.name }}", "arguments": '
        "{% if call.arguments is string %}{{ call.arguments }}"
        "{% else %}{{ call.arguments | tojson }}{% endif %}}\n</tool_call>{% endfor %}<|im_end|>\n"
    ),
    # JSON text that the template joins to its own, and only if content is none.
    "text": turns(
        "<|im_start|>assistant\n{% if m['tool_calls'] and m['content'] is none %}"
        "{% for call in m['tool_calls'] %}{{ '<tool_call>' + call['type'] + '\n' + "
        "call['function']['name'] + '\n' + call['function']['arguments'] + '</tool_call>' }}"
        "{% endfor %}{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n"
    ),
    # Ids of nine letters; the function as JSON.
    "counted": turns(
        "{% if m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}"
        "{% if call.id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}"
        "{% set out = call.function | tojson %}"
        "{{ out[:-1] + ', \"id\": \"' + call.id + '\"}' }}"
        "{% if not loop.last %}, {% endif %}{% endfor %}]"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n",
        "{% elif m.role == 'tool' %}[TOOL_RESULTS] {\"content\": {{ m.content | tojson }}, "
        '"call_id": "{{ m.tool_call_id }}"}\n',
    ),
    # Each argument between tags; a result has the name of the tool.
    "tags": turns(
        "<|im_start|>assistant\n{{ m.content }}{% for call in m.tool_calls %}<tool_call>"
        "{{ call.function.name }}\n{% for name, value in call.function.arguments.items() %}"
        "<arg_key>{{ name }}\n<arg>"
        "{{ value if value is string else value | tojson }}\n{% endfor %}</tool_call>"
        "{% endfor %}<|im_end|>\n",
        "{% elif m.role == 'tool' %}<|im_start|>{{ m.name }}\n{{ m.content }}<|im_end|>\n",
    ),
}
TokenizerFor = Callable[[str], HfTokenizer]
TokenizerWith = Callable[[Any, str], HfTokenizer]
ARGUMENTS = {
    "city": 'Köln "am Rhein"',
    "days": 3,
    "type": "object",
    "exact": True,
    "near": [{"x": -1.5, "y": None}, "a\nb"],
    "then": {},
}


@pytest.fixture(scope="module")
def tokenizer_for(tokenizer_with: TokenizerWith) -> TokenizerFor:
    """Return a function from the name of a template to its tokenizer."""
    made = {name: tokenizer_with(vocabulary(), text) for name, text in TEMPLATES.items()}
    return made.__getitem__


def vocabulary() -> Any:
    return byte_level(ENDS, named={"eos_token": "<|im_end|>"}, plain=[*MARKS, *CALLS])


def conversation(
    call: ToolCallPart, *, said: str = "", thought: str = "", result: str = "fine"
) -> list[Message]:
    parts = (
        *([ReasoningPart(thought)] if thought else []),
        *([TextPart(said)] if said else []),
        call,
    )
    return [
        Message.of("user", "How is the weather?"),
        Message("assistant", parts),
        Message("tool", (TextPart(result),), call.id),
    ]


def reference(name: str, arguments: Any, content: str, **fields: str) -> list[int]:
    """Return the prompt of transformers for the same conversation."""
    tokenizer = vocabulary()
    function = {"name": "weather_of", "arguments": arguments}
    call = {"id": "aBcDeF123", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": content, "tool_calls": [call], **fields},
        {"role": "tool", "content": "fine", "tool_call_id": call["id"], "name": "weather_of"},
    ]
    text = tokenizer.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", ["either", "counted", "tags"])
def test_a_call_is_rendered_as_by_the_reference(tokenizer_for: TokenizerFor, name: str) -> None:
    call = ToolCallPart("aBcDeF123", "weather_of", json.dumps(ARGUMENTS))
    prompt = tokenizer_for(name).prompt(conversation(call))
    assert list(prompt.token_ids) == reference(name, ARGUMENTS, "")


@pytest.mark.parametrize("name", ["either", "counted", "tags"])
def test_results_follow_the_order_of_their_calls(tokenizer_for: TokenizerFor, name: str) -> None:
    ids = ("aBcDeF123", "dEfGhI456")
    calls = tuple(ToolCallPart(each, "weather_of", "{}") for each in ids)
    results = [
        Message("tool", (TextPart(said),), each) for said, each in zip("ab", ids, strict=True)
    ]
    start = [Message.of("user", "How is the weather?"), Message("assistant", calls)]
    prompt = tokenizer_for(name).prompt
    unknown = [Message.of("tool", text) for text in "cd"]
    in_order = prompt([*start, *results, *unknown])
    assert prompt([*start, unknown[0], *results[::-1], unknown[1]]) == in_order
    assert prompt([*start, *results, *unknown[::-1]]) != in_order
    assert prompt([*start, start[0], *results[::-1]]) != prompt([*start, start[0], *results])


def test_a_template_that_expects_json_text_gets_it(tokenizer_for: TokenizerFor) -> None:
    text = json.dumps(ARGUMENTS, ensure_ascii=False)
    tokenizer = tokenizer_for("text")
    prompt = tokenizer.prompt(conversation(ToolCallPart("aBcDeF123", "weather_of", text)))
    read = b"".join(map(tokenizer.token_bytes, prompt.token_ids)).decode()
    assert f"<tool_call>function\nweather_of\n{text}</tool_call>" in read


def test_reasoning_is_rendered_as_by_the_reference(
    tokenizer_for: TokenizerFor,
) -> None:
    call = ToolCallPart("aBcDeF123", "weather_of", "{}")
    messages = conversation(call, said="I look.", thought="\nWhat do I know?\n")
    expected = reference("either", {}, "I look.", reasoning_content="\nWhat do I know?\n")
    assert list(tokenizer_for("either").prompt(messages).token_ids) == expected


def test_a_template_without_a_reasoning_field_drops_reasoning(
    tokenizer_for: TokenizerFor,
) -> None:
    call = ToolCallPart("aBcDeF123", "weather_of", "{}")
    tokenizer = tokenizer_for("tags")
    with_thought = tokenizer.prompt(conversation(call, thought="What do I know?"))
    assert with_thought == tokenizer.prompt(conversation(call))


@pytest.mark.parametrize("template", ["either", "text", "counted", "tags"])
@settings(max_examples=40)
@given(data=st.data())
def test_no_field_of_a_call_becomes_a_control_token(
    tokenizer_for: TokenizerFor, template: str, data: st.DataObject
) -> None:
    others = ("<tool", "_call>", "</thi", "nk>", '"', "\\", "\n", "é", "a")
    pieces = st.lists(st.sampled_from([*TOKENS, *others]), min_size=1, max_size=4)
    hostile = pieces.map(lambda found: "".join(found) + "x")
    name, key, value, thought, said, result = (data.draw(hostile) for _ in range(6))
    call_id = "aBcDeF123" if template == "counted" else data.draw(hostile)
    said = said.replace("</think>", "").replace("nk>", "")  # reasoning precedes the mark
    said = "" if template in ("text", "counted") else said
    tokenizer = tokenizer_for(template)

    def prompt(call_id: str, *texts: str) -> Sequence[int]:
        name, key, value, thought, said, result = texts
        call = ToolCallPart(call_id, name, json.dumps({key: [value, {value: value}]}))
        return tokenizer.prompt(
            conversation(call, said=said, thought=thought, result=result)
        ).token_ids

    added = tokenizer._backend.get_added_tokens_decoder().items()
    control = {i for i, t in added if t.special or t.content in TEMPLATES[template]}
    found = prompt(call_id, name, key, value, thought, said, result)
    harmless = prompt("aBcDeF123", "n", "k", "v", "t", said and "s", "r")
    assert [i for i in found if i in control] == [i for i in harmless if i in control]
    read = b"".join(map(tokenizer.token_bytes, found)).decode()
    for text in (name, result, thought if template == "either" else "x"):
        assert text.strip() in read or json.dumps(text, ensure_ascii=False)[1:-1] in read


@pytest.mark.parametrize(
    "arguments", ["", "[]", "{", '{"a": NaN}', '"text"', '{"a": "\\ud800"}', "[" * 10_000]
)
def test_arguments_that_are_no_json_object_are_refused(
    tokenizer_for: TokenizerFor, arguments: str
) -> None:
    messages = conversation(ToolCallPart("aBcDeF123", "weather_of", arguments))
    if not arguments:  # a tool without arguments
        assert tokenizer_for("either").prompt(messages)
        return
    for name in TEMPLATES:
        with pytest.raises(RequestError, match="not the JSON text of an object") as caught:
            tokenizer_for(name).prompt(messages)
        assert caught.value.param == "messages[1]"


def test_arguments_that_are_nested_too_deeply_are_refused(
    tokenizer_for: TokenizerFor,
) -> None:
    arguments = '{"a": ' + "[" * 50 + "]" * 50 + "}"
    with pytest.raises(RequestError, match="nested over 32 levels") as caught:
        tokenizer_for("either").prompt(conversation(ToolCallPart("1", "f", arguments)))
    assert caught.value.param == "messages[1]"


@pytest.mark.parametrize(
    "assistant",
    [
        "{{ m.content }}",
        "{{ m.content }}{% for call in m.tool_calls %}{{ call.function.name }}{% endfor %}",
        "{{ m.content }}{{ m.tool_calls }}",
        "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}",
    ],
)
def test_a_template_that_cannot_render_calls_is_refused(
    assistant: str, tokenizer_with: TokenizerWith
) -> None:
    tokenizer = tokenizer_with(vocabulary(), turns(assistant))
    with pytest.raises(RequestError, match="writes no tool calls") as caught:
        tokenizer.prompt(conversation(ToolCallPart("1", "weather_of")))
    assert caught.value.param == "messages[1]"


def test_an_id_that_the_template_truncates_is_detected(tokenizer_with: TokenizerWith) -> None:
    assistant = "{{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
    tool = "{% elif m.role == 'tool' %}{{ m.tool_call_id[-9:] }}{{ m.content }}"
    tokenizer = tokenizer_with(vocabulary(), turns(assistant, tool))
    assert tokenizer.prompt(conversation(ToolCallPart("aBcDeF123", "f"))).token_ids
    for call_id in ("call_aBcDeF123", "aBcDeF1234567"):
        with pytest.raises(RequestError, match="rewrites what messages say"):
            tokenizer.prompt(conversation(ToolCallPart(call_id, "f")))
