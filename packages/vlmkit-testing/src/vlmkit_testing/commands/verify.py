"""``vlmkit verify``: checks that encoders agree, and answers are reproducible."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output

if TYPE_CHECKING:
    from vlmkit.types.image import Image
    from vlmkit_testing.verify.answers import Agreement
    from vlmkit_testing.verify.encoders import EncoderComparison, EncoderReport

TOLERANCE = 1e-2
WAYS = {"cached": "from the cache", "batch": "in a batch"}


@click.command()
@click.argument("model", required=False)
@click.option(
    "--image",
    "images",
    metavar="FILE|URL|-",
    multiple=True,
    help="Picture to encode and ask about; may be repeated. One is drawn by default.",
)
@click.option("--prompt", default="Describe what you see.", help="What to ask.")
@click.option(
    "--encoder",
    "encoders",
    metavar="NAME",
    multiple=True,
    help="Media encoder to compare; name two or more. All that can serve by default.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=TOLERANCE,
    help="Most that a row may differ, as a part of its size. Quantised encoders need more.",
)
@click.option(
    "-m",
    "--max-tokens",
    type=click.IntRange(min=1),
    default=32,
    help="Most tokens to generate.",
)
@options.as_json
@options.configured
def verify(
    *,
    model: str | None,
    images: Sequence[str],
    prompt: str,
    encoders: Sequence[str],
    tolerance: float,
    max_tokens: int,
    as_json: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Compare MODEL's encoders, and its answers cached and in a batch.

    Every media encoder that can serve MODEL here encodes the same pictures, one after the other.
    Then a prompt is answered alone, again from the cache, and in a batch. Exits with 1 if encoders
    differ by more than the tolerance, or answers although the engine claims that they never do.
    """
    from vlmkit.assembly.load import find_files
    from vlmkit.cli.images import opened_image
    from vlmkit.cli.loading import opened, wanted
    from vlmkit_testing.verify.answers import agreements
    from vlmkit_testing.verify.encoders import EncoderComparison

    if len(set(encoders)) == 1:
        raise click.UsageError("one encoder has nothing to agree with: name two, or none for all")
    target = wanted(model, config_file, assignments)
    pictures = [opened_image(source, target.config.pipeline) for source in images]
    checkpoint = find_files(target.entry, target.config, target.plugins)
    comparison = EncoderComparison(target.entry, target.config, target.plugins, checkpoint)
    report = None
    if comparison.is_seeing:
        pictures = pictures or [_drawn()]
        report = _compared(comparison, encoders, pictures)
    with opened(target) as loaded:
        answers = agreements(loaded.runner, prompt, pictures, max_tokens=max_tokens)
    if as_json:
        output.json(_as_json(report, answers, tolerance))
    else:
        _write(report, answers, tolerance)
    is_good = report is None or report.is_within(tolerance)
    if not (is_good and all(agreement.is_sound for agreement in answers)):
        click.get_current_context().exit(1)


def _compared(
    comparison: "EncoderComparison", encoders: Sequence[str], pictures: "Sequence[Image]"
) -> "EncoderReport":
    from contextlib import closing

    from vlmkit.cli.loading import Stages

    with closing(Stages()) as stages:
        names = list(dict.fromkeys(encoders)) or comparison.names()
        return comparison.run(names, pictures, stages)


def _drawn() -> "Image":
    """Return a fixed image with an edge, a curve and a colour gradient."""
    import PIL.Image
    import PIL.ImageDraw

    from vlmkit.types.image import Image

    slope = PIL.Image.linear_gradient("L").resize((256, 192))
    drawn = PIL.Image.merge("RGB", (slope, slope.transpose(PIL.Image.Transpose.ROTATE_180), slope))
    pen = PIL.ImageDraw.Draw(drawn)
    pen.rectangle((30, 40, 110, 150), fill="firebrick")
    pen.ellipse((130, 60, 230, 160), fill="gold", outline="black", width=4)
    return Image.open(drawn)


def _as_json(
    report: "EncoderReport | None", answers: "Sequence[Agreement]", tolerance: float
) -> dict[str, Any]:
    return {
        "tolerance": tolerance,
        "encoders": None if report is None else asdict(report),
        "encoders_agree": None if report is None else report.is_within(tolerance),
        "answers": [{**asdict(a), "agrees": a.agrees, "is_sound": a.is_sound} for a in answers],
    }


def _write(
    report: "EncoderReport | None", answers: "Sequence[Agreement]", tolerance: float
) -> None:
    if report is None:
        click.echo("encoders: this model takes no images")
    else:
        _write_encoders(report, tolerance)
    click.echo()
    rows = [(WAYS[a.way], str(a.num_answers), str(a.num_cached_tokens), _said(a)) for a in answers]
    output.columns(("ANSWERED", "ANSWERS", "CACHED TOKENS", "AGAINST ALONE"), rows)


def _write_encoders(report: "EncoderReport", tolerance: float) -> None:
    rows = [
        (
            f"{pair.one} - {pair.other}",
            level.level,
            *([""] * 3 if level.problem else _numbers(level)),
            level.problem or ("agree" if level.is_within(tolerance) else "differ"),
        )
        for pair in report.pairs
        for level in pair.levels
    ]
    if rows:
        header = ("ENCODERS", "LEVEL", "ABSOLUTE", "RELATIVE", "COSINE", f"WITHIN {tolerance:g}")
        output.columns(header, rows)
    for name, reason in report.failures.items():
        click.echo(f"encoder {name}: {reason}")
    if len(report.names) == 1:
        click.echo(f"encoder {report.names[0]}: nothing else to compare it with")
    if not report.is_within(tolerance) and not report.failures:
        click.echo("quantised encoders differ more than others: see --tolerance")


def _numbers(level: Any) -> tuple[str, str, str]:
    return (
        f"{level.largest_absolute:.2e}",
        f"{level.largest_relative:.2e}",
        f"{level.least_cosine:.6f}",
    )


def _said(agreement: "Agreement") -> str:
    if agreement.agrees:
        return "the same tokens"
    first = ", ".join(map(str, agreement.first_differences))
    note = "" if agreement.is_promised else " (this engine does not claim that they never do)"
    return f"{len(agreement.first_differences)} differ, from token {first} on{note}"
