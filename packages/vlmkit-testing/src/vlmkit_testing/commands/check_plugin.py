"""``vlmkit plugins check``: runs the contract of an installed provider."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vlmkit.cli import options, output

if TYPE_CHECKING:
    from vlmkit.config import LayeredConfig, ModelEntry
    from vlmkit.plugins.loader import Plugins
    from vlmkit_testing.verify.finding import Finding
    from vlmkit_testing.verify.subjects import ModelParts

OUTCOMES = ("held", "skipped", "failed")


@click.command()
@click.argument("name")
@click.argument("model", required=False)
@click.option("--tolerance", type=click.FloatRange(min=0), help="How far numbers may lie apart.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What a media loader opens, or a source of models reads; name two or more.",
)
@click.option("--call-tools", is_flag=True, help="Call the tools of a source with nonsense.")
@options.as_json
@options.configured
def check(
    *,
    name: str,
    model: str | None,
    tolerance: float | None,
    files: Sequence[Path],
    call_tools: bool,
    as_json: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Run the contracts that the provider NAME must keep.

    Tokenizers, media encoders, engines and runners are tried on MODEL. Needs pytest.
    """
    from vlmkit.assembly.sources import runner_of_scheme
    from vlmkit.cli.loading import read_with_plugins, wanted_entries
    from vlmkit_testing.verify import contracts, subjects

    layered, found = read_with_plugins(config_file, assignments)
    sources = found.models
    reads_models = sources.offers(name) and bool(sources.get(name).suffixes)
    entry = None if model is None else wanted_entries([model], layered.config, found)[0]
    is_remote = entry is not None and runner_of_scheme(entry.model, found) is not None
    tried = None if entry is None or is_remote else _parts(entry, layered, found)
    with closing(tried) if tried else nullcontext():
        given = subjects.Given(
            model=tried,
            entry=entry,
            files=() if reads_models else tuple(file.read_bytes() for file in files),
            paths=tuple(file.resolve() for file in files),
            calls_tools=call_tools,
            environ=_environ(config_file, layered),
        )
        findings = contracts.check(name, found, layered.config, given, tolerance)
    counts = {outcome: sum(f.outcome == outcome for f in findings) for outcome in OUTCOMES}
    if as_json:
        output.json({**counts, "findings": findings})
    else:
        _tell(findings, counts)
    if counts["failed"] or not counts["held"]:
        raise click.exceptions.Exit(1)


def _tell(findings: "Sequence[Finding]", counts: dict[str, int]) -> None:
    """Write a table of all findings, each failure in full, and the reasons of skipped tests."""
    rows = [(f.kind, f.outcome, f.sentence) for f in findings]
    output.columns(("KIND", "OUTCOME", "SENTENCE"), sorted(rows))
    for finding in findings:
        if finding.outcome == "failed":
            click.echo(f"\n{finding.as_text()}")
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    click.echo(summary if counts["held"] or counts["failed"] else f"{summary}: nothing was tried")
    skipped = Counter((f.kind, f.reason) for f in findings if f.outcome == "skipped")
    for (kind, reason), number in skipped.items():
        click.echo(f"skipped {number} of {kind}: {reason}")


def _parts(entry: "ModelEntry", layered: "LayeredConfig", found: "Plugins") -> "ModelParts":
    """Return the parts of the model that components are tried on."""
    from vlmkit.assembly.sources import resolve
    from vlmkit_testing.verify.subjects import ModelParts

    checkpoint = resolve(entry.model, found, entry.revision, projector=entry.projector)
    checkpoint = replace(checkpoint, path=checkpoint.path.resolve())  # it is read elsewhere
    return ModelParts(entry, layered.config, found, checkpoint, is_partial=True)


def _environ(config_file: Path | None, layered: "LayeredConfig") -> dict[str, str]:
    """Return variables with which another process finds the same local plugins."""
    environ = {} if config_file is None else {"VLMKIT_CONFIG": str(config_file.resolve())}
    files = [str(Path(file).expanduser().resolve()) for file in layered.config.plugins.files]
    return environ | ({"VLMKIT_PLUGINS": json.dumps(files)} if files else {})
