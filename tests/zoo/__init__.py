"""Tiny random models of real families, saved as complete checkpoint folders, for tests.

Each one is built from the family's own config class with random weights, the family's own
processor class, a small trained tokenizer with the family's special tokens, and a chat template
that has the shape of the family's own. Answers are noise; everything else is as in a real
checkpoint, so two programs that load the same folder must agree token for token.

    folder = zoo.save("qwen2_vl", tmp_path)               weights too; needs torch
    folder = zoo.save_processor("qwen2_vl", tmp_path)     all but the weights; no torch
    inputs = zoo.reference("qwen2_vl", messages, images)  what the family's processor makes of them

Nothing here needs torchvision or the network, and nothing here imports vlmkit: this is the
reference that vlmkit is compared with. But for one thing: the families of ``NAMES_MORE`` have
vlmkit-hf's image processors, which are held to transformers' own where torchvision is installed.
"""

from zoo.picture import picture
from zoo.reference import family, model_type, placeholder, processor, reference
from zoo.save import (
    NAMES,
    NAMES_MORE,
    NAMES_OTHERS,
    NAMES_TEXT,
    NAMES_THINKERS,
    NAMES_TIMM,
    NAMES_VARIANTS,
    NAMES_VISION,
    save,
    save_processor,
)

__all__ = [
    "NAMES",
    "NAMES_MORE",
    "NAMES_OTHERS",
    "NAMES_TEXT",
    "NAMES_THINKERS",
    "NAMES_TIMM",
    "NAMES_VARIANTS",
    "NAMES_VISION",
    "family",
    "model_type",
    "picture",
    "placeholder",
    "processor",
    "reference",
    "save",
    "save_processor",
]
