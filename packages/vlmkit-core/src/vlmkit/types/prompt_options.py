"""How a conversation is to be written, where a request asks for more than a template's own way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from vlmkit.errors import RequestError

PromptOption = Literal[
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "light",
    "reasoning_effort",
]
"""The fields of :class:`PromptOptions`."""

ReasoningEffort = Literal["none", "low", "medium", "high"]
TemplateValue = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """How a chat template writes a conversation; the fields are called as in transformers.

    Attributes:
        add_generation_prompt: end the prompt where an answer begins, and not behind the last
            message.
        continue_final_message: end it inside the last message, which is the assistant's, so that
            the answer goes on with it; no answer begins then.
        chat_template_kwargs: values of variables that a template asks for, such as
            ``enable_thinking``; others have no effect. A template writes them as they are, so a
            text must not come from whom you do not trust.
        reasoning_effort: how much to think before the answer; None leaves it to the template.
            What ``chat_template_kwargs`` says of the same goes before it.
        light: make the prompt from the sizes of images alone: no pixel is looked at, its slots have
            neither digests nor inputs, and nobody can answer it.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Mapping[str, TemplateValue] = field(default_factory=dict)
    reasoning_effort: ReasoningEffort | None = None
    light: bool = False

    def __post_init__(self) -> None:
        if self.reasoning_effort not in (None, *get_args(ReasoningEffort)):
            expected = ", ".join(get_args(ReasoningEffort))
            raise RequestError(
                f"reasoning_effort must be one of {expected}", param="reasoning_effort"
            )

    @property
    def begins_answer(self) -> bool:
        """Whether the prompt ends where an answer begins."""
        return self.add_generation_prompt and not self.continue_final_message

    @property
    def asked(self) -> list[PromptOption]:
        """Which options are other than a template's own way."""
        asked: dict[PromptOption, bool] = {
            "add_generation_prompt": not self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "chat_template_kwargs": bool(self.chat_template_kwargs),
            "reasoning_effort": self.reasoning_effort is not None,
            "light": self.light,
        }
        return [option for option, is_asked in asked.items() if is_asked]
