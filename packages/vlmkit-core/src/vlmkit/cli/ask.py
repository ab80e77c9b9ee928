"""``vlmkit ask``: asks a model one question."""

import difflib
import os
import stat
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output
from vlmkit.cli.dropped_files import names_image

if TYPE_CHECKING:
    from vlmkit.cli.loading import Wanted
    from vlmkit.config import Config
    from vlmkit.model import Model
    from vlmkit.plugins.loader import Plugins
    from vlmkit.types.constraint import JsonSchema
    from vlmkit.types.media import FilePart
    from vlmkit.types.message import ImagePart
    from vlmkit.types.request import Request

IMAGE = "--image"
WAIT_S = 2.0  # before a message says that standard input is being read


class AskCommand(click.Command):
    """Accepts several files after one ``--image``, as a shell expands a pattern."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the option before each further file."""
        return super().parse_args(ctx, _each_by_option(args))


@click.command(cls=AskCommand)
@click.argument("model", required=False)
@click.argument("prompt", required=False)
@click.option(
    IMAGE,
    "images",
    metavar="FILE|URL|-",
    multiple=True,
    help="Image or document to ask about. Accepts several files, patterns such as '*.png', and may "
    "be repeated; - reads standard input.",
)
@click.option(
    "--schema",
    "schema_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Answer in JSON that matches the JSON schema in this file.",
)
@options.sampled
@options.as_json
@options.as_json_lines("Ask about each image separately, and write a line of JSON for each.")
@options.configured
@click.pass_context
def ask(  # noqa: PLR0913 - one for each argument and option
    context: click.Context,
    *,
    model: str | None,
    prompt: str | None,
    images: Sequence[str],
    schema_file: Path | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    as_json: bool,
    as_json_lines: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Ask MODEL one question, PROMPT, and stream the answer.

    MODEL is a packaged name such as demo, a folder, a hub id, or a URI that a plugin supports. It
    may be omitted if the config has only one model, or only one is installed. Text from standard
    input is the question, or precedes PROMPT.
    """
    from vlmkit.assembly.sources import name_of, refuse_unknown
    from vlmkit.cli.images import matching
    from vlmkit.cli.loading import opened, read_with_plugins, wanted_of
    from vlmkit.cli.schema_file import schema_of

    if as_json_lines and (as_json or not images):
        raise click.UsageError("--jsonl needs --image, and excludes --json")
    constraint = None if schema_file is None else schema_of(schema_file)
    layered, plugins = read_with_plugins(config_file, assignments)
    if model is not None and prompt is None and not _is_model(model, layered.config, plugins):
        model, prompt = None, model
    is_named = model is not None
    question = _question(prompt, images)
    if question is None and (is_named or images):
        raise click.UsageError('give a prompt: vlmkit ask MODEL "PROMPT" --image FILE')
    params = options.stated(max_tokens=max_tokens, temperature=temperature, seed=seed)
    target = wanted_of(model, layered.config, plugins)
    if question is None:
        raise click.UsageError('give a prompt: vlmkit ask "PROMPT" --image FILE')
    refuse_unknown(target.entry.model, target.plugins)
    if not is_named:
        click.echo(f"model: {name_of(target.entry)}", err=True)
    if as_json_lines:
        if _write_lines(target, question, matching(images), constraint, params):
            context.exit(1)
        return
    parts = _checked(images, target)  # before loading the model, which takes long
    with opened(target) as loaded:
        request = loaded.request(question, images=parts, constraint=constraint, **params)
        if as_json:
            output.json(_report(loaded, request))
        else:
            _stream(loaded, request)


def _each_by_option(args: Sequence[str]) -> list[str]:
    """Return arguments with ``--image`` inserted before each image that follows another."""
    expanded: list[str] = []
    is_value = is_after = False
    for index, word in enumerate(args):
        if word == "--":
            return [*expanded, *args[index:]]
        if is_value:
            is_value, is_after = False, True
        elif is_after and not word.startswith("-") and names_image(word):
            expanded.append(IMAGE)
        else:
            is_value, is_after = word == IMAGE, word.startswith(f"{IMAGE}=")
        expanded.append(word)
    return expanded


def _is_model(word: str, config: "Config", plugins: "Plugins") -> bool:
    """Return whether the only argument of a command line is a model, not the question.

    Raises:
        click.UsageError: the argument resembles the name of a model.
    """
    from vlmkit.assembly.sources import packaged_models
    from vlmkit.kit.model_uri import model_uri

    configured = [name for entry in config.entries() for name in entry.names]
    known = [*configured, *packaged_models(plugins)]
    if word in known or os.path.isdir(word) or model_uri(word) is not None:  # noqa: PTH112 - never raises
        return True
    is_one_word = not set(word) & set(" \t\n?")
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7) if is_one_word else []
    if near:
        raise click.UsageError(
            f"{word!r} is not a model, and seems not to be a question: did you mean {near[0]!r}?"
        )
    return is_one_word and "/" in word


def _question(prompt: str | None, images: Sequence[str]) -> str | None:
    """Return the question: text from standard input, unless that is an image, then PROMPT."""
    piped = "" if "-" in images else _piped_text()
    return "\n".join(text for text in (piped, prompt) if text) or prompt


def _piped_text() -> str:
    """Return the text on standard input without its final line break; empty if there is none.

    Reads neither a terminal nor the null device. A pipe is read to its end; after 2 s without an
    end, a message on standard error says so.

    Raises:
        click.UsageError: standard input is not text, but possibly an image.
    """
    if not _is_piped():
        return ""
    waiting = threading.Timer(WAIT_S, _report_waiting)
    waiting.daemon = True
    waiting.start()
    try:
        content = sys.stdin.buffer.read()
    finally:
        waiting.cancel()
    try:
        return content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.UsageError(
            "standard input is not UTF-8 text; --image - reads an image from it"
        ) from None


def _is_piped() -> bool:
    if sys.stdin is None:  # it was closed, and its descriptor may be another file by now
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _report_waiting() -> None:
    click.echo("reading standard input to its end; </dev/null gives none", err=True)


def _checked(images: Sequence[str], target: "Wanted") -> "list[ImagePart | FilePart]":
    """Return the opened images, and files that a media loader will open."""
    if not images:
        return []
    from vlmkit.cli.images import matching, opened
    from vlmkit.config.providers import media_loaders
    from vlmkit.errors import MediaError
    from vlmkit.inputs.images import named
    from vlmkit.running.prompting.files import FileOpener
    from vlmkit.types.media import FilePart

    bounds = target.config.pipeline
    parts = [opened(source, bounds) for source in matching(images)]
    if files := [part for part in parts if isinstance(part, FilePart)]:
        opener = FileOpener(media_loaders(target.config, target.plugins), bounds)
        for file in files:
            try:
                opener.loader_name(file)
            except MediaError as error:
                raise named(error, file.name) from error
    return parts


def _write_lines(
    target: "Wanted",
    question: str,
    sources: Sequence[str],
    constraint: "JsonSchema | None",
    params: dict[str, Any],
) -> int:
    """Answer a question about each image, and return how many failed."""
    from vlmkit.cli.answer_lines import write_answers
    from vlmkit.cli.loading import opened

    with opened(target) as loaded:
        num_failed = write_answers(loaded, question, sources, constraint, params)
    num, failed = len(sources), f", {num_failed:,} failed" * bool(num_failed)
    click.echo(f"{num:,} {'image' if num == 1 else 'images'}{failed}", err=True)
    return num_failed


def _stream(model: "Model", request: "Request") -> None:
    ends_line, answer, num_tokens = True, output.Answer(), 0
    try:
        for chunk in model.submit(request):
            text = answer.write(chunk)
            num_tokens += len(chunk.samples)
            ends_line = text.endswith("\n") if text else ends_line
            if chunk.finish_reason == "length":
                click.echo(f"\n[stopped at the limit of {num_tokens} tokens]", err=True, nl=False)
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
