"""The format of ``vlmkit_text.json``, a saved text side beside a model or in the user's cache.

A file is valid as long as the files that it was made of are unchanged. Its content was checked when
it was written.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from vlmkit.errors import CheckpointError
from vlmkit_hf.images.facts import ImageFacts, TokenId, Word
from vlmkit_hf.images.standalone.settings import ProcessorSettings

FILE = "vlmkit_text.json"
OWN_TOKENIZER = "vlmkit_text.tokenizer.json"
FORMAT = 1
MAX_BYTES = 2**24
MAX_SOURCES = 2**8
SOURCES = (
    "*processor_config.json",
    "*.model",
    "*.tiktoken",
    "added_tokens.json",
    "additional_chat_templates/*.jinja",
    "chat_template.j*",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer*",
    "vocab.*",
)
"""Patterns of all files that a text side depends on."""

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Template = Annotated[str, Meta(max_length=2**20)]


class SavedImages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The image side of a saved text side."""

    facts: ImageFacts
    processor: ProcessorSettings


class SavedText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole text side; see :class:`vlmkit_hf.text_side.parts.TextParts`.

    Attributes:
        tokenizer: the file of the tokenizer: the model's own, or one beside this file.
        tokenizer_digest: the digest of that file.
    """

    tokenizer: Literal["tokenizer.json", "vlmkit_text.tokenizer.json"]
    tokenizer_digest: Digest
    named: Annotated[dict[Word, Word | tuple[Word, ...]], Meta(max_length=2**8)]
    bos: Word | None
    eos: Word | None
    eos_ids: Annotated[tuple[TokenId, ...], Meta(max_length=2**10)]
    templates: Annotated[dict[Word, Template], Meta(max_length=2**6)]
    images: SavedImages | None


class TextFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file.

    Attributes:
        format: the version of this format.
        sources: digests of the files that it was made of, by name.
        text: the text side; None if only transformers can resolve it.
        refusal: why only transformers can resolve it.
        made_with: versions of the packages that took part, by name.
    """

    format: Literal[1] = 1
    sources: Annotated[dict[Word, Digest], Meta(max_length=MAX_SOURCES)]
    text: SavedText | None
    refusal: Word = ""
    made_with: dict[Word, Word] = {}


def read(folder: Path) -> TextFile:
    """Read the file of a folder.

    Raises:
        CheckpointError: the file is too large, or not of this format.
    """
    path = folder / FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{FILE!r} is over {MAX_BYTES} bytes")
        return msgspec.json.decode(path.read_bytes(), type=TextFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{FILE!r} is not of format {FORMAT}") from error


def write(folder: Path, content: TextFile) -> None:
    """Write the file of a folder."""
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def digests_of_sources(folder: Path) -> Mapping[str, str]:
    """Return digests of the files that a text side depends on, by name.

    Raises:
        OSError: a file cannot be read.
    """
    paths = {path for pattern in SOURCES for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): digest(path) for path in sorted(paths)}


def digest(path: Path) -> str:
    """Return 64 hex digits of a file's content.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
