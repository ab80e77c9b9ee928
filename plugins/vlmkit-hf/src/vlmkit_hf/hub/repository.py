"""Which files of a repository belong to a model, and which of them say how it is built.

Knows names alone; fetches nothing.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from vlmkit.errors import CheckpointError


class Files(NamedTuple):
    """Some files of a repository, as patterns that huggingface_hub takes."""

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...] = ()

    def of(self, names: Iterable[str]) -> set[str]:
        """Return those of the names that match."""
        return {
            name
            for name in names
            if _matches(name, self.wanted) and not _matches(name, self.unwanted)
        }


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# What lies in folders is other people's layout, but for "1_Pooling", which says how a model embeds,
# and "additional_chat_templates"; "consolidated" is the same weights once more.
_NOT_OURS = ("*[!gs]/*", "*[!n]g/*", "*[!e]s/*", "*/*.safetensors", "consolidated*", "adapter_m*")
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")

CONFIGS = Files(("*config.json", "*.index.json"), _NOT_OURS)
"""What says how a model is built."""
SMALL = Files(_SMALL, _NOT_OURS)
"""All but weights."""
SAFETENSORS = Files((*_SMALL, "*.safetensors"), _NOT_OURS)
EXPORTED = Files((*_SMALL, "*.safetensors", "*.onnx", "*.onnx.data"), _NOT_OURS)
ONNX = Files((*_SMALL, "*.onnx", "*.onnx_data*", "*.onnx.data"))

_EXPORT = "vlmkit_onnx.json"  # of what `vlmkit export` made, which has graphs and safetensors
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Listing = Mapping[str, int]
"""The bytes of each file of a repository."""


def objection(reference: str) -> str | None:
    """Say why a reference cannot be a hub id; None where it can."""
    if _HUB_ID.fullmatch(reference) is None or ".." in reference or "--" in reference:
        return "a hub id reads org/name"
    return None


def files_of_model(reference: str, names: Iterable[str]) -> Files:
    """Return which files of a repository are fetched: those with safetensors, or else with ONNX.

    An adapter's weights are never fetched: what loads it says what it is.

    Raises:
        CheckpointError: it has weights as pickles only, or none.
    """
    names = set(names)
    if _EXPORT in names:
        return EXPORTED
    if "adapter_config.json" in names or _has(SAFETENSORS, names, ".safetensors"):
        return SAFETENSORS
    if _has(ONNX, names, ".onnx"):
        return ONNX
    raise CheckpointError(
        f"model {reference!r} has no weights in safetensors or ONNX form on the hub",
        hint="pickled weights can run code when they are read, so vlmkit never does; nor does it "
        "read GGUF",
    )


def _has(files: Files, names: Iterable[str], ending: str) -> bool:
    return any(name.endswith(ending) for name in files.of(names))
