"""Prompt options change how a chat template renders a conversation."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vlmkit.errors import RequestError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.delta import text_of
from vlmkit.types.message import Message
from vlmkit.types.prompt_options import PromptOptions
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from zoo.tokenizer import byte_level, sentencepiece

TokenizerWith = Callable[[Any, str], HfTokenizer]
TRIMS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}:{{ message.content | trim }}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant:"
    "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}{% endif %}"
)
KEEPS = TRIMS.replace(" | trim", "")
SPEAKS = KEEPS.replace(
    "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}", ""
)
GOES_ON = PromptOptions(continue_final_message=True)


def vocabulary() -> Any:
    special = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    return byte_level(special, named={"eos_token": "<|im_end|>"})


def written(tokenizer: HfTokenizer, said: str, options: PromptOptions) -> str:
    messages = [Message.of("user", "hi"), Message.of("assistant", said)]
    prompt = tokenizer.prompt(messages, options=options)
    return str(tokenizer._backend.decode(list(prompt.token_ids), skip_special_tokens=False))


@pytest.mark.parametrize(
    ("template", "said", "end"),
    [(TRIMS, "it is ", "it is"), (KEEPS, "it is ", "it is "), (KEEPS, " so\n\n", " so\n\n"),
     (KEEPS, "hi", "hi"), (KEEPS, "a<|im_end|>b", "a<|im_end|>b")],
)  # fmt: skip
def test_a_continued_message_ends_as_the_template_renders_it(
    template: str, said: str, end: str, tokenizer_with: TokenizerWith
) -> None:
    tokenizer = tokenizer_with(vocabulary(), template)
    start = "<|im_start|>user:hi<|im_end|><|im_start|>assistant:"
    assert written(tokenizer, said, GOES_ON) == start + end
    ended = written(tokenizer, said, PromptOptions(add_generation_prompt=False))
    assert ended == start + end + "<|im_end|>"


def test_a_template_that_changes_the_last_message_cannot_continue_it(
    tokenizer_with: TokenizerWith,
) -> None:
    content = "message.content | tojson if message.role == 'assistant' else message.content"
    tokenizer = tokenizer_with(vocabulary(), KEEPS.replace("message.content", content))
    with pytest.raises(RequestError) as caught:
        written(tokenizer, 'a "b"', GOES_ON)
    assert caught.value.param == "continue_final_message"


def test_a_template_gets_the_requested_variables(tokenizer_with: TokenizerWith) -> None:
    tokenizer = tokenizer_with(vocabulary(), KEEPS)
    with_reasoning = PromptOptions(chat_template_kwargs={"enable_thinking": True})
    ask = [Message.of("user", "hi")]
    assert tokenizer.prompt(ask, options=with_reasoning).opens_reasoning
    assert not tokenizer.prompt(ask).opens_reasoning
    for name in ("messages", "add_generation_prompt", "eos_token"):
        with pytest.raises(RequestError) as caught:
            tokenizer.prompt(ask, options=PromptOptions(chat_template_kwargs={name: "x"}))
        assert caught.value.param == "chat_template_kwargs"


LEVELS = (
    "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
    "Reasoning: {{ reasoning_effort }}|"
)
NONE = LEVELS + "{% if reasoning_effort == 'none' %}!{% endif %}"
SWITCHES = "{{ enable_thinking }}|{{ thinking }}|"


@pytest.mark.parametrize(
    ("head", "effort", "said"),
    [
        (LEVELS, None, "Reasoning: medium|"),
        (LEVELS, "low", "Reasoning: low|"),
        (LEVELS, "high", "Reasoning: high|"),
        (NONE, "none", "Reasoning: none|!"),
        (SWITCHES, None, "||"),
        (SWITCHES, "none", "False|False|"),
        (SWITCHES, "low", "True|True|"),
        (SWITCHES + LEVELS, "high", "True|True|Reasoning: high|"),
        (SWITCHES + LEVELS, "none", "False|False|Reasoning: medium|"),
    ],
)
def test_an_effort_is_passed_in_the_variables_of_the_template(
    tokenizer_with: TokenizerWith, head: str, effort: Any, said: str
) -> None:
    tokenizer = tokenizer_with(vocabulary(), head + SPEAKS)
    assert "reasoning_effort" in tokenizer.honours
    text = written(tokenizer, "so", PromptOptions(reasoning_effort=effort))
    assert text.startswith(f"{said}<|im_start|>user")


def test_an_explicit_variable_takes_precedence_over_an_effort(
    tokenizer_with: TokenizerWith,
) -> None:
    tokenizer = tokenizer_with(vocabulary(), SWITCHES + KEEPS)
    options = PromptOptions(reasoning_effort="high", chat_template_kwargs={"thinking": False})
    assert written(tokenizer, "so", options).startswith("True|False|")


def test_a_model_that_always_reasons_refuses_the_effort_none(tokenizer_with: TokenizerWith) -> None:
    tokenizer = tokenizer_with(vocabulary(), LEVELS + SPEAKS)
    with pytest.raises(RequestError) as caught:
        written(tokenizer, "so", PromptOptions(reasoning_effort="none"))
    assert caught.value.param == "reasoning_effort"


def test_an_effort_is_not_honoured_without_a_template_variable(
    tokenizer_with: TokenizerWith,
) -> None:
    tokenizer = tokenizer_with(vocabulary(), SPEAKS)
    assert "reasoning_effort" not in tokenizer.honours


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_continued_text_keeps_its_leading_space(
    kind: Callable[..., Any], tokenizer_with: TokenizerWith
) -> None:
    named = {"eos_token": "<|im_end|>", "bos_token": "<s>"}
    tokenizer = tokenizer_with(kind(["<s>", "<|im_end|>"], named=named), KEEPS)
    whole, begun = tokenizer.encode("so it is, é."), tokenizer.encode("so")
    assert whole[: len(begun)] == begun
    prompt = Prompt(tuple(begun), is_plain=True)
    assert said(tokenizer, prompt, whole[len(begun) :]) == " it is, é."
    assert said(tokenizer, prompt, whole[len(begun) : -2]).startswith(" it is")


def said(tokenizer: HfTokenizer, prompt: Prompt, token_ids: Sequence[int]) -> str:
    reader = tokenizer.reader(prompt)
    pieces = [text_of(reader.push(token_id)) for token_id in token_ids]
    return "".join([*pieces, text_of(reader.finish())])
