"""What a family of the zoo consists of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerFast


@dataclass(frozen=True)
class VisionSide:
    """How a family looks at images.

    Attributes:
        image_processor: name of the Pillow-based class; the name in a real checkpoint lacks "Pil".
            Without that, transformers has none, and vlmkit-hf's is taken.
        image_settings: its arguments.
        processor: name of the family's processor class.
        processor_settings: further arguments of that class.
        placeholder: what stands for one image in a text that the processor is given.
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
        tokenizer: makes its tokenizer.
        config: makes its config from that tokenizer.
        template: its chat template; None where the family publishes none.
        eos: tokens that end an answer, by their text.
        vision: None for a text model.
        whole: the class of what is saved, where no auto class knows it.
        answers: the class of its part that answers, likewise.
        attention: what transformers computes attention with; None is its own choice.
    """

    tokenizer: Callable[[], PreTrainedTokenizerFast]
    config: Callable[[PreTrainedTokenizerFast], PreTrainedConfig]
    template: str | None
    eos: tuple[str, ...]
    vision: VisionSide | None = None
    whole: str = ""
    answers: str = ""
    attention: str | None = None
