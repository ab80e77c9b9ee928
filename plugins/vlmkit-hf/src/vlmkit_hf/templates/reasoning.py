"""How checkpoints mark what a model thinks before it answers."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

from vlmkit.errors import RequestError
from vlmkit.interfaces.chat_format import Mark
from vlmkit.types.prompt_options import ReasoningEffort, TemplateValue
from vlmkit_hf.templates.stand_ins import Segment


class Marks(NamedTuple):
    """What stands before a thought, and what behind it."""

    start: str
    end: str

    @classmethod
    def of(cls, is_known: Callable[[str], bool]) -> "Marks | None":
        """Return the marks that are known by the second: the first may be the model's to say."""
        return next((marks for marks in ALL if is_known(marks.end)), None)

    def behind(self, text: str) -> str:
        """Return what a text says behind a thought that it begins with."""
        thought, mark, said = text.partition(self.end)
        return said if mark else thought

    def as_tokens(self, vocabulary: Mapping[str, int]) -> tuple[Mark, Mark]:
        """Return the marks for a reader: by their tokens where they are tokens."""
        return (
            Mark(self.start, vocabulary.get(self.start)),
            Mark(self.end, vocabulary.get(self.end)),
        )

    def opened_by(self, segments: Sequence[Segment]) -> bool:
        """Tell whether a template's last words begin a thought; a client's never do."""
        if not segments or segments[-1].is_client:
            return False
        text = segments[-1].text
        return text.rfind(self.start) > text.rfind(self.end)


class Effort:
    """How a chat template is told how much to think.

    Args:
        variables: what the template asks a request for.
        knows_none: whether it asks for an effort by the name of ``none``.
    """

    def __init__(self, variables: Container[str], *, knows_none: bool) -> None:
        self._has_levels = LEVELS in variables
        self._switches = [name for name in SWITCHES if name in variables]
        self._knows_none = knows_none and self._has_levels

    @property
    def is_known(self) -> bool:
        """Whether there is a way."""
        return self._has_levels or bool(self._switches)

    def values(self, effort: ReasoningEffort | None) -> dict[str, TemplateValue]:
        """Return the variables that say an effort; a template with switches alone knows two.

        Raises:
            RequestError: the model always thinks, and is not to.
        """
        if effort is None:
            return {}
        if effort == "none" and not (self._switches or self._knows_none):
            raise RequestError(
                "this model's chat template knows no answer without reasoning",
                param="reasoning_effort",
                code="unsupported_value",
            )
        values: dict[str, TemplateValue] = dict.fromkeys(self._switches, effort != "none")
        if self._has_levels and (effort != "none" or self._knows_none):
            values[LEVELS] = effort
        return values


LEVELS = "reasoning_effort"
SWITCHES = ("enable_thinking", "thinking")
"""How chat templates call the variables that say how much to think, or whether to."""

NAMES = ("reasoning_content", "reasoning", "thinking")
"""How chat templates call what was thought before an earlier answer."""

ALL = (
    Marks("<think>", "</think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    Marks("◁think▷", "◁/think▷"),
)
