"""``vlmkit_text.json``: what a text side resolved to, beside a model or in the cache folder.

It counts as long as the files that it was made of are the same; whether it was right was tried when
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
"""All files that a text side is made of."""

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Template = Annotated[str, Meta(max_length=2**20)]


class WrittenImages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pictures are shown."""

    facts: ImageFacts
    processor: ProcessorSettings


class WrittenText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole text side; see :class:`vlmkit_hf.text_side.parts.TextParts`.

    Attributes:
        tokenizer: the file of the tokenizer: the model's own, or one beside this.
        tokenizer_digest: of that file.
    """

    tokenizer: Literal["tokenizer.json", "vlmkit_text.tokenizer.json"]
    tokenizer_digest: Digest
    named: Annotated[dict[Word, Word | tuple[Word, ...]], Meta(max_length=2**8)]
    bos: Word | None
    eos: Word | None
    eos_ids: Annotated[tuple[TokenId, ...], Meta(max_length=2**10)]
    templates: Annotated[dict[Word, Template], Meta(max_length=2**6)]
    images: WrittenImages | None


class TextFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file.

    Attributes:
        format: version of this layout.
        sources: digests of the files that it was made of, by name.
        text: what they resolve to; None where only transformers can.
        refusal: why only transformers can.
        made_with: versions by name of what took part.
    """

    format: Literal[1] = 1
    sources: Annotated[dict[Word, Digest], Meta(max_length=MAX_SOURCES)]
    text: WrittenText | None
    refusal: Word = ""
    made_with: dict[Word, Word] = {}


def read(folder: Path) -> TextFile:
    """Return a folder's file.

    Raises:
        CheckpointError: it is too large, or not of this format.
    """
    path = folder / FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{FILE!r} is over {MAX_BYTES} bytes")
        return msgspec.json.decode(path.read_bytes(), type=TextFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{FILE!r} is not of format {FORMAT}") from error


def write(folder: Path, content: TextFile) -> None:
    """Write a folder's file."""
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def digests_of_sources(folder: Path) -> Mapping[str, str]:
    """Return digests of the files that a text side is made of, by name.

    Raises:
        OSError: one cannot be read.
    """
    paths = {path for pattern in SOURCES for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): digest(path) for path in sorted(paths)}


def digest(path: Path) -> str:
    """Return 64 hex digits of a file's content.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
