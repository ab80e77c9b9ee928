"""``vlmkit ask``: one question, one answer."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output

if TYPE_CHECKING:
    from vlmkit.ask.request import Request
    from vlmkit.model import Model


@click.command()
@click.argument("model", required=False)
@click.argument("prompt", required=False)
@click.option(
    "--image",
    "images",
    metavar="FILE|URL|-",
    multiple=True,
    help="Picture to ask about; may be repeated. - reads standard input.",
)
@options.sampled
@options.as_json
@options.configured
def ask(
    *,
    model: str | None,
    prompt: str | None,
    images: Sequence[str],
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    as_json: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Ask MODEL one question, PROMPT, and write the answer as it comes.

    MODEL is a packaged name such as demo, a folder, a hub id, or a URI that a plugin knows. Text
    that is piped in is the question, or stands above PROMPT.
    """
    from vlmkit.cli.images import opened as picture
    from vlmkit.cli.loading import opened, wanted
    from vlmkit.sources import find

    question = _question(prompt, images)
    if model is not None and question is None:
        raise click.UsageError('say what to ask: vlmkit ask MODEL "PROMPT" --image FILE')
    params = options.stated(max_tokens=max_tokens, temperature=temperature, seed=seed)
    target = wanted(model, config_file, assignments)
    find(target.entry.model, target.plugins)
    limits = target.config.pipeline.images
    pictures = [picture(source, limits) for source in images]  # before the model, which takes long
    with opened(target) as loaded:
        request = loaded.request(question or "", images=pictures, **params)
        if as_json:
            output.json(_report(loaded, request))
        else:
            _stream(loaded, request)


def _question(prompt: str | None, images: Sequence[str]) -> str | None:
    """Return what to ask: what is piped in, unless that is a picture, and PROMPT below it."""
    from vlmkit.cli.piped import piped_text

    piped = "" if "-" in images else piped_text()
    return "\n".join(text for text in (piped, prompt) if text) or prompt


def _stream(model: "Model", request: "Request") -> None:
    ends_line, answer = True, output.Answer()
    try:
        for chunk in model.submit(request):
            text = answer.write(chunk)
            ends_line = text.endswith("\n") if text else ends_line
            if chunk.finish_reason == "length":
                click.echo("\n[stopped at the limit of tokens]", err=True, nl=False)
                ends_line = False
    finally:
        if not ends_line:
            click.echo()


def _report(model: "Model", request: "Request") -> dict[str, Any]:
    completion = model.submit(request).result()
    return {
        "model": model.facts.name,
        "text": completion.text,
        "reasoning": completion.choices[0].reasoning,
        "finish_reason": completion.choices[0].finish_reason,
        "usage": asdict(completion.usage),
        "timings": asdict(completion.timings),
    }
