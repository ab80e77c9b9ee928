"""Selects the files of a repository that belong to a model.

Works on file names alone; fetches nothing.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from vlmkit.errors import CheckpointError
from vlmkit.kit.single_file import (
    MAX_LISTED,
    is_further_piece,
    is_projector,
    split_tag,
    suffix_of,
    tag_of,
)


class Files(NamedTuple):
    """Some files of a repository, as patterns for huggingface_hub."""

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...] = ()

    def of(self, names: Iterable[str]) -> set[str]:
        """Return the names that match."""
        return {
            name
            for name in names
            if _matches(name, self.wanted) and not _matches(name, self.unwanted)
        }


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# Files in folders belong to other layouts, except "1_Pooling", which describes an embedding model,
# and "additional_chat_templates". "consolidated" is a copy of the weights.
_NOT_OURS = ("*[!gs]/*", "*[!n]g/*", "*[!e]s/*", "*/*.safetensors", "consolidated*", "adapter_m*")
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")

CONFIGS = Files(("*config.json", "*.index.json"), _NOT_OURS)
"""Files that describe a model."""
SMALL = Files(_SMALL, _NOT_OURS)
"""All files except weights."""
SAFETENSORS = Files((*_SMALL, "*.safetensors"), _NOT_OURS)
EXPORTED = Files((*_SMALL, "*.safetensors", "*.onnx", "*.onnx.data"), _NOT_OURS)
ONNX = Files((*_SMALL, "*.onnx", "*.onnx_data*", "*.onnx.data"))

_EXPORT = "vlmkit_onnx.json"  # in an export of `vlmkit export`, with graphs and safetensors
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

GGUF = (".gguf",)
"""The suffix of files on the hub that hold a whole model."""

Listing = Mapping[str, int]
"""The size of each file of a repository, in bytes."""


def objection(reference: str) -> str | None:
    """Return why a reference cannot be a hub id; None if it can."""
    repository, _ = split_tag(reference)
    if _HUB_ID.fullmatch(repository) is None or ".." in repository or "--" in repository:
        return "a hub id reads org/name, or org/name:TAG for a single file"
    return None


def files_of_model(reference: str, names: Iterable[str]) -> Files:
    """Return the files of a repository to fetch: those with safetensors, or else with ONNX.

    An adapter's weights are never fetched: loading reports what it is.

    Raises:
        CheckpointError: the repository has only pickled weights, or none.
    """
    names = set(names)
    if _EXPORT in names:
        return EXPORTED
    if "adapter_config.json" in names or _has(SAFETENSORS, names, ".safetensors"):
        return SAFETENSORS
    if _has(ONNX, names, ".onnx"):
        return ONNX
    if single := sorted(
        name
        for name in names
        if "/" not in name
        and suffix_of(name, GGUF)
        and not is_projector(name)
        and not is_further_piece(name)
    ):
        tags = ", ".join(f"{reference}:{tag_of(name, GGUF)}" for name in single[:MAX_LISTED])
        raise CheckpointError(
            f"model {reference!r} has only GGUF files on the hub, each a whole model",
            hint=f"with a plugin that owns the suffix '.gguf', name one of them: {tags}",
        )
    raise CheckpointError(
        f"model {reference!r} has no weights in safetensors or ONNX form on the hub",
        hint="pickled weights can run code when they are read, so vlmkit never does",
    )


def _has(files: Files, names: Iterable[str], ending: str) -> bool:
    return any(name.endswith(ending) for name in files.of(names))
