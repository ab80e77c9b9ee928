"""The model types of the installed transformers that generate text, and their vision families."""

from transformers.models.auto import modeling_auto

import zoo

_SHOWN = frozenset(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
_SIGHTLESS = frozenset({"mistral4"})  # listed there, though its class is one of text alone
_VISION_FAMILIES = _SHOWN - _SIGHTLESS
_READING = frozenset(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) | _SIGHTLESS
_HEARING = frozenset(modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)


def all_types() -> list[str]:
    """Return every model type, in order."""
    return sorted(_VISION_FAMILIES | _READING | _HEARING)


def sees(model_type: str) -> bool:
    """Whether the family answers about images."""
    return model_type in _VISION_FAMILIES


def is_made_to_be_shown(model_type: str) -> bool:
    """Whether transformers builds it by an auto class for answers about images."""
    return model_type in _SHOWN


def reads(model_type: str) -> bool:
    """Whether it goes on with texts, and sees nothing."""
    return model_type in _READING and not sees(model_type)


def hears(model_type: str) -> bool:
    """Whether it is neither."""
    return not sees(model_type) and not reads(model_type)


def in_zoo() -> dict[str, str]:
    """Return the zoo's families by their model type."""
    return {zoo.model_type(name): name for name in zoo.NAMES}
