"""``vlmkit doctor``: describes this machine, and reports which providers can serve a model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmkit.cli import options, output
from vlmkit.errors import VlmkitError

if TYPE_CHECKING:
    from vlmkit.config import Config, ModelEntry
    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.loader import Plugins
    from vlmkit.plugins.registry import BuildContext, Provider, Registry


@click.command()
@click.argument("model", required=False)
@options.as_json
@options.configured
def doctor(
    *,
    model: str | None,
    as_json: bool,
    config_file: Path | None,
    assignments: Sequence[str],
) -> None:
    """Report which providers can serve MODEL here, and why others cannot.

    Describes this machine first. Neither reads nor downloads weights. Exits with 1 if MODEL cannot
    be served.
    """
    from vlmkit.assembly.sources import inspected, runner_of_scheme
    from vlmkit.cli.loading import read_with_plugins, wanted_entries
    from vlmkit.plugins.machine import facts

    layered, plugins = read_with_plugins(config_file, assignments, diagnoses=True)
    report: dict[str, Any] = {"machine": facts(plugins)}
    if model is not None:
        (entry,) = wanted_entries([model], layered.config, plugins)
        if (owner := runner_of_scheme(entry.model, plugins)) is not None:
            report |= _remote_report(owner, entry, layered.config, plugins)
        else:
            report |= inspected(
                entry.model,
                plugins,
                entry.revision,
                projector=entry.projector,
                inspect=partial(_model_report, config=layered.config, plugins=plugins, entry=entry),
                is_final=lambda found: bool(found["unserved"]),
            )
    if as_json:
        output.json(report)
    else:
        _write(report)
    if report.get("unserved"):
        click.get_current_context().exit(1)


def _model_report(
    checkpoint: "Checkpoint", config: "Config", plugins: "Plugins", entry: "ModelEntry"
) -> dict[str, Any]:
    """Return the report on a model."""
    found = list(verdicts(checkpoint, config, plugins, entry))
    return {
        "model": {"name": checkpoint.name, "family": checkpoint.model_type or None},
        "verdicts": found,
        "generation_config": _ignored_generation_config(checkpoint),
        "unserved": unserved(found),
    }


def _remote_report(
    owner: "Provider[Any]", entry: "ModelEntry", config: "Config", plugins: "Plugins"
) -> dict[str, Any]:
    """Return the report on a model whose reference a runner owns; asks no other server."""
    from vlmkit.assembly.runners import examine_remote
    from vlmkit.assembly.sources import name_of
    from vlmkit.plugins.kinds import RUNNER

    how, reason = "", ""
    try:
        how = examine_remote(owner, entry, config, plugins)
    except VlmkitError as error:
        reason = f"refuses: {error}" + (f"; {error.hint}" if error.hint else "")
    verdict = {
        "component": RUNNER.name,
        "provider": plugins.of(RUNNER).key(owner),
        "is_chosen": not reason,
        "how": how,
        "reason": reason or None,
        "priority": None,
        "is_known": True,
    }
    return {
        "model": {"name": name_of(entry), "family": None},
        "verdicts": [verdict],
        "generation_config": [],
        "unserved": [RUNNER.name] if reason else [],
    }


def unserved(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the components without a chosen provider."""
    components = dict.fromkeys(verdict["component"] for verdict in verdicts)
    served = {verdict["component"] for verdict in verdicts if verdict["is_chosen"]}
    return [component for component in components if component not in served]


def _write(report: dict[str, Any]) -> None:
    output.columns(("MACHINE", ""), [(name, str(v)) for name, v in report["machine"].items()])
    if "model" not in report:
        click.echo("\n`vlmkit plugins` lists providers; `vlmkit doctor MODEL` checks them")
        return
    family = report["model"]["family"] or "no family"
    click.echo(f"\nmodel {report['model']['name']} ({family})")
    rows = [
        (v["component"], v["provider"], _chosen(v) if v["is_chosen"] else v["reason"])
        for v in report["verdicts"]
    ]
    output.columns(("COMPONENT", "PROVIDER", "VERDICT"), rows)
    if ignored := report["generation_config"]:
        click.echo("\nvalues of generation_config.json that are ignored")
        rows = [(each["field"], each["value"], each["reason"]) for each in ignored]
        output.columns(("FIELD", "VALUE", "REASON"), rows)
    for error in _errors(report):
        click.echo(err=True)
        click.secho(f"error: {error}", err=True, fg="red")


def _errors(report: dict[str, Any]) -> list[str]:
    """Return why the model cannot be served; a provider that is not installed by its own reason."""
    absent = {v["component"]: v["reason"] for v in report["verdicts"] if not v["is_known"]}
    unable = [each for each in report["unserved"] if each not in absent]
    errors = list(absent.values())
    if unable:
        lacking = " and no ".join(component.replace("_", " ") for component in unable)
        errors.append(f"no {lacking} here can serve model {report['model']['name']!r}")
    return errors


