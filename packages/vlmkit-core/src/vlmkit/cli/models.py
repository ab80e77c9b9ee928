"""``vlmkit models``: lists, downloads, deletes and describes models."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from vlmkit.cli import options, output
from vlmkit.cli.group import CommandGroup
from vlmkit.kit.install_command import install_command
from vlmkit.kit.model_uri import shown

if TYPE_CHECKING:
    from vlmkit.config import Config
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.loader import Plugins

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@click.group(cls=CommandGroup)
def models() -> None:
    """List, download, delete and describe models."""


@models.command("list")
@options.as_json
@options.configured
def list_(*, as_json: bool, config_file: Path | None, assignments: Sequence[str]) -> None:
    """List packaged models, and downloaded models."""
    from vlmkit.cli.loading import read_with_plugins

    _, plugins = read_with_plugins(config_file, assignments)
    rows = _listed(plugins)
    if as_json:
        output.json([{"model": row[0], "source": row[1], "description": row[2]} for row in rows])
    elif rows:
        output.columns(("MODEL", "SOURCE", "DESCRIPTION"), rows)
    else:
        demo = install_command("vlmkit-demo")
        click.echo(f"none; try: {demo}, or vlmkit models pull OWNER/NAME")


@models.command()
@click.argument("model")
@click.option("--revision", help="Branch, tag or commit; the newest by default.")
@click.option("--force", is_flag=True, help="Download it even if nothing here can serve it.")
@options.configured
def pull(
    *,
    model: str,
    revision: str | None,
    force: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Download MODEL from a hub, or its newest commit.

    Downloads small files first, and weights only if the model can be served here.
    """
    from vlmkit.assembly.load import find_files
    from vlmkit.assembly.sources import resolve
    from vlmkit.cli.loading import read_with_plugins, wanted_entries

    layered, plugins = read_with_plugins(config_file, assignments)
    (entry,) = wanted_entries([model], layered.config, plugins)
    entry = msgspec.structs.replace(entry, revision=revision or entry.revision)
    started = time.perf_counter()
    if force:
        checkpoint = resolve(
            entry.model, plugins, entry.revision, projector=entry.projector, is_update=True
        )
    else:
        checkpoint = find_files(entry, layered.config, plugins, is_update=True)
    click.echo(f"fetched in {time.perf_counter() - started:.1f} s", err=True)
    click.echo(str(checkpoint.path))


models.add_command(pull, "fetch")


@models.command()
@click.argument("model")
@click.option("--revision", help="Branch, tag or commit; all of them by default.")
@options.configured
def rm(
    *, model: str, revision: str | None, config_file: Path | None, assignments: Sequence[str]
) -> None:
    """Delete the downloaded MODEL from this disk.

    Other programs that use the same cache lose it, too.
    """
    from vlmkit.assembly.sources import remove
    from vlmkit.cli.loading import read_with_plugins

    _, plugins = read_with_plugins(config_file, assignments)
    num_bytes = remove(model, plugins, revision)
    click.echo(f"deleted {shown(model)}: {output.size(num_bytes)}", err=True)


@models.command()
@click.argument("model")
@options.as_json
@options.configured
def info(
    *, model: str, as_json: bool, config_file: Path | None, assignments: Sequence[str]
) -> None:
    """Describe MODEL from its small files; downloads no weights."""
    from vlmkit.assembly.sources import inspected
    from vlmkit.cli.loading import read_with_plugins, wanted_entries

    layered, plugins = read_with_plugins(config_file, assignments)
    (entry,) = wanted_entries([model], layered.config, plugins)
    facts, _ = inspected(
        entry.model,
        plugins,
        entry.revision,
        projector=entry.projector,
        inspect=partial(_facts, config=layered.config, plugins=plugins),
        is_final=lambda found: bool(found[1]),
    )
    if as_json:
        output.json(facts)
    else:
        shown = {**facts, "weight_bytes": output.size(facts["weight_bytes"])}
        output.columns(
            ("FACT", "VALUE"),
            [(name.replace("_", " "), _written(value)) for name, value in shown.items()],
        )


def _facts(
    checkpoint: "Checkpoint", config: "Config", plugins: "Plugins"
) -> tuple[dict[str, Any], list[str]]:
    """Return facts about a model, and the components without a provider for it."""
    from vlmkit.assembly.load import sees
    from vlmkit.cli.doctor import unserved, verdicts

    found = list(verdicts(checkpoint, config, plugins))
    computed = {verdict["component"]: verdict["how"] for verdict in found if verdict["how"]}
    facts = {
        **describe(checkpoint),
        "takes_images": sees(checkpoint, plugins),
        "precision": computed,
    }
    return facts, unserved(found)


def describe(checkpoint: "Checkpoint") -> dict[str, Any]:
    """Return the facts in a model's small files."""
    from vlmkit.kit import weight_files
    from vlmkit.kit.safetensors_header import weights_of

    weights = weights_of(checkpoint)
    own = weight_files.files_of_one(checkpoint)
    return {
        "name": checkpoint.name,
        "path": None if checkpoint.is_preview else str(checkpoint.path),
        "revision": checkpoint.revision,
        "family": checkpoint.model_type or None,
        "architectures": checkpoint.config.get("architectures") or [],
        "parameters": weights.num_parameters,
        "parameters_by_type": weights.num_by_dtype,
        "weight_bytes": sum(file.stat().st_size for file in own) or weights.num_bytes,
        "weight_files": len(own or weights.files),
        "context_tokens": _context_tokens(checkpoint.answering),
        "has_chat_template": _has_chat_template(checkpoint),
    }


def _listed(plugins: "Plugins") -> list[tuple[str, str, str]]:
    from vlmkit.assembly.sources import fetched

    rows = []
    for provider in plugins.models:
        if provider.is_packaged:
            rows.append((plugins.models.key(provider), provider.plugin, provider.description))
        rows += [(shown(name), provider.plugin, "fetched") for name in fetched(provider)]
    return rows


def _context_tokens(config: dict[str, Any]) -> int | None:
    """Return the maximum sequence length in a config, first from its text part."""
    parts = [config.get(key) for key in ("text_config", "llm_config", "language_config")]
    for part in (*parts, config):
        for key in CONTEXT_KEYS:
            if isinstance(part, dict) and isinstance(part.get(key), int):
                return int(part[key])
    return None


def _has_chat_template(checkpoint: "Checkpoint") -> bool:
    return (
        checkpoint.has("chat_template.*")
        or "chat_template" in checkpoint.read_json("tokenizer_config.json")
        or "chat_template" in checkpoint.read_json("processor_config.json")
    )


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not stated"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_written(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
