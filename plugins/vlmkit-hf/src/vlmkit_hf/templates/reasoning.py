"""How checkpoints mark reasoning, and how chat templates take a reasoning effort.

Detects both from a template. Does not parse answers.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

from vlmkit.errors import RequestError
from vlmkit.interfaces.chat_format import Mark
from vlmkit.types.prompt_options import ReasoningEffort, TemplateValue
from vlmkit_hf.templates.stand_ins import Segment


class ReasoningMarks(NamedTuple):
    """The texts around reasoning."""

    start: str
    end: str

    @classmethod
    def of(cls, is_known: Callable[[str], bool]) -> "ReasoningMarks | None":
        """Return the marks whose end is known: the model may have to write the start itself."""
        return next((marks for marks in ALL_MARKS if is_known(marks.end)), None)

    def answer_of(self, text: str) -> str:
        """Return a text without the reasoning that it begins with."""
        thought, mark, said = text.partition(self.end)
        return said if mark else thought

    def as_tokens(self, vocabulary: Mapping[str, int]) -> tuple[Mark, Mark]:
        """Return the marks for a parser, with token ids where they are single tokens."""
        return (
            Mark(self.start, vocabulary.get(self.start)),
            Mark(self.end, vocabulary.get(self.end)),
        )

    def opened_by(self, segments: Sequence[Segment]) -> bool:
        """Tell whether the template opened reasoning at the end; client text never does."""
        if not segments or segments[-1].is_client:
            return False
        text = segments[-1].text
        return text.rfind(self.start) > text.rfind(self.end)


class Effort:
    """How a chat template takes a reasoning effort.

    Args:
        variables: the variables that the template takes from a request.
        knows_none: whether it compares with an effort called ``none``.
    """

    def __init__(self, variables: Container[str], *, knows_none: bool) -> None:
        self._has_levels = LEVELS in variables
        self._switches = [name for name in SWITCHES if name in variables]
        self._knows_none = knows_none and self._has_levels

    @property
    def is_known(self) -> bool:
        """Whether the template takes an effort."""
        return self._has_levels or bool(self._switches)

    def values(self, effort: ReasoningEffort | None) -> dict[str, TemplateValue]:
        """Return the template variables for an effort; switches alone know on and off.

        Raises:
            RequestError: the effort is ``none``, and this model always reasons.
        """
        if effort is None:
            return {}
        if effort == "none" and not (self._switches or self._knows_none):
            raise RequestError(
                "this model's chat template cannot turn reasoning off",
                param="reasoning_effort",
                code="unsupported_value",
            )
        values: dict[str, TemplateValue] = dict.fromkeys(self._switches, effort != "none")
        if self._has_levels and (effort != "none" or self._knows_none):
            values[LEVELS] = effort
        return values


LEVELS = "reasoning_effort"
SWITCHES = ("enable_thinking", "thinking")
"""Names that chat templates use for the effort, and for switching reasoning on or off."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Names that chat templates use for the reasoning before an earlier answer."""

ALL_MARKS = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("◁think▷", "◁/think▷"),
)
