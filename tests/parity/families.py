"""The families that are exported in every test run, and those in slow runs only.

An export takes ten to forty seconds of CPU time, half of it for the vision tower. One family tests
each mechanism in every run. Mechanisms of towers and of decoders are sampled separately.
"""

from collections.abc import Iterable
from typing import Any

import pytest

import zoo

EXPORTED_MORE = ("cohere2_vision", "gemma4_unified")
EXPORTED = (*zoo.NAMES_VISION, *zoo.NAMES_VARIANTS, *EXPORTED_MORE, *zoo.NAMES_TEXT)
"""All that can be exported."""

LIKE = {
    "qwen2": "qwen2_5_vl",  # biases of queries, keys and values
    "qwen3": "qwen3_vl",  # norms of queries and keys
    "qwen3_moe": "mixtral",  # experts
    "mistral": "phi3",  # a window in every layer
    "gemma3_text": "gemma3",  # windows in some layers, with another RoPE
    "idefics3": "smolvlm",  # tiles whose pixels are shuffled
    "qwen2_vl": "qwen2_5_vl",  # positions on three axes
    "exaone4_5": "qwen2_5_vl",  # windows; heads that share keys and values
    "glm4v": "paddleocr_vl",  # a table of positions
    "glm_ocr": "paddleocr_vl",
    "vipllava": "llava",  # several layers of the tower
    "llava_next_video": "llava_next",
    "aya_vision": "internvl",
    "cohere2_vision": "internvl",
    "gemma4_unified": "gemma4",  # patches with places
}
"""A family whose exports are slow tests, and one that is tried always and has its mechanisms."""

DECODERS_LIKE = {
    "granite4_vision": "llava",  # that of llama, with scales
    "internvl": "qwen2_5_vl",  # that of qwen2
    "llava_next": "llava",  # that of mistral, without windows
    "mistral3": "llava",  # that of mistral, without windows
    "smolvlm": "llava",  # that of llama
}
"""A family whose whole exports are slow tests, and one tried always that has its decoder."""


def exported(names: Iterable[str], *before: str) -> list[Any]:
    """Return parameters of tests that need a family's export: the name, after others if any."""
    return _marked(names, {**LIKE, **DECODERS_LIKE}, *before)


def mechanisms(names: Iterable[str]) -> list[Any]:
    """Return parameters of tests that need no export, of a path that others take for each family.

    The tests of the whole pipeline load each family and compare its answers in every run.
    """
    return _marked(names, LIKE)


def _marked(names: Iterable[str], slow: Iterable[str], *before: str) -> list[Any]:
    return [
        pytest.param(*before, name, marks=pytest.mark.slow if name in slow else ())
        for name in names
    ]
