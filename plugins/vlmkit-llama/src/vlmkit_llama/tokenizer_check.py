"""Compares the tokenizer of a folder with that of the GGUF file in it.

The folder's tokenizer is used. With the tokenizer of another model, prompts would be other tokens
than those that the weights know.
"""

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_file import read_header
from vlmkit_quantized.gguf_metadata import Metadata
from vlmkit_quantized.gguf_tokenizer import tokenizer_of

log = logging.getLogger(__name__)
FILE = "tokenizer.json"
NUM_TEXTS = 1000
WORDS = (
    *("the", "sea", "Hello", "don't", "vlmkit", "def", "x_1", "3.14", "2026", "1000000", "e-mail"),
    *(
        "über",
        "naïve",
        "привет",
        "мир",
        "你好",
        "世界",
        "こんにちは",
        "안녕",
        "नमस्ते",
        "مرحبا",
        "🙂",
        "👩‍🚀",
    ),
    *("{", "}", "()", "==", "//", "...", "\t", "\n", "\n\n", "  ", " ", "-", "?!", "é"),
)


def compare_tokenizers(checkpoint: Checkpoint, file: Path) -> None:
    """Compare vocabularies, and the tokens of 1,000 texts; a file alone has one tokenizer.

    Texts that are split in another way are logged: converters lose some rules of splitting.

    Raises:
        CheckpointError: a token of the folder is another one in the file.
    """
    path = checkpoint.path / FILE
    if checkpoint.file is not None or not path.is_file():
        return
    from tokenizers import Tokenizer

    try:
        made, _ = tokenizer_of(Metadata(file.name, read_header(file)))
    except FormatError as error:
        log.info("the tokenizer of model %r is not compared: %s", checkpoint.name, error)
        return
    own, stored = Tokenizer.from_file(str(path)), Tokenizer.from_str(json.dumps(made))
    _compare_vocabularies(checkpoint, file, own, stored)
    differ = [text for text in _texts() if _token_ids(own, text) != _token_ids(stored, text)]
    if differ:
        log.warning(
            "the tokenizer of model %r splits %d of %d texts in another way than %r, such as %r",
            *(checkpoint.name, len(differ), NUM_TEXTS, file.name, differ[0]),
        )


def _compare_vocabularies(checkpoint: Checkpoint, file: Path, own: Any, stored: Any) -> None:
    known = {number: token for token, number in stored.get_vocab(with_added_tokens=True).items()}
    for token, number in sorted(own.get_vocab(with_added_tokens=True).items(), key=_second):
        if number in known and known[number] != token:
            raise CheckpointError(
                f"model {checkpoint.name!r} has the tokenizer of another model: its token {number} "
                f"is {token!r}, and {known[number]!r} in {file.name!r}",
                hint="take the tokenizer of the model that the file was made from, or name the "
                "file alone",
            )


def _second(item: tuple[str, int]) -> int:
    return item[1]


def _token_ids(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def _texts() -> Iterator[str]:
    dice = random.Random(0)
    for _ in range(NUM_TEXTS):
        words = dice.choices(WORDS, k=dice.randrange(1, 12))
        yield dice.choice(("", " ")).join(words)
