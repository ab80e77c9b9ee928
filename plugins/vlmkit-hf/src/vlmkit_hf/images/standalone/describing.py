"""Converts a processor of transformers to saved settings, if its family is supported here."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from vlmkit_hf.images.facts import ImageFacts
from vlmkit_hf.images.standalone.families import IMAGES, LAYOUTS, WRITERS
from vlmkit_hf.images.standalone.processor import SETTINGS, settings_under
from vlmkit_hf.images.standalone.settings import ProcessorSettings, TextSettings

# Settings that do not change the arrays or the text of an image.
_IRRELEVANT = frozenset(
    {
        "auto_map",
        "backend",
        "data_format",
        "default_to_square",
        "device",
        "disable_grouping",
        "feature_extractor_type",
        "image_processor_type",
        "image_seq_length",
        "input_data_format",
        "max_pixels",
        "min_pixels",
        "num_additional_image_tokens",
        "pan_and_scan_max_num_crops",
        "pan_and_scan_min_crop_size",
        "pan_and_scan_min_ratio_to_activate",
        "processor_class",
        "return_tensors",
    }
)


class UndescribedError(Exception):
    """A processor is not supported without transformers; says why."""


def describe(processor: Any, facts: ImageFacts) -> ProcessorSettings:
    """Return the settings of a processor of transformers.

    Raises:
        UndescribedError: its class or one of its settings is not supported.
    """
    name = type(processor).__name__
    images = processor.image_processor
    pictures = type(images).__name__.removesuffix("Pil").removesuffix("Fast")
    if name not in WRITERS or pictures not in IMAGES:
        raise UndescribedError(f"{name} with {pictures} is not supported")
    if facts.lays_out and name not in LAYOUTS:
        raise UndescribedError(f"{name} has a text layout of its own")
    stated = {**images.to_dict(), **{k: v for k, v in facts.options.items() if v is not None}}
    for key, value in stated.items():
        if key not in SETTINGS | _IRRELEVANT and value not in (None, False):
            raise UndescribedError(f"its setting {key!r} is not supported")
    if stated.get("do_pan_and_scan"):
        raise UndescribedError("it cuts parts out of long pictures")
    own = {key: _plain(getattr(images, key, None)) for key in SETTINGS}
    try:
        shown = settings_under(
            {key: value for key, value in own.items() if value is not None},
            {key: _plain(value) for key, value in facts.options.items()},
        )
        return ProcessorSettings(
            words=name, pictures=pictures, own=_text_settings(processor), images=shown
        )
    except msgspec.ValidationError as error:
        raise UndescribedError(f"its settings are out of bounds: {error}") from error


def _text_settings(processor: Any) -> TextSettings:
    known = {
        key: value
        for key, value in vars(processor).items()
        if key in TextSettings.__struct_fields__ and isinstance(value, int | str)
    }
    first = processor.tokenizer.bos_token
    return msgspec.convert({**known, "bos_token": first or ""}, TextSettings)


def _plain(value: Any) -> Any:
    """Return a setting as a JSON value."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping) or hasattr(value, "shortest_edge"):
        return {key: each for key, each in dict(value).items() if each is not None}
    return value
