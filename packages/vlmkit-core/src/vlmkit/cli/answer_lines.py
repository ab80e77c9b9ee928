"""``vlmkit ask --jsonl``: asks the same question about many images, with a line of JSON for each.

An image that is refused is the error of its line. It does not load the model.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import output

if TYPE_CHECKING:
    from vlmkit.model import Model
    from vlmkit.running.pipeline.ordered_answers import Result
    from vlmkit.types.constraint import JsonSchema
    from vlmkit.types.request import Request

PERIOD_S = 1.0
MAX_NAME_CHARS = 4096  # the longest path of Linux; a data: URL may be longer


def write_answers(
    model: "Model",
    question: str,
    sources: Sequence[str],
    constraint: "JsonSchema | None",
    params: dict[str, Any],
) -> int:
    """Answer a question about each image, write the lines in order, and return how many failed.

    Args:
        model: answers.
        question: the question.
        sources: paths and URLs of images, or ``-`` for standard input.
        constraint: the schema of each answer.
        params: sampling parameters.

    Raises:
        RequestError: a parameter is invalid, or the constraint cannot be enforced.
        EngineFailed: the engine failed for good.
    """
    from vlmkit.cli.images import opened
    from vlmkit.errors import VlmkitError
    from vlmkit.running.pipeline.ordered_answers import OrderedAnswers

    model.params(**params)  # an invalid one is an error before any answer
    if constraint is not None:
        _refuse_unenforceable(model, question, constraint)

    def request(source: str) -> "Request":
        part = opened(source, model.facts.bounds, decodes=False)
        return model.request(question, images=part, constraint=constraint, **params)

    num_failed, progress = 0, _Progress(len(sources))
    answers = OrderedAnswers(model.runner, request, model.submit)
    for source, result in zip(sources, answers.results(sources), strict=True):
        if isinstance(result, VlmkitError):
            num_failed += 1
        output.json_line({"file": source[:MAX_NAME_CHARS], **_line(result)})
        progress.show(num_failed)
    progress.close()
    return num_failed


def _refuse_unenforceable(model: "Model", question: str, constraint: "JsonSchema") -> None:
    """Compile a constraint once, which would otherwise fail anew for each image.

    Raises:
        ConstraintError: it cannot be compiled here.
    """
    from vlmkit.errors import ConstraintError, RequestError

    request = model.request(question, constraint=constraint, max_tokens=1)
    try:
        model.submit(request).abort()
    except ConstraintError:
        raise
    except RequestError:  # the question without an image; each line reports its own error
        pass


def _line(result: "Result") -> dict[str, Any]:
    from vlmkit.errors import RequestError, VlmkitError

    if isinstance(result, VlmkitError):
        code = result.code if isinstance(result, RequestError) else "engine_error"
        return {"error": {"code": code, "message": str(result), "hint": result.hint}}
    choice = result.choices[0]
    return {
        "text": choice.text,
        "reasoning": choice.reasoning,
        "finish_reason": choice.finish_reason,
        "usage": asdict(result.usage),
    }


class _Progress:
    """Shows on a terminal how many images are answered."""

    def __init__(self, num: int) -> None:
        self._num = num
        self._num_done = 0
        self._start_s = time.monotonic()
        self._shown_s = 0.0

    def show(self, num_failed: int) -> None:
        """Count an image, and write the progress once a second."""
        self._num_done += 1
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self._shown_s < PERIOD_S:
            return
        self._shown_s = now
        per_s = self._num_done / max(now - self._start_s, 1e-3)
        left = f"{(self._num - self._num_done) / per_s:,.0f} s left"
        text = f"{self._num_done:,} of {self._num:,}, {num_failed:,} failed, {per_s:,.1f}/s, {left}"
        click.echo(f"\r{text}    ", err=True, nl=False)

    def close(self) -> None:
        """Clear the line of the terminal."""
        if self._shown_s:
            click.echo("\r" + " " * 70 + "\r", err=True, nl=False)
