"""``vlmkit plan``: how much memory a model takes, and what fits."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output

if TYPE_CHECKING:
    from vlmkit.assembly.memory_report import MemoryReport, Request
    from vlmkit.config import Config, ModelEntry
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.loader import Plugins

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
IMAGE = re.compile(r"(\d{1,5})x(\d{1,5})")


class ByteSize(click.ParamType[int]):
    """A number of bytes, such as ``16G``; units are powers of 1,024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        found = SIZE.fullmatch(str(value).strip())
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no size such as 16G or 512M", param, ctx)
        return int(float(found[1]) * UNITS[found[2].upper()])


class ImageSize(click.ParamType[tuple[int, int]]):
    """Width and height in pixels, such as ``1024x768``."""

    name = "WxH"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return width and height."""
        found = IMAGE.fullmatch(str(value).strip().lower())
        if found is None or "0" in found.groups():
            self.fail(f"{value!r} is no size of an image such as 1024x768", param, ctx)
        return int(found[1]), int(found[2])


@click.command()
@click.argument("model", required=False)
@click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(min=32),
    show_default="the longest that the model takes",
    help="Tokens of a sequence, prompt and answer together.",
)
@click.option(
    "--sequences",
    "num_sequences",
    type=click.IntRange(min=1, max=65_536),
    default=1,
    help="Requests that are computed at once.",
)
@click.option(
    "--image", "image_size", type=ImageSize(), help="Size of the image of each request, in pixels."
)
@click.option(
    "--memory",
    "memory_bytes",
    type=ByteSize(),
    help="Memory of the machine, such as 16G; this one's is not considered then.",
)
@options.as_json
@options.configured
@click.pass_context
def plan(
    context: click.Context,
    *,
    model: str | None,
    context_tokens: int | None,
    num_sequences: int,
    image_size: tuple[int, int] | None,
    memory_bytes: int | None,
    as_json: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Report how much memory MODEL takes, and what fits.

    Reads no weights, and of a model on a hub only its config and the headers of its weights. Exits
    with 1 if MODEL cannot be served, or exceeds the memory.
    """
    from vlmkit.assembly.memory_report import Request
    from vlmkit.assembly.sources import inspected
    from vlmkit.cli.loading import wanted

    target = wanted(model, config_file, assignments)
    request = Request(context_tokens, num_sequences, image_size)
    inspect = partial(
        _report,
        entry=target.entry,
        config=target.config,
        plugins=target.plugins,
        request=request,
        memory_bytes=memory_bytes,
    )
    report = inspected(
        target.entry.model,
        target.plugins,
        target.entry.revision,
        projector=target.entry.projector,
        inspect=inspect,
        is_final=lambda _: True,
    )
    if as_json:
        output.json(report)
    else:
        _write(report)
    if report["fit"] is not None and not report["fit"]["fits"]:
        context.exit(1)


def _report(
    checkpoint: "Checkpoint",
    entry: "ModelEntry",
    config: "Config",
    plugins: "Plugins",
    request: "Request",
    memory_bytes: int | None,
) -> dict[str, Any]:
    """Return the report on a model.

    Raises:
        VlmkitError: the model cannot be served here, as at load.
    """
    from vlmkit.assembly.memory_report import memory_report
    from vlmkit.cli.doctor import verdicts

    checkpoint = replace(checkpoint, is_for_another_machine=memory_bytes is not None)
    found = memory_report(checkpoint, entry, config, plugins, request)
    devices = dict.fromkeys(line.device for line in found.lines)
    return {
        "model": {"name": checkpoint.name, "family": checkpoint.model_type or None},
        "load": {
            "context_tokens": found.context_tokens,
            "num_sequences": found.num_sequences,
            "image_size": request.image_size,
            "image_tokens": found.image_tokens,
        },
        "needs": [
            {"component": line.component, "device": line.device} | asdict(line.need)
            for line in found.lines
        ],
        "totals": [
            {
                "component": "all",
                "name": "total",
                "device": device,
                "num_bytes": found.num_bytes(device),
                "detail": "",
            }
            for device in devices
        ],
        "renderer_bytes": found.renderer_bytes,
        "cache_growth_bytes": found.cache_growth_bytes,
        "limits": None if found.limits is None else asdict(found.limits),
        "unplanned": found.unplanned,
        "rejected": [
            {key: verdict[key] for key in ("component", "provider", "reason")}
            for verdict in verdicts(checkpoint, config, plugins, entry)
            if verdict["component"] in ("engine", "media_encoder") and not verdict["is_chosen"]
        ],
        "fit": None if memory_bytes is None else _fit(found, memory_bytes),
    }


