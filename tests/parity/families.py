"""Which families are exported: in every run of the tests, or in slow ones only.

An export takes seconds. Each mechanism is tried always, by one family that has it.
"""

from collections.abc import Iterable
from typing import Any

import pytest

import zoo

EXPORTED_MORE = ("cohere2_vision", "gemma4_unified")
EXPORTED = (*zoo.NAMES_VISION, *zoo.NAMES_KIN, *EXPORTED_MORE, *zoo.NAMES_TEXT)
"""All that can be exported."""

LIKE = {
    "qwen2": "qwen2_5_vl",  # biases of queries, keys and values
    "qwen3": "qwen3_vl",  # norms of queries and keys
    "qwen3_moe": "mixtral",  # experts
    "mistral": "phi3",  # a window in every layer
    "gemma3_text": "gemma3",  # windows in some layers, which rotate otherwise
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


def exported(names: Iterable[str], *before: str) -> list[Any]:
    """Return parameters of tests that need a family's export: the name, after others if any."""
    return [
        pytest.param(*before, name, marks=pytest.mark.slow if name in LIKE else ())
        for name in names
    ]
