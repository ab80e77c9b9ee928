"""Finds the files of a model by its reference, and downloads them if needed.

A reference is looked up in this order: a source that owns its URI scheme, a package, a folder, a
hub. This module does not choose what runs the model.
"""

import difflib
import logging
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from vlmkit.checkpoints.folder import model_file, model_folder, with_projector
from vlmkit.config.paths import expanded
from vlmkit.config.structs import ModelEntry
from vlmkit.errors import CheckpointError, ConfigError, PluginError, VlmkitError
from vlmkit.interfaces.runner import Runner
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.config_bounds import refuse_unreasonable
from vlmkit.kit.install_command import install_command
from vlmkit.kit.model_uri import model_uri, scheme_of, shown, without_secrets
from vlmkit.kit.objection import hint_of
from vlmkit.kit.single_file import is_projector, suffix_of
from vlmkit.plugins.build_context import BuildContext
from vlmkit.plugins.kinds import MODEL, RUNNER
from vlmkit.plugins.loader import Plugins
from vlmkit.plugins.provider import Provider
from vlmkit.plugins.registry import Registry

log = logging.getLogger(__name__)

T = TypeVar("T")

Check = Callable[[Checkpoint], None]
"""Called with a preview of a model; raises a VlmkitError to prevent the download of its weights."""


def name_of(entry: ModelEntry) -> str:
    """Return the name of a model for clients: its configured name, or one from its reference.

    The latter is the last part of a path or URI, or the reference itself.
    """
    if entry.name is not None:
        return entry.name
    if (uri := model_uri(entry.model)) is not None:
        return uri.name
    if is_path(entry.model):
        return expanded(entry.model).resolve().name
    return entry.model


def reference_of(model: object) -> str:
    """Return the reference of a model as text.

    Raises:
        CheckpointError: the value is neither a text nor a path, or is empty.
    """
    reference: object = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if not isinstance(reference, str) or not reference:
        was = "empty" if reference == "" else type(model).__name__
        raise CheckpointError(
            f"a model is named by a text or a path, and this was {was}",
            hint="`vlmkit models list` shows which models are here",
        )
    return reference


def wrong_type(name: str, value: object, wanted: str, example: str) -> ConfigError:
    """Return the error for an argument of the wrong type; its hint has an example."""
    problem = f"{name} is {wanted}, and was {type(value).__name__}"
    return ConfigError(problem, hint=f"write {name}={example}, for example")


def resolve(
    reference: str,
    plugins: Plugins,
    revision: str | None = None,
    *,
    projector: str | None = None,
    check: Check | None = None,
    is_update: bool = False,
) -> Checkpoint:
    """Return the files of a model, after downloading them if they are not on this disk.

    Args:
        reference: the user's reference of the model.
        plugins: the plugins with the model sources.
        revision: the revision of the source; None is the newest.
        projector: the name of the file with the vision tower; None leaves it to the source.
        check: called before weights are downloaded, if the source has previews.
        is_update: whether to ask the source for a newer version of a model on this disk.

    Raises:
        CheckpointError: the model is unknown (the hint lists known ones), or a small file of it has
            values that no model has.
        ConfigError: revision or projector is not text.
        VlmkitError: an error of ``check``.
    """
    if not isinstance(revision, str | None):  # Python callers are not checked by msgspec
        raise wrong_type("revision", revision, "a text", '"main"')
    if not isinstance(projector, str | None):
        raise wrong_type("projector", projector, "a text", '"mmproj-F16.gguf"')
    found = find(reference, plugins)
    models, context = _source_context(reference, plugins, revision, is_update=is_update)
    context = replace(context, projector=projector)
    if isinstance(found, Path):
        checkpoint = _local_checkpoint(found, plugins)
    else:
        name = models.key(found)
        if check is not None:
            with closing(_previews(name, plugins, context)) as previews:
                for preview in previews:
                    check(preview)
        with without_reference_secrets(reference):
            checkpoint = models.build(name, {}, context)
    if projector is not None:
        checkpoint = with_projector(checkpoint, projector)
    if checkpoint.file is not None:
        checkpoint = _read_file(checkpoint, checkpoint.file, plugins, context)
    refuse_unreasonable(checkpoint)
    return checkpoint


def inspected(
    reference: str,
    plugins: Plugins,
    revision: str | None = None,
    *,
    projector: str | None = None,
    inspect: Callable[[Checkpoint], T],
    is_final: Callable[[T], bool],
) -> T:
    """Return the result of ``inspect`` on a model; downloads no weights.

    It inspects the model's folder if that is on this disk. Otherwise it inspects the previews of
    the source in turn, of which the last is the most complete, until ``is_final`` accepts a result.
    A source may delete a preview when the next one is requested.

    Raises:
        CheckpointError: the model is unknown, or its source has no previews.
    """
    found = find(reference, plugins)
    if isinstance(found, Provider) and found.previews is not None:
        models, context = _source_context(reference, plugins, revision)
        findings: list[T] = []
        with closing(_previews(models.key(found), plugins, context)) as previews:
            for preview in previews:
                findings.append(inspect(preview))
                if is_final(findings[-1]):
                    break
        if findings:
            return findings[-1]
    return inspect(resolve_local(reference, plugins, revision, projector=projector))


