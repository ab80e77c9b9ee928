"""Layouts of tokenizers and chat templates."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint_layouts.layout import POINTER, Change, Layout, both, drop, edit, put, read, rename

SETTINGS, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
TEMPLATE = "chat_template.jinja"
TOKENIZER_OF = "tokenizer 'hf' from 'vlmkit-hf' cannot be used: "
FETCH = "fetch tokenizer.json and tokenizer_config.json of the same model"
GIVE_ONE = 'tokenizer.chat_template = "PATH"'
NO_WORDS = (
    "the chat template in 'chat_template.jinja' of 'm' cannot write a plain message of role 'user'"
)
WITH_TOOLS = "{{ tools | tojson }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def template_in(file: str, wrap: Callable[[str], Any] = str) -> Change:
    """Return a change that moves the chat template into a file of settings."""

    def change(folder: Path) -> None:
        text = (folder / TEMPLATE).read_text()
        both(drop(TEMPLATE), edit(file, chat_template=wrap(text)))(folder)

    return change


def named(*names: str) -> Callable[[str], Any]:
    return lambda text: [{"name": name, "template": text} for name in names]


def further(name: str, text: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(text)

    return change


def with_tokens(num: int, *, special: bool) -> Change:
    """Return a change that adds tokens behind all others."""

    def change(folder: Path) -> None:
        content = read(folder, TOKENIZER)
        like = content["added_tokens"][0] | {"special": special}
        start = max(token["id"] for token in content["added_tokens"]) + 1
        content["added_tokens"] += [
            {**like, "id": start + i, "content": f"<more {i}>"} for i in range(num)
        ]
        (folder / TOKENIZER).write_text(json.dumps(content))

    return change


def in_two_files(folder: Path) -> None:
    """Write the vocabulary as GPT-2 has it."""
    content = read(folder, TOKENIZER)
    (folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    merges = "\n".join(" ".join(merge) for merge in content["model"]["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    edit(SETTINGS, tokenizer_class="Qwen2Tokenizer", added_tokens_decoder=added(content))(folder)
    drop(TOKENIZER)(folder)


def added(content: dict[str, Any]) -> dict[str, Any]:
    """Return the added tokens as tokenizer_config.json has them."""
    return {str(token.pop("id")): token for token in content["added_tokens"]}


def of_sentencepiece(folder: Path) -> None:
    """Put a vocabulary of SentencePiece in place of the tokenizer."""
    import io

    import sentencepiece

    from zoo.tokenizer import CORPUS

    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3),
        model_writer=made,
        vocab_size=330,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        minloglevel=5,
    )
    drop(TOKENIZER, SETTINGS)(folder)
    (folder / "tokenizer.model").write_bytes(made.getvalue())
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    edit(SETTINGS, tokenizer_class="LlamaTokenizer", **tokens)(folder)


def of_tiktoken(folder: Path) -> None:
    """Write the vocabulary as tiktoken has it, which knows no control tokens."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    content = read(folder, TOKENIZER)
    as_byte = {letter: byte for byte, letter in bytes_to_unicode().items()}
    lines = [
        f"{base64.b64encode(bytes(as_byte[c] for c in word)).decode()} {number}\n"
        for word, number in sorted(content["model"]["vocab"].items(), key=lambda item: item[1])
    ]
    (folder / "tokenizer.model").write_text("".join(lines))
    drop(TOKENIZER)(folder)


def with_control_tokens(folder: Path) -> None:
    edit(SETTINGS, added_tokens_decoder=added(read(folder, TOKENIZER)))(folder)


