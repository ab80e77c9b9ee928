"""A folder for a model in a GGUF file alone: config, tokenizer and chat template from its header.

A file with its vision tower may lie beside it. The folder lies in the user's cache and holds no
weights. Reads no weight.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.derived_files import derived_folder
from vlmkit_quantized import gguf_projector
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_config import config_of
from vlmkit_quantized.gguf_file import read_header
from vlmkit_quantized.gguf_metadata import Metadata
from vlmkit_quantized.gguf_pair import Side, side_of
from vlmkit_quantized.gguf_tokenizer import tokenizer_of

SUFFIX = ".gguf"
MAX_TEMPLATE = 2**20  # letters
TEMPLATE = "tokenizer.chat_template"
NAMED_TEMPLATE = re.compile(rf"{re.escape(TEMPLATE)}\.([a-z0-9_]{{1,64}})")
ENDS = ("eos", "eot", "eom")
"""Tokens that end an answer, in the words of the format."""


def derived(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint of a file with the folder that was derived from it.

    Raises:
        CheckpointError: the file is no GGUF file, contradicts itself, or is not supported; or the
            cache cannot be written.
    """
    file = checkpoint.file
    if file is None or not file.name.lower().endswith(SUFFIX):
        raise CheckpointError(f"model {checkpoint.name!r} is no file that ends with {SUFFIX!r}")
    try:
        contents = _contents(Metadata(file.name, read_header(file)), _tower(checkpoint))
    except FormatError as error:
        raise error.of_file(checkpoint) from error
    except OSError as error:
        raise CheckpointError(
            f"the file of model {checkpoint.name!r} cannot be read: {error.strerror}",
            hint="see who may read it",
        ) from error
    return replace(checkpoint, path=derived_folder(file, contents))


def _tower(checkpoint: Checkpoint) -> Metadata | None:
    """Return the header of the vision tower beside a file; None if there is none.

    Raises:
        FormatError: there are several, or it is no such file.
    """
    path = gguf_projector.file_of(checkpoint)
    return None if path is None else Metadata(path.name, gguf_projector.read(path))


def _contents(found: Metadata, tower: Metadata | None) -> Mapping[str, bytes]:
    """Return the files of the folder.

    Raises:
        FormatError: a file is not supported.
    """
    if found.architecture == gguf_projector.ARCHITECTURE:
        raise found.error(
            "has a vision tower and no language model",
            hint="name the file of the language model, and put both into one folder",
        )
    side = None if tower is None else side_of(found, tower)
    config = config_of(found)
    tokenizer, settings = tokenizer_of(found)
    templates = _templates(found)
    if templates.keys() - {"default"}:
        settings["chat_template"] = [
            {"name": name, "template": template} for name, template in templates.items()
        ]
    generation: dict[str, Any] = {"bos_token_id": config["bos_token_id"]}
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ENDS)
    generation["eos_token_id"] = [found.integer(key) for key in keys if found.has(key)] or None
    contents = {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
    }
    if side is not None:
        if config["model_type"] not in ("llama", side.text_type):
            raise found.error(f"is a {config['model_type']!r}, not supported with images")
        settings.update(side.tokens)
        contents |= _with_images(config, side)
    files = {name: json.dumps(each, ensure_ascii=False).encode() for name, each in contents.items()}
    if templates.keys() == {"default"}:
        files["chat_template.jinja"] = templates["default"].encode()
    return files


def _with_images(text: dict[str, Any], side: Side) -> dict[str, Any]:
    """Return the files that describe a model with images."""
    tied = {"tie_word_embeddings": text["tie_word_embeddings"], "dtype": text["dtype"]}
    inner = text | {"model_type": side.text_type, "sliding_window": text.get("sliding_window")}
    own = {name: side.image_processor[name] for name in ("processor_class",)}
    return {
        "config.json": {**side.config, **tied, "text_config": inner},
        "preprocessor_config.json": side.image_processor,
        "processor_config.json": own | side.processor,
    }


def _templates(found: Metadata) -> dict[str, str]:
    """Return the chat templates by their names.

    Raises:
        FormatError: one is no text, or they are too long.
    """
    named = {
        match[1]: found.text(key)
        for key in found.file.fields
        if (match := NAMED_TEMPLATE.fullmatch(key))
    }
    listed = {"default": found.text(TEMPLATE)} | named if found.has(TEMPLATE) else named
    if (num := sum(map(len, listed.values()))) > MAX_TEMPLATE:
        raise found.error(
            f"has chat templates of {num} letters in {TEMPLATE!r}, and {MAX_TEMPLATE} are supported"
        )
    return listed