def remove(reference: str, plugins: Plugins, revision: str | None = None) -> int:
    """Delete a downloaded model from this disk; return the number of bytes that this freed.

    Raises:
        CheckpointError: the model is not on this disk, or is a folder or a package, which users
            delete themselves.
    """
    found = find(reference, plugins)
    if isinstance(found, Path):
        raise CheckpointError(
            f"model {reference!r} is a folder or file that no hub fetched",
            hint="delete it, if you have no other use for it",
        )
    if found.is_packaged:
        raise CheckpointError(
            f"model {reference!r} is part of the distribution {found.plugin!r}",
            hint=f"uninstall {found.plugin}",
        )
    models, context = _source_context(reference, plugins, revision)
    with without_reference_secrets(reference):
        return models.remove(models.key(found), context)


def _source_context(
    reference: str, plugins: Plugins, revision: str | None, *, is_update: bool = False
) -> tuple[Registry[Checkpoint], BuildContext]:
    """Return the registry of model sources, and the build context for one of them."""
    context = BuildContext(
        reference, revision=revision, is_update=is_update, registries=plugins.by_kind
    )
    return plugins.of(MODEL), context


def _previews(
    name: str, plugins: Plugins, context: BuildContext
) -> Generator[Checkpoint, None, None]:
    """Yield the previews of a source, each after checking its small files."""
    with (
        without_reference_secrets(context.reference),
        closing(plugins.of(MODEL).previews(name, context)) as previews,
    ):
        for preview in previews:
            refuse_unreasonable(preview)
            yield preview


@contextmanager
def without_reference_secrets(reference: str) -> Iterator[None]:
    """Remove the secrets of a reference from errors."""
    try:
        yield
    except VlmkitError as error:
        if (redacted := without_secrets(str(error), reference)) == str(error):
            raise
        raise CheckpointError(redacted, hint=without_secrets(error.hint, reference)) from None


def resolve_local(
    reference: str,
    plugins: Plugins,
    revision: str | None = None,
    *,
    projector: str | None = None,
) -> Checkpoint:
    """Return the files of a model on this disk; downloads nothing.

    Raises:
        CheckpointError: the model is unknown, or not on this disk.
    """
    found = find(reference, plugins)
    is_source = isinstance(found, Provider) and not found.is_packaged
    if is_source and not any(reference in fetched(p) for p in plugins.models):
        raise CheckpointError(
            f"model {shown(reference)!r} is not on this disk",
            hint=f"vlmkit models pull {shown(reference)}",
        )
    return resolve(reference, plugins, revision, projector=projector)


def fetched(source: Provider[Checkpoint]) -> list[str]:
    """Return the references of a source's models on this disk, sorted.

    A source whose list fails counts as empty, so that it does not affect other sources.
    """
    if source.list_models is None:
        return []
    try:
        return sorted(source.list_models())
    except Exception as error:
        log.warning("%s: the list of %r failed", source.plugin, source.name, exc_info=error)
        return []


def _local_checkpoint(path: Path, plugins: Plugins) -> Checkpoint:
    """Return the checkpoint of a folder, or one with a file that is not read yet.

    Raises:
        CheckpointError: the folder holds no model; if it holds single files, the hint has one.
    """
    if path.is_dir():
        try:
            return model_folder(path)
        except CheckpointError as error:
            named = (file for file in path.iterdir() if not is_projector(file.name))
            files = (file for file in named if reader_of(file, plugins) is not None)
            if (first := min(files, default=None)) is None:
                raise
            raise CheckpointError(str(error), hint=f"name one file: {first}") from error
    file = path.absolute()  # a hub's cache links to files whose names have no suffix
    return Checkpoint(path.name, file.parent, file=file)


def _read_file(
    checkpoint: Checkpoint, file: Path, plugins: Plugins, context: BuildContext
) -> Checkpoint:
    """Return the model in a single file, by the source that owns its suffix.

    Raises:
        CheckpointError: no source owns it, or the file is broken.
        PluginError: the source fails, or returns another file.
    """
    reader = reader_of(file, plugins)
    if reader is None:
        raise model_file(file, suffixes(plugins))
    models = plugins.of(MODEL)
    found = models.build(models.key(reader), {}, replace(context, checkpoint=checkpoint))
    if (found.file, found.name) != (file, checkpoint.name):
        raise PluginError(
            f"{models.who(reader)} read the file {str(file)!r}, and returned a checkpoint with "
            "another file or name",
            hint="return dataclasses.replace(context.files, path=...)",
        )
    return found


def reader_of(file: Path, plugins: Plugins) -> Provider[Checkpoint] | None:
    """Return the source that owns the longest suffix of a file; None if no source does."""
    owners = {suffix: p for p in plugins.models for suffix in p.suffixes}
    return owners.get(suffix_of(file.name, owners))


def suffixes(plugins: Plugins) -> list[str]:
    """Return the suffixes that sources own, each with the plugin that owns it."""
    return [f"{each} ({p.plugin})" for p in plugins.models for each in p.suffixes]