LAYOUTS = [
    Layout("a template among the tokenizer's settings", template_in(SETTINGS)),
    Layout("a template in chat_template.json", template_in("chat_template.json"), base="llava"),
    Layout(
        "a template among the processor's settings",
        template_in("processor_config.json"),
        base="llava",
    ),
    Layout("templates by name", template_in(SETTINGS, named("default", "rag"))),
    Layout("a further template, for tools", further("tool_use", WITH_TOOLS)),
    Layout(
        "templates by name without a default",
        template_in(SETTINGS, named("tool_use", "rag")),
        "none of the chat templates of model 'm' is its default: 'rag', 'tool_use'",
        GIVE_ONE,
    ),
    Layout(
        "further templates without a default",
        both(drop(TEMPLATE), further("rag", WITH_TOOLS)),
        "none of the chat templates of model 'm' is its default: 'rag'",
        GIVE_ONE,
    ),
    Layout(
        "a template that is a number",
        template_in(SETTINGS, lambda _: 3),
        "the chat template of model 'm' is no text",
        GIVE_ONE,
    ),
    Layout(
        "a template that is no Jinja",
        put(TEMPLATE, b"{% for %}"),
        "the chat template in 'chat_template.jinja' of 'm' is not valid Jinja (line 1)",
        GIVE_ONE,
    ),
    Layout("an empty template", put(TEMPLATE, b""), NO_WORDS, GIVE_ONE),
    Layout("a template without messages", put(TEMPLATE, b"{{ bos_token }}"), NO_WORDS, GIVE_ONE),
    Layout(
        "a template in another encoding",
        put(TEMPLATE, b"\xff\xfe{{"),
        "'chat_template.jinja' of model 'm' cannot be read as text",
        "fetch it again",
    ),
    Layout(
        "a pointer of Git LFS in place of the template",
        put(TEMPLATE, POINTER),
        "'chat_template.jinja' of model 'm' is a pointer of Git LFS and not the file itself",
        "git lfs pull",
    ),
    Layout("a tokenizer without settings", drop(SETTINGS), is_as_before=False),
    Layout(
        "no tokenizer",
        drop("tokenizer*"),
        f"{TOKENIZER_OF}the model's folder has no tokenizer.json",
        FETCH,
    ),
    Layout(
        "settings without a tokenizer",
        drop(TOKENIZER),
        f"{TOKENIZER_OF}the model's folder has no tokenizer.json",
        FETCH,
    ),
    Layout(
        "a tokenizer that is cut off",
        put(TOKENIZER, b'{"model": '),
        "'tokenizer.json' of model 'm' is not the file of a tokenizer",
        FETCH,
    ),
    Layout("a vocabulary and merges", in_two_files, base="qwen2"),
    Layout(
        "a vocabulary without merges",
        both(in_two_files, drop("merges.txt")),
        f"{TOKENIZER_OF}'vocab.json' is there, and 'merges.txt' is missing",
        FETCH,
        base="qwen2",
    ),
    Layout(
        "a tokenizer that is code",
        edit(SETTINGS, tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]}),
        "the tokenizer of model 'm' is defined by code in the checkpoint, which is never run",
        "there may be a conversion",
    ),
    Layout("a tokenizer of another class", edit(SETTINGS, tokenizer_class="OwnTokenizer")),
    Layout(
        "more words than embeddings",
        with_tokens(40, special=False),
        "the tokenizer of 'm' has 30 tokens for which the model has no embedding, such as "
        "'<more 10>': by config.json, vocab_size is 384",
        "take the tokenizer that was saved with these weights",
    ),
    Layout("more control tokens than embeddings", with_tokens(40, special=True)),
    Layout(
        "SentencePiece's vocabulary alone",
        of_sentencepiece,
        is_as_before=False,
        needs=("sentencepiece",),
    ),
    Layout(
        "tiktoken's vocabulary alone",
        of_tiktoken,
        f"{TOKENIZER_OF}the tokenizer is there as 'tokenizer.model' of tiktoken alone, which does "
        "not say what its control tokens are",
        FETCH,
        needs=("sentencepiece", "tiktoken"),
    ),
    Layout(
        "tiktoken's vocabulary with control tokens",
        both(with_control_tokens, of_tiktoken),
        is_as_before=False,
        needs=("sentencepiece", "tiktoken"),
    ),
    Layout(
        "a vocabulary of nobody's",
        both(with_control_tokens, drop(TOKENIZER), put("tokenizer.model", b"\0garbage" * 9)),
        "model 'm' has no tokenizer that transformers can load",
        FETCH,
        needs=("sentencepiece", "tiktoken"),
    ),
    Layout(
        "a vocabulary of Mistral's without its words",
        both(drop("tokenizer*"), rename("generation_config.json", "tekken.json")),
        "model 'm' has no tokenizer that transformers can load",
        FETCH,
    ),
]