def _ignored_generation_config(checkpoint: "Checkpoint") -> list[dict[str, str]]:
    """Return the values of a model's ``generation_config.json`` that are ignored."""
    from vlmkit.checkpoints.generation_config import read_generation_config

    return [finding._asdict() for finding in read_generation_config(checkpoint)[1]]


def _chosen(verdict: dict[str, Any]) -> str:
    return f"chosen: {verdict['how']}" if verdict["how"] else "chosen"


def verdicts(
    checkpoint: "Checkpoint",
    config: "Config",
    plugins: "Plugins",
    entry: "ModelEntry | None" = None,
) -> Iterator[dict[str, Any]]:
    """Yield the verdict on each provider if this model were loaded with this config.

    The chosen provider examines the model, and is not chosen if it refuses. A provider that the
    config names has a verdict even if it is not installed; ``is_known`` tells that.
    """
    from vlmkit.assembly.load import PARTNERS, chosen, is_needless, partner_of_engine
    from vlmkit.config import COMPONENTS
    from vlmkit.config.providers import is_left_out, registry_of
    from vlmkit.config.structs import SECTIONS
    from vlmkit.kit.objection import with_hint
    from vlmkit.plugins.registry import BuildContext

    context = BuildContext(
        checkpoint.name,
        checkpoint,
        registries=plugins.by_kind,
        components=_components(checkpoint, config, plugins, entry),
    )
    for section in COMPONENTS:
        registry = registry_of(plugins, section)
        component = config.component(section, entry)
        if is_left_out(section, component):
            continue
        is_without = is_needless(section, component, plugins, checkpoint, config, entry)
        if is_without and SECTIONS[section].is_named_by_engine:
            continue  # the engine names none
        may_follow = section in PARTNERS and component.use == "auto"
        follows = may_follow and (
            partner_of_engine(section, config, plugins, checkpoint, entry) is not None
        )
        why_others = "the engine's own is taken" if follows else "not preferred"
        try:
            selected = registry.key(chosen(section, config, plugins, checkpoint, entry))
            absence = ""
        except VlmkitError as error:
            selected, absence = None, _absence(error, section, component.use, plugins)
        for name, provider in _by_key(registry, selected):
            is_named = name in (selected, component.use)
            objection = with_hint(provider.objection(checkpoint, is_named=is_named))
            how, reason = "", objection or f"able, but {why_others}"
            if name == selected:
                how, reason = _examined(registry, selected, component.settings, context)
            yield {
                "component": section,
                "provider": name,
                "is_chosen": not reason,
                "how": how,
                "reason": reason or None,
                "priority": None if objection else provider.priority_for(checkpoint),
                "is_known": True,
            }
        if selected is None:
            reason = absence or "no installed provider can serve this model"
            yield {
                "component": section,
                "provider": component.use if absence else "none",
                "is_chosen": is_without,
                "how": "",
                "reason": None if is_without else reason,
                "priority": None,
                "is_known": not absence,
            }


def _absence(error: VlmkitError, section: str, use: str, plugins: "Plugins") -> str:
    """Return why a name selects no provider; empty if one was found that cannot serve."""
    from vlmkit.config.providers import with_broken_plugins
    from vlmkit.errors import PluginError, PluginUnavailable

    if isinstance(error, PluginUnavailable):
        return ""
    explained = with_broken_plugins(error, plugins) if isinstance(error, PluginError) else error
    return "; ".join(filter(None, (f"{section}.use = {use!r}: {explained}", explained.hint)))


def _components(
    checkpoint: "Checkpoint",
    config: "Config",
    plugins: "Plugins",
    entry: "ModelEntry | None" = None,
) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return name and settings of the provider of each component that has one."""
    from vlmkit.assembly.load import chosen
    from vlmkit.config import COMPONENTS
    from vlmkit.config.providers import is_left_out, registry_of

    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for section in COMPONENTS:
        component = config.component(section, entry)
        if is_left_out(section, component):
            continue
        with suppress(VlmkitError):
            provider = chosen(section, config, plugins, checkpoint, entry)
            found[section] = registry_of(plugins, section).key(provider), component.settings
    return found


def _by_key(registry: "Registry[Any]", first: str | None) -> "list[tuple[str, Provider[Any]]]":
    """Return providers with their keys, the one with the key ``first`` first."""
    keys = [(registry.key(provider), provider) for provider in registry]
    return sorted(keys, key=lambda pair: pair[0] != first)


def _examined(
    registry: "Registry[Any]", name: str, settings: Mapping[str, Any], context: "BuildContext"
) -> tuple[str, str]:
    """Return how a provider would run a model, and why it refuses; one or both are empty."""
    try:
        return registry.examine(name, settings, context), ""
    except VlmkitError as error:
        return "", f"refuses: {error}" + (f"; {error.hint}" if error.hint else "")
