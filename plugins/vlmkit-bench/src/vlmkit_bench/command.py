"""``vlmkit bench``: measures a server under load, or compares two results."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import click
import msgspec

from vlmkit.errors import RequestError
from vlmkit_bench import chart, report
from vlmkit_bench.client import AnswerError, Client
from vlmkit_bench.load import Load, LoadTest
from vlmkit_bench.report import Result
from vlmkit_bench.summary import LATENCIES, parse_slo, summary_of
from vlmkit_bench.workload import (
    MAX_IMAGES,
    MAX_TURNS,
    MAX_WORDS,
    Conversation,
    Range,
    Shape,
    Sizes,
    read_trace,
)

DEFAULT_REQUESTS = 100
PERIOD_S = 0.5
_FIELD = re.compile(r"([A-Za-z_][\w.]{0,63})=(.+)", re.DOTALL)
FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class Options:
    """The options of the command.

    Attributes:
        url: the base URL of the server's API.
        model: the name of the model; None for the only one of the server.
        shape: how conversations are made.
        trace: the file of conversations that are sent in place of the shape's.
        listed: these conversations.
        num_clients: the clients of a closed loop.
        num_conversations: how many are sent; None if the duration or the trace decides.
        duration_s: when no further one begins.
        num_warm_up: requests before the test that are not measured.
        fields: further fields of each request.
        timeout_s: the time of a request.
        key: the API key.
        slo: the largest latencies of a good request.
    """

    url: str
    model: str | None
    shape: Shape
    trace: Path | None
    listed: Sequence[Conversation]
    num_clients: int
    num_conversations: int | None
    duration_s: float | None
    num_warm_up: int
    fields: dict[str, Any]
    timeout_s: float
    key: str
    slo: dict[str, float]

    def load(self, model: str) -> Load:
        """Return what is sent."""
        conversations = self.shape.conversations()
        is_open = self.shape.rate is not None
        if self.listed:
            is_open = self.listed[0].at_s is not None
            conversations = iter(self.listed)
        return Load(
            shape=self.shape,
            conversations=islice(conversations, self.num_conversations),
            fields={"model": model, **self.fields},
            num_clients=self.num_clients,
            is_open=is_open,
            duration_s=self.duration_s,
        )

    def warm_up(self, model: str) -> Load:
        """Return what is sent before the test, one after the other."""
        shape = replace(self.shape, seed=~self.shape.seed, rate=None, turns=1)
        conversations = islice(shape.conversations(), self.num_warm_up)
        return Load(shape, conversations, {"model": model, **self.fields}, 1, is_open=False)


@click.command()
@click.argument("url", required=False)
@click.option("--model", metavar="NAME", show_default="the server's only one", help="Model.")
@click.option(
    "--clients",
    type=click.IntRange(1, 4096),
    show_default="1",
    help="Closed loop: so many clients, each with one request at a time.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 10_000, min_open=True),
    help="Open loop: so many conversations arrive per second, in a Poisson process; latencies "
    "count from their arrival.",
)
@click.option(
    "-n",
    "--requests",
    "num_conversations",
    type=click.IntRange(min=1),
    show_default=str(DEFAULT_REQUESTS),
    help="Conversations.",
)
@click.option(
    "--seconds",
    "duration_s",
    type=click.FloatRange(0, min_open=True),
    help="Begin none after this time, in place of --requests.",
)
@click.option(
    "--prompt-words",
    default="100",
    show_default=True,
    metavar="RANGE",
    help="Words of a prompt, such as 50..200; a word is about a token.",
)
@click.option(
    "--answer-tokens",
    default="64",
    show_default=True,
    metavar="RANGE",
    help="Largest number of tokens of an answer.",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="SIZE",
    help="An image before the text, such as 640x480 or 320x240..1280x960; may be repeated.",
)
@click.option(
    "--repeat-images",
    "num_repeated",
    type=click.IntRange(min=0),
    default=0,
    show_default="none",
    help="Use so many different images, again and again.",
)
@click.option(
    "--shared-prefix",
    "shared_words",
    type=click.IntRange(0, MAX_WORDS),
    default=0,
    show_default="none",
    metavar="WORDS",
    help="First words of all prompts that are equal.",
)
@click.option(
    "--turns",
    type=click.IntRange(1, MAX_TURNS),
    default=1,
    show_default=True,
    help="Requests of a conversation, each with the answers before.",
)
@click.option(
    "--trace",
    type=FILE,
    help="JSON lines of conversations, with prompt_words, answer_tokens, images, turns and at_s.",
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME=JSON",
    help="A further field of each request, such as ignore_eos=true; may be repeated.",
)
@click.option(
    "--slo",
    multiple=True,
    metavar="NAME=SECONDS",
    help=f"Largest latency of a good request: {', '.join(LATENCIES)}; may be repeated.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides texts and arrivals.")
@click.option(
    "--warm-up",
    "num_warm_up",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Requests before the test that are not measured.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds of a request.",
)
@click.option("--key-env", metavar="NAME", help="Environment variable with the API key.")
@click.option("-o", "--output", type=FILE, help="Write the result, as JSON, to this file.")
@click.option("--svg", "svg_file", type=FILE, help="Draw the latencies into this file.")
@click.option(
    "--compare",
    nargs=2,
    type=FILE,
    metavar="A B",
    help="Compare two results of --output, in place of a test.",
)
def bench(*, url: str | None, compare: tuple[Path, Path] | None, **options: Any) -> None:
    """Measure the server at URL, such as http://127.0.0.1:8000/v1, under load.

    It works with every server that streams chat completions as OpenAI's API does. Prompts and
    images differ from each other, so that no cache serves them, unless an option says otherwise.
    """
    output, svg_file = options.pop("output"), options.pop("svg_file")
    if compare is not None:
        if url is not None:
            raise click.UsageError("--compare takes no URL.")
        results = [report.read(path) for path in compare]
        _show_comparison(*results)
    elif url is None:
        raise click.UsageError("Missing argument 'URL'.")
    else:
        results = [asyncio.run(_measured(_options(url, **options)))]
        _show(results[0])
        if output is not None:
            report.write(results[0], output)
    if svg_file is not None:
        report.write_text(chart.svg(results), svg_file)


def _options(  # noqa: PLR0913 - the options of the command
    url: str,
    *,
    model: str | None,
    clients: int | None,
    rate: float | None,
    num_conversations: int | None,
    duration_s: float | None,
    prompt_words: str,
    answer_tokens: str,
    images: Sequence[str],
    num_repeated: int,
    shared_words: int,
    turns: int,
    trace: Path | None,
    fields: Sequence[str],
    slo: Sequence[str],
    seed: int,
    num_warm_up: int,
    timeout_s: float,
    key_env: str | None,
) -> Options:
    """Return the checked options.

    Raises:
        RequestError, click.UsageError: one of them is wrong.
    """
    if clients is not None and rate is not None:
        raise click.UsageError("--clients is a closed loop and --rate an open one; give one.")
    if trace is not None and rate is not None:
        raise click.UsageError("--rate is without effect with --trace, whose at_s are arrivals.")
    if not re.match(r"https?://[^/]", url):
        raise RequestError(f"{url!r} is no http address", hint="such as http://127.0.0.1:8000/v1")
    if len(images) > MAX_IMAGES:
        raise RequestError(f"a conversation has at most {MAX_IMAGES} images")
    if num_conversations is None and duration_s is None and trace is None:
        num_conversations = DEFAULT_REQUESTS
    shape = Shape(
        prompt_words=Range.parsed(prompt_words, MAX_WORDS),
        answer_tokens=Range.parsed(answer_tokens, MAX_WORDS),
        sizes=tuple(map(Sizes.parsed, images)),
        turns=turns,
        shared_words=shared_words,
        num_repeated=num_repeated,
        rate=rate,
        seed=seed,
    )
    return Options(
        url=url,
        model=model,
        shape=shape,
        trace=trace,
        listed=[] if trace is None else read_trace(trace),
        num_clients=clients or 1,
        num_conversations=num_conversations,
        duration_s=duration_s,
        num_warm_up=num_warm_up,
        fields=dict(map(_field, fields)),
        timeout_s=timeout_s,
        key=_key(key_env),
        slo=parse_slo(slo),
    )


def _field(text: str) -> tuple[str, Any]:
    """Return the name and the value of a field.

    Raises:
        RequestError: the text is no field.
    """
    match = _FIELD.fullmatch(text)
    with suppress(msgspec.DecodeError):
        if match is not None:
            return match[1], msgspec.json.decode(match[2])
    raise RequestError(f"{text!r} is no field such as temperature=0 or stop='[\"end\"]'")


def _key(name: str | None) -> str:
    """Return the API key.

    Raises:
        RequestError: the environment variable is not set.
    """
    if name is None:
        return ""
    if not (key := os.environ.get(name, "")):
        raise RequestError(f"the environment variable {name} is not set")
    return key


async def _measured(options: Options) -> Result:
    """Run a test.

    Raises:
        RequestError: the server cannot be reached, or has several models and none is named.
    """
    async with Client(options.url, options.key, options.timeout_s) as client:
        model = await _model(client, options)
        if options.num_warm_up:
            await LoadTest(options.warm_up(model), client).run()
        test, started = LoadTest(options.load(model), client), report.clock()
        cpu_s = time.process_time()
        with suppress(NotImplementedError):  # on Windows Ctrl-C ends the program
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, test.stop)
        showing = asyncio.create_task(_show_progress(test, client))
        try:
            await test.run()
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError):
                await showing
        return Result(
            format=report.FORMAT,
            command=sys.argv[1:],
            url=options.url,
            model=model,
            load=_described(options),
            versions=report.versions(),
            clock=started,
            summary=summary_of(test.outcomes, options.slo, time.process_time() - cpu_s),
            outcomes=test.outcomes,
        )


async def _model(client: Client, options: Options) -> str:
    """Return the name of the model.

    Raises:
        RequestError: the server cannot be reached, or has several models and none is named.
    """
    try:
        models = await client.models()
    except AnswerError as failure:
        if options.model is not None and failure.name not in ("connection_failed", "timeout"):
            return options.model  # a server without a list of models
        raise RequestError(
            f"GET {client.url}/models failed: {failure.name}",
            hint="is the server running, and does the URL end with /v1?",
        ) from failure
    if options.model is not None:
        return options.model
    if len(models) != 1:
        names = ", ".join(map(report.shown, models[:20]))
        raise RequestError(
            f"the server has the models {names or '(none)'}", hint="choose by --model"
        )
    return models[0]


def _described(options: Options) -> dict[str, str]:
    """Return the options that make the load."""
    shape = options.shape
    found: dict[str, Any] = {
        "clients": options.num_clients if shape.rate is None else None,
        "rate": shape.rate,
        "requests": options.num_conversations,
        "seconds": options.duration_s,
        "prompt_words": f"{shape.prompt_words.low}..{shape.prompt_words.high}",
        "answer_tokens": f"{shape.answer_tokens.low}..{shape.answer_tokens.high}",
        "images": " ".join(str(sizes) for sizes in shape.sizes) or None,
        "repeat_images": shape.num_repeated or None,
        "shared_prefix": shape.shared_words or None,
        "turns": shape.turns,
        "trace": options.trace,
        "fields": msgspec.json.encode(options.fields).decode(),
        "seed": shape.seed,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


async def _show_progress(test: LoadTest, client: Client) -> None:
    """Write the progress to standard error, if it is a terminal."""
    if not sys.stderr.isatty():
        return
    while True:
        await asyncio.sleep(PERIOD_S)
        num_failed = sum(outcome.error is not None for outcome in test.outcomes)
        text = f"{client.now_s():,.0f} s: {len(test.outcomes):,} ended, {num_failed:,} failed, "
        click.echo(f"\r{text}{test.num_in_flight:,} in flight    ", err=True, nl=False)


def _show(result: Result) -> None:
    if sys.stderr.isatty():
        click.echo("\r" + " " * 60 + "\r", err=True, nl=False)
    click.echo(f"{report.shown(result.model)} at {result.url}\n")
    _show_table(report.latency_rows(result.summary))
    click.echo()
    _show_table(report.figure_rows(result.summary))
    for warning in report.warnings(result.summary):
        click.secho(f"warning: {warning}", err=True, fg="yellow")


def _show_comparison(one: Result, other: Result) -> None:
    for letter, result in zip("AB", (one, other), strict=True):
        name = report.shown(result.model)
        click.echo(f"{letter}: {name} at {report.shown(result.url)}, {result.clock.started_at}")
    click.echo()
    _show_table(report.comparison_rows(one.summary, other.summary))
    if differing := report.differing_options(one, other):
        names = ", ".join(map(report.shown, differing))
        click.secho(f"warning: the loads differ: {names}", err=True, fg="yellow")


def _show_table(rows: report.Rows) -> None:
    for number, line in enumerate(report.aligned(rows)):
        click.secho(line, bold=not number)