def _fit(report: "MemoryReport", memory_bytes: int) -> dict[str, Any]:
    """Return whether a load fits into memory, what fits, and which settings to change."""
    room = memory_bytes - report.fixed_bytes
    token_bytes, sequence_bytes = report.growth("token_bytes"), report.growth("sequence_bytes")
    context, num = report.context_tokens or 0, report.num_sequences
    most = report.limits.max_sequence_tokens if report.limits is not None else 0
    max_sequences = max_context = None
    if token_bytes and context:
        max_sequences = max(0, room // (context * token_bytes + sequence_bytes))
        max_context = max(0, min(most, (room // num - sequence_bytes) // token_bytes))
    fits = report.num_bytes(report.device) <= memory_bytes
    return {
        "memory_bytes": memory_bytes,
        "device": report.device,
        "fits": fits,
        "max_sequences": max_sequences,
        "max_context_tokens": max_context,
        "changes": _changes(report, room, max_sequences, max_context),
    }


def _changes(
    report: "MemoryReport", room: int, max_sequences: int | None, max_context: int | None
) -> list[str]:
    """Return settings with which the server keeps to the memory, or reaches the load."""
    changes: list[str] = []
    limits = report.limits
    if limits is None:
        return changes
    tokens = (report.context_tokens or 0) * report.num_sequences
    if room <= 0:
        changes.append('engine.dtype = "bfloat16", or a smaller or quantized model')
        return changes
    if max_sequences is not None and max_sequences < report.num_sequences:
        changes.append(f"engine.max_sequences = {max(1, max_sequences)}")
    if max_context is not None and max_context < (report.context_tokens or 0):
        changes.append(f"engine.max_sequence_tokens = {max_context}")
    if report.num_sequences > limits.max_sequences and not changes:
        changes.append(f"engine.max_sequences = {report.num_sequences}")
    if tokens > limits.capacity_tokens or changes:
        num = room // max(1, report.growth("token_bytes"))
        changes.append(f"engine.cache_tokens = {num if changes else tokens}")
    return changes


def _write(report: Mapping[str, Any]) -> None:
    family = report["model"]["family"] or "no family"
    click.echo(f"model {report['model']['name']} ({family})")
    click.echo(_load(report["load"]) + "\n")
    rows = [
        (
            each["component"],
            each["name"],
            each["device"],
            output.size(each["num_bytes"]),
            each["detail"],
        )
        for each in (*report["needs"], *report["totals"])
    ]
    output.columns(("COMPONENT", "MEMORY", "DEVICE", "SIZE", "DETAIL"), rows)
    if report["renderer_bytes"] is not None:
        size = output.size(report["renderer_bytes"])
        click.echo(f"\neach renderer process (server.num_renderers) takes {size} besides")
    if report["cache_growth_bytes"]:
        size = output.size(report["cache_growth_bytes"])
        click.echo(
            f"\nearlier prompts stay in the cache, up to {size} besides (engine.cache_tokens)"
        )
    for component in report["unplanned"]:
        click.echo(f"the provider of {component} does not say what it takes", err=True)
    if report["rejected"]:
        click.echo("\nnot used")
        names = ("component", "provider", "reason")
        reasons = [[each[name] for name in names] for each in report["rejected"]]
        output.columns([name.upper() for name in names], reasons)
    if report["fit"] is not None:
        _write_fit(report["fit"])


def _load(load: Mapping[str, Any]) -> str:
    context = load["context_tokens"]
    tokens = "of unknown length" if context is None else f"of {context:,} tokens"
    text = f"{load['num_sequences']:,} sequences {tokens}"
    if load["image_size"] is None:
        return text
    width, height = load["image_size"]
    known = load["image_tokens"]
    more = "" if known is None else f", which is {known:,} tokens"
    return f"{text}, each with an image of {width}x{height}{more}"


def _write_fit(fit: Mapping[str, Any]) -> None:
    size = output.size(fit["memory_bytes"])
    click.echo(f"\n{size} on {fit['device']}: {'it fits' if fit['fits'] else 'it does not fit'}")
    if fit["max_sequences"] is not None:
        click.echo(f"  most sequences of this length: {fit['max_sequences']:,}")
        click.echo(f"  longest sequences, so many at once: {fit['max_context_tokens']:,} tokens")
    for change in fit["changes"]:
        click.echo(f"  change: {change}")
