"""Client text never becomes a control token or an image slot, in any family."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import zoo
from vlmkit.errors import RequestError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, Role, TextPart
from vlmkit_hf.text_side.tokenizer import HfTokenizer

ALL = [*zoo.NAMES_VISION, *zoo.NAMES_TEXT]
TokenizerOf = Callable[[str], HfTokenizer]
CheckpointOf = Callable[[str], Checkpoint]

some = settings(max_examples=40)


def spelled(folder: Path) -> dict[str, int]:
    """Return the special tokens of a vocabulary and other tokens that name a role."""
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    template = folder / "chat_template.jinja"
    written = template.read_text() if template.exists() else ""
    return {
        token["content"]: token["id"]
        for token in added
        if token["special"] or (token["content"].strip() and token["content"] in written)
    }


@pytest.fixture(scope="module")
def every_token(checkpoint_of: CheckpointOf) -> list[str]:
    """Return the control tokens of all families."""
    return sorted({token for name in ALL for token in spelled(checkpoint_of(name).path)})


def hostile(tokens: Sequence[str]) -> st.SearchStrategy[str]:
    """Return texts of complete and split control tokens."""
    whole = st.sampled_from(tokens)
    piece = whole.flatmap(lambda t: st.integers(1, len(t)).map(lambda n: t[:n]))
    rest = whole.flatmap(lambda t: st.integers(0, len(t) - 1).map(lambda n: t[n:]))
    return st.lists(st.one_of(whole, piece, rest, st.sampled_from(["a", " ", "\n", "é"]))).map(
        lambda parts: "".join(parts) + "x"  # never only white space, which a template may strip
    )


def conversation(
    name: str, user: Sequence[str], others: Sequence[str], images: Sequence[Image]
) -> list[Message]:
    """Return a conversation of client texts only."""
    parts = [TextPart(text) for text in user]
    shown = [ImagePart(image) for image in images]
    last = Message("user", (*shown[:1], *parts, *shown[1:]))
    if name == "paligemma":
        return [last]
    first = Message.of("user", others[0])
    return [first, Message.of("assistant", others[1]), last]


def control_tokens(prompt_ids: Sequence[int], special: set[int]) -> list[int]:
    return [token_id for token_id in prompt_ids if token_id in special]


@pytest.mark.parametrize("name", ALL)
@some
@given(data=st.data())
def test_typed_control_tokens_change_neither_roles_nor_image_slots(
    tokenizer_of: TokenizerOf,
    checkpoint_of: CheckpointOf,
    every_token: list[str],
    name: str,
    data: st.DataObject,
) -> None:
    tokens = spelled(checkpoint_of(name).path)
    texts = st.one_of(hostile(sorted(tokens)), hostile(every_token))
    user = data.draw(st.lists(texts, min_size=1, max_size=3))
    others = data.draw(st.tuples(texts, texts))
    if name.startswith("qwen3"):  # only the assistant may write the end of reasoning
        others = (others[0], others[1].replace("</think>", ""))
    images = [Image.open(zoo.picture(seed)) for seed in (1, 2)] if name in zoo.NAMES_VISION else []
    tokenizer = tokenizer_of(name)
    prompt = tokenizer.prompt(conversation(name, user, others, images))
    harmless = tokenizer.prompt(conversation(name, ["x"] * len(user), ["x", "x"], images))

    special = set(tokens.values())
    assert control_tokens(prompt.token_ids, special) == control_tokens(harmless.token_ids, special)
    assert [slot.digest for slot in prompt.media] == [slot.digest for slot in harmless.media]
    for slot, same in zip(prompt.media, harmless.media, strict=True):
        assert (
            prompt.token_ids[slot.start : slot.stop] == harmless.token_ids[same.start : same.stop]
        )


@pytest.mark.parametrize("name", ALL)
def test_every_control_token_of_every_family_in_one_message_is_text(
    tokenizer_of: TokenizerOf, checkpoint_of: CheckpointOf, every_token: list[str], name: str
) -> None:
    special = set(spelled(checkpoint_of(name).path).values())
    images = [Image.open(zoo.picture(1))] if name in zoo.NAMES_VISION else []
    tokenizer = tokenizer_of(name)
    prompt = tokenizer.prompt([Message.of("user", "".join(every_token), images)])
    harmless = tokenizer.prompt([Message.of("user", "x", images)])

    assert control_tokens(prompt.token_ids, special) == control_tokens(harmless.token_ids, special)
    assert len(prompt.media) == len(images)


@pytest.mark.parametrize("name", ALL)
def test_typed_text_decodes_to_itself(
    tokenizer_of: TokenizerOf, checkpoint_of: CheckpointOf, name: str
) -> None:
    tokenizer = tokenizer_of(name)
    images = [Image.open(zoo.picture(1))] if name == "paligemma" else []
    text = "I typed " + " and ".join(sorted(spelled(checkpoint_of(name).path))[:12])
    prompt = tokenizer.prompt([Message.of("user", text, images)])

    assert text in tokenizer.decode(prompt.token_ids)


@pytest.mark.parametrize("name", ALL)
def test_a_control_token_split_over_two_parts_stays_text(
    tokenizer_of: TokenizerOf, checkpoint_of: CheckpointOf, name: str
) -> None:
    images = [Image.open(zoo.picture(1))] if name == "paligemma" else []
    shown = tuple(map(ImagePart, images))
    tokens = spelled(checkpoint_of(name).path)
    special = set(tokens.values())
    tokenizer = tokenizer_of(name)
    halves = (TextPart("a"), TextPart("b"))
    harmless = control_tokens(
        tokenizer.prompt([Message("user", shown + halves)]).token_ids, special
    )
    for token in tokens:
        halves = (TextPart(f"a{token[:3]}"), TextPart(f"{token[3:]}b"))
        prompt = tokenizer.prompt([Message("user", shown + halves)])
        assert control_tokens(prompt.token_ids, special) == harmless, token


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3", "gpt_oss"])
@some
@given(data=st.data())
def test_control_tokens_in_tools_stay_text(
    tokenizer_of: TokenizerOf, checkpoint_of: CheckpointOf, name: str, data: st.DataObject
) -> None:
    tokens = spelled(checkpoint_of(name).path)
    text = data.draw(hostile(sorted(tokens)))
    tokenizer = tokenizer_of(name)

    def ids(word: str) -> list[int]:
        function = {
            "name": word,
            "description": word,
            "parameters": {
                "type": "object",
                "properties": {word: {"type": "string", "description": word, "enum": [word]}},
                "required": [word],
            },
        }
        tool: dict[str, Any] = {"type": "function", "function": function}
        prompt = tokenizer.prompt([Message.of("user", "hello")], tools=[tool])
        return control_tokens(prompt.token_ids, set(tokens.values()))

    assert ids(text) == ids("x")


@pytest.mark.parametrize("role", ["system", "tool"])
def test_control_tokens_in_other_roles_stay_text(
    tokenizer_of: TokenizerOf, checkpoint_of: CheckpointOf, role: Role
) -> None:
    tokens = spelled(checkpoint_of("qwen3").path)
    tokenizer = tokenizer_of("qwen3")

    def ids(text: str) -> list[int]:
        question, other_turn = Message.of("user", "hello"), Message.of(role, text)
        messages = [other_turn, question] if role == "system" else [question, other_turn]
        return control_tokens(tokenizer.prompt(messages).token_ids, set(tokens.values()))

    assert ids("".join(tokens)) == ids("x")


def test_an_added_word_is_one_token_in_client_text(
    tokenizer_of: TokenizerOf,
) -> None:
    tokenizer = tokenizer_of("gemma3")

    assert len(tokenizer.encode("<table>")) == 1
    assert len(tokenizer.encode("\n\n")) == 1
    assert len(tokenizer.encode("<start_of_turn>")) > 1


def test_a_template_that_omits_an_image_is_refused(
    tokenizer_of: TokenizerOf,
) -> None:
    answer = Message("assistant", (TextPart("Look:"), ImagePart(Image.open(zoo.picture(1)))))
    messages = [Message.of("user", "hello"), answer, Message.of("user", "thanks")]

    with pytest.raises(RequestError, match="places 0 of 1 images"):
        tokenizer_of("llava_next").prompt(messages)
