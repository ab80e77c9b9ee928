"""What a family of the zoo consists of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerFast


@dataclass(frozen=True)
class VisionSide:
    """The vision settings of a family.

    Attributes:
        image_processor: name of the Pillow-based class; the name in a real checkpoint lacks "Pil".
            Without it, transformers has no such class, and vlmkit-hf's is used.
        image_settings: its arguments.
        processor: name of the family's processor class.
        processor_settings: further arguments of that class.
        placeholder: represents one image in a text for the processor.
    """

    image_processor: str
    image_settings: Mapping[str, Any]
    processor: str
    placeholder: str
    processor_settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """One tiny model, before it has weights.

    Attributes:
        tokenizer: builds its tokenizer.
        config: builds its config from that tokenizer.
        template: its chat template; None if the family publishes none.
        eos: tokens that end an answer, as text.
        vision: None for a text model.
        whole: the class of the saved model, if no auto class knows it.
        answers: the class of its answering part, likewise.
        attention: transformers' attention implementation; None is its own choice.
    """

    tokenizer: Callable[[], PreTrainedTokenizerFast]
    config: Callable[[PreTrainedTokenizerFast], PreTrainedConfig]
    template: str | None
    eos: tuple[str, ...]
    vision: VisionSide | None = None
    whole: str = ""
    answers: str = ""
    attention: str | None = None
