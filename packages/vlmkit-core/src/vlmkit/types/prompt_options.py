"""Options of chat templates; does not render anything."""

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
    """Options for rendering a conversation; the names are those of transformers.

    Attributes:
        add_generation_prompt: end the prompt where an answer begins, not after the last message.
        continue_final_message: end the prompt inside the last message, which must be the
            assistant's, so that the answer continues it. No new answer begins.
        chat_template_kwargs: values of the template's variables, such as ``enable_thinking``;
            unknown names have no effect. Templates insert them unescaped, so text from untrusted
            sources must not be passed.
        reasoning_effort: amount of reasoning before the answer; None leaves it to the template.
            An equivalent variable in ``chat_template_kwargs`` takes precedence.
        light: build the prompt only from the sizes of images, without decoding pixels. Its slots
            have neither digests nor inputs, so it cannot be answered.
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
        """The options with values other than the defaults."""
        is_set: dict[PromptOption, bool] = {
            "add_generation_prompt": not self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "chat_template_kwargs": bool(self.chat_template_kwargs),
            "reasoning_effort": self.reasoning_effort is not None,
            "light": self.light,
        }
        return [option for option, differs in is_set.items() if differs]