def find(reference: str, plugins: Plugins) -> Provider[Checkpoint] | Path:
    """Return the source of a model, or its folder or file.

    It is looked up by its scheme, as a package, a folder or file, and on a hub.

    Raises:
        CheckpointError: no source has it; the hint lists what is available.
    """
    if (uri := model_uri(reference)) is not None:
        return _owner(uri.scheme, reference, plugins)
    models = plugins.of(MODEL)
    if models.offers(reference) and models.get(reference).is_packaged:
        return models.get(reference)
    folder = expanded(reference)
    if folder.is_dir():
        return folder
    if folder.is_file():
        if reader_of(folder, plugins) is None:
            raise model_file(folder, suffixes(plugins))
        return folder
    if is_path(reference):
        raise CheckpointError(f"model folder {reference!r} does not exist", hint="check the path")
    able = [p for p in plugins.models if not p.suffixes and p.objection(reference) is None]
    if not able:
        raise CheckpointError(
            f"model {reference!r} is not a packaged name, a folder or a hub id that a plugin "
            "can fetch",
            hint=_what_there_is(reference, plugins),
        )
    return max(able, key=lambda provider: provider.priority_for(reference))


def refuse_unknown(reference: str, plugins: Plugins) -> None:
    """Check that a runner owns the scheme of a reference, or that a source has the model.

    Raises:
        CheckpointError: neither is so; as for :func:`find`.
    """
    if runner_of_scheme(reference, plugins) is None:
        find(reference, plugins)


def runner_of_scheme(reference: str, plugins: Plugins) -> Provider[Runner] | None:
    """Return the runner that owns the scheme of a reference; None if no runner does.

    Raises:
        CheckpointError: the reference is an invalid URI of such a scheme.
    """
    scheme = scheme_of(reference)
    owner = next((p for p in plugins.of(RUNNER) if scheme in p.schemes), None)
    if owner is not None:
        model_uri(reference)  # refuses an invalid one
    return owner


def _owner(scheme: str, reference: str, plugins: Plugins) -> Provider[Checkpoint]:
    """Return the source that owns a scheme.

    Raises:
        CheckpointError: no source owns it, or the source refuses the reference.
    """
    owner = next((p for p in plugins.models if scheme in p.schemes), None)
    if owner is None and (runner := runner_of_scheme(reference, plugins)) is not None:
        who = plugins.of(RUNNER).who(runner)
        raise CheckpointError(
            f"model {shown(reference)!r} has no files: {who} answers its requests",
            hint="vlmkit ask, chat, serve and doctor take it",
        )
    if owner is None:
        there = ", ".join(schemes(plugins))
        raise CheckpointError(
            f"no installed plugin has models that begin with '{scheme}://'",
            hint=f"there are: {there}" if there else "none has models of any scheme",
        )
    if reason := owner.objection(reference):
        raise CheckpointError(
            f"model {shown(reference)!r} cannot be had of {owner.name!r} from {owner.plugin!r}: "
            f"{without_secrets(reason, reference)}",
            hint=without_secrets(hint_of(reason), reference),
        )
    return owner


def schemes(plugins: Plugins) -> list[str]:
    """Return the URI schemes of all sources and runners, each with the plugin that owns it."""
    owners: list[Provider[Any]] = [*plugins.of(MODEL), *plugins.of(RUNNER)]
    return [f"{each}:// ({p.plugin})" for p in owners for each in p.schemes]


def is_path(reference: str) -> bool:
    """Return whether a reference can only be a path, also on Windows.

    A hub id has at most one slash, no backslash and no drive.
    """
    has_drive = reference[1:2] == ":" and reference[0].isalpha()
    is_rooted = reference.startswith((".", "~", "/")) or "\\" in reference
    return has_drive or is_rooted or reference.count("/") > 1


def _what_there_is(reference: str, plugins: Plugins) -> str:
    """Return a hint: the nearest model's name, or all packaged models and other sources."""
    unlisted = [plugin for plugin in plugins.found if plugin.unlisted]
    if owner := next((plugin for plugin in unlisted if plugin.name == reference), None):
        return f"plugins.only excludes {owner.who}: add {owner.source!r} to it"
    packaged = packaged_models(plugins)
    near = difflib.get_close_matches(reference, packaged, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    listed = f"packaged: {', '.join(packaged) or 'none'}"
    if unlisted:
        excluded = sorted({plugin.source for plugin in unlisted})
        return f"{listed}; plugins.only excludes {', '.join(excluded)}: add the one that has it"
    if not any(provider.list_models for provider in plugins.models):
        return f"{listed}; for models of the Hugging Face hub: {install_command('vlmkit-hf')}"
    begun = "".join(f"; {each}" for each in schemes(plugins))
    return f"{listed}{begun}; a hub id reads owner/name"


def packaged_models(plugins: Plugins) -> list[str]:
    """Return the names of the models in installed distributions."""
    models = plugins.of(MODEL)
    return [models.key(provider) for provider in models if provider.is_packaged]
