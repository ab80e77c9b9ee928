"""The results of one family."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["equal", "refused", "wrong", "fails", "not tried"]
"""What became of a trial: tokens are those of ``generate``; refused at load; other tokens; no
answer at all."""

ENGINES = ("torch", "onnx")


@dataclass(frozen=True)
class Finding:
    """The result of one trial.

    Attributes:
        verdict: the kind of result.
        reason: the refusal or why there was no answer; empty for success.
    """

    verdict: Verdict
    reason: str = ""


Record = dict[str, Finding]
"""A family's findings, by engine and what was asked: ``torch text``, ``onnx pictures``."""
