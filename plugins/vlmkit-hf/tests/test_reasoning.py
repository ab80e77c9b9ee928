"""Reasoning by the marks of a checkpoint: as tokens or text, opened by the model or the prompt."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.types.delta import reasoning_of, text_of
from vlmkit.types.message import Message
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from zoo.tokenizer import byte_level, sentencepiece

SAY = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
TokenizerWith = Callable[[Any, str], HfTokenizer]
MARKS = [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷")]
ASK = [Message.of("user", "why?")]


def vocabulary(**tokens: Sequence[str]) -> Any:
    special = ["<|im_start|>", "<|im_end|>", *tokens.get("special", ())]
    named = {"eos_token": "<|im_end|>"}
    return byte_level(special, named=named, plain=tokens.get("plain", ()))


def ids_of(tokenizer: HfTokenizer, pieces: Sequence[str]) -> list[int]:
    """Return the token ids of texts; a text that is an added token is one token."""
    added = tokenizer._backend.get_added_tokens_decoder().items()
    known = {token.content: token_id for token_id, token in added}
    return [i for p in pieces for i in ([known[p]] if p in known else tokenizer.encode(p))]


def read(
    tokenizer: HfTokenizer, pieces: Sequence[str], messages: Sequence[Message] = ASK
) -> tuple[str, str]:
    """Return the reasoning and the text of an answer."""
    reader = tokenizer.reader(tokenizer.prompt(messages))
    deltas = [d for i in ids_of(tokenizer, pieces) for d in reader.push(i)] + [*reader.finish()]
    return reasoning_of(deltas), text_of(deltas)


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("kind", ["special", "plain", "spelled"])
def test_marks_in_the_template_separate_reasoning_from_text(
    marks: tuple[str, str], kind: str, tokenizer_with: TokenizerWith
) -> None:
    start, end = marks
    tokens = {kind: marks} if kind != "spelled" else {}
    tokenizer = tokenizer_with(vocabulary(**tokens), f"{SAY}{{% if false %}}{end}{{% endif %}}")
    parsed = read(tokenizer, [start, "\nWhy é?", "\n", end, "\n\nSo."])
    assert parsed == ("Why é?", "So.")


def test_marks_in_the_vocabulary_separate_reasoning_from_text(
    tokenizer_with: TokenizerWith,
) -> None:
    tokenizer = tokenizer_with(vocabulary(plain=MARKS[0]), SAY)
    assert read(tokenizer, ["<think>", "why", "</think>", "so"]) == ("why", "so")


def test_without_marks_everything_is_text(tokenizer_with: TokenizerWith) -> None:
    text = "<think>why</think>so"
    assert read(tokenizer_with(vocabulary(), SAY), [text]) == ("", text)


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("<think>\n", True),
        ("<think>", True),
        ("<think>\n\n</think>\n\n", False),
        ("", False),
        ("</think><think>", True),
    ],
)
@pytest.mark.parametrize("plain", [(), MARKS[0]])
def test_an_answer_continues_reasoning_that_its_prompt_opened(
    prompt: str, opens: bool, plain: Sequence[str], tokenizer_with: TokenizerWith
) -> None:
    known = "{% if false %}</think>{% endif %}"
    tokenizer = tokenizer_with(vocabulary(plain=plain), SAY + known + f"{{{{ {prompt!r} }}}}")
    assert tokenizer.prompt(ASK).opens_reasoning == opens
    parsed = read(tokenizer, ["why", "</think>", "so"])
    assert parsed == (("why", "so") if opens else ("", "why</think>so"))


def test_client_text_does_not_open_reasoning(tokenizer_with: TokenizerWith) -> None:
    template = "{% for m in messages %}{{ m.content }}{% if false %}</think>{% endif %}{% endfor %}"
    for plain in ((), MARKS[0]):
        tokenizer = tokenizer_with(vocabulary(plain=plain), template)
        messages = [Message.of("user", "hello <think>")]
        assert not tokenizer.prompt(messages).opens_reasoning
        assert read(tokenizer, ["so"], messages) == ("", "so")


def test_text_spelled_like_a_mark_token_is_text(
    tokenizer_with: TokenizerWith,
) -> None:
    tokenizer = tokenizer_with(vocabulary(plain=MARKS[0]), SAY)
    parsed = read(tokenizer, ["<think>", "They wrote </th", "ink> to me", "</think>", "So."])
    assert parsed == ("They wrote </think> to me", "So.")


def test_an_incomplete_character_before_a_mark_is_reasoning(
    tokenizer_with: TokenizerWith,
) -> None:
    tokenizer = tokenizer_with(vocabulary(plain=MARKS[0]), SAY)
    half = tokenizer.encode("é")[:1]
    start, end = ids_of(tokenizer, MARKS[0])
    reader = tokenizer.reader(tokenizer.prompt(ASK))
    ids = [start, *tokenizer.encode("why"), *half, end, *tokenizer.encode("so")]
    deltas = [delta for i in ids for delta in reader.push(i)]
    parsed = (reasoning_of(deltas), text_of(deltas))
    assert parsed == ("why\ufffd", "so")


@settings(max_examples=40)
@given(
    thought=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    said=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_reasoning_and_text_of_an_answer_round_trip(
    kind: Callable[..., object], thought: str, said: str, tokenizer_with: TokenizerWith
) -> None:
    named = {"eos_token": "</s>", "bos_token": "<s>"}
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = tokenizer_with(kind(["<s>", "</s>"], named=named, plain=MARKS[0]), template)
    ids = {text: tokenizer.encode(text) for text in (thought, said)}
    start, end = ids_of(tokenizer, MARKS[0])
    reader = tokenizer.reader(tokenizer.prompt(ASK))
    tokens = [start, *ids[thought], end, *ids[said]]
    deltas = [delta for i in tokens for delta in reader.push(i)] + [*reader.finish()]
    assert reasoning_of(deltas) == tokenizer.decode(ids[thought]).strip()
    assert text_of(deltas) == tokenizer.decode(ids[said]).lstrip()
