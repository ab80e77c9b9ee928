"""How checkpoints mark what a model thinks before it answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vlmkit.seams.chat_format import Mark
from vlmkit_hf.sentinel import Segment


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


NAMES = ("reasoning_content", "reasoning", "thinking")
"""How chat templates call what was thought before an earlier answer."""

ALL = (
    Marks("<think>", "</think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    Marks("◁think▷", "◁/think▷"),
)
