"""Fetches models from the hub, with one progress bar."""

import glob
import shutil
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.single_file import pieces_of, select_file, select_projector, split_tag
from vlmkit_hf.hub import cache, progress
from vlmkit_hf.hub.failures import explained
from vlmkit_hf.hub.repository import CONFIGS, SAFETENSORS, Files, files_of_model

LIBRARY, MAIN = "vlmkit", "main"


def fetch(reference: str, revision: str | None = None, *, is_update: bool = False) -> Checkpoint:
    """Return a hub model's files, downloading what is not in the cache yet.

    A completely cached model costs no request.

    Args:
        reference: the hub id, such as ``org/name``.
        revision: a branch, tag or commit; None is the main branch.
        is_update: whether to ask the hub for the newest commit in any case.

    Raises:
        CheckpointError: the model does not exist, is not accessible, or has only pickled weights.
            Or the hub cannot be reached, and the model is not cached or ``is_update`` is set.
    """
    folder = None if is_update else cache.cached_folder(reference, revision)
    if folder is None:
        with explained(reference, revision):
            if is_update:
                _refuse_without_hub(reference, revision)
            folder = _fetched(reference, revision)
    return Checkpoint(reference, folder, revision)


def fetch_file(
    reference: str,
    revision: str | None,
    suffixes: Seq[str],
    *,
    projector: str | None = None,
    is_update: bool = False,
) -> Checkpoint:
    """Return one file of a repository, with its vision tower and the files that describe it.

    Of a file in several pieces, all are fetched.

    Args:
        reference: the hub id and a tag, such as ``org/name:Q4_K_M``.
        revision: a branch, tag or commit; None is the main branch.
        suffixes: the suffixes that installed plugins read.
        projector: the name of the vision tower; None selects one.
        is_update: whether to ask the hub for the newest commit in any case.

    Raises:
        CheckpointError: no plugin reads single files, the tag selects no file, or as :func:`fetch`.
    """
    repository, _ = split_tag(reference)
    if not suffixes:
        raise CheckpointError(
            f"model {reference!r} is a single file, which no installed plugin reads",
            hint="install a plugin that owns its suffix, such as '.gguf', or load the safetensors "
            "model that it was made from",
        )
    file = None if is_update else cache.cached_file(reference, revision, suffixes, projector)
    if file is None:
        with explained(reference, revision):
            if is_update:
                _refuse_without_hub(repository, revision)
            file = _fetched_file(reference, revision, suffixes, projector)
    folder = file.parent
    tower = select_projector(file.name, (path.name for path in folder.iterdir()), projector)
    selected = None if tower is None else folder / tower
    return Checkpoint(reference, folder, revision, file=file, projector=selected)


def _fetched_file(
    reference: str, revision: str | None, suffixes: Seq[str], projector: str | None
) -> Path:
    repository, _ = split_tag(reference)
    folder = snapshot(repository, revision, CONFIGS)
    commit = folder.name
    listing = cache.cached_listing(repository, commit) or {
        path.name: path.stat().st_size for path in folder.iterdir()
    }
    name = select_file(reference, listing, suffixes)
    names = [*pieces_of(name), *filter(None, [select_projector(name, listing, projector)])]
    if absent := [each for each in names if not (folder / each).exists()]:
        num_bytes = sum(listing[each] for each in absent)
        _refuse_full_disk(reference, folder, num_bytes)
        with progress.bar(f"fetching {' and '.join(absent)}", num_bytes) as counted:
            folder = snapshot(repository, commit, Files(tuple(map(glob.escape, absent))), counted)
    return folder / name


def _refuse_without_hub(reference: str, revision: str | None) -> None:
    """Ask the hub for a model's newest commit: huggingface_hub falls back to the cache otherwise.

    Raises:
        CheckpointError: the hub cannot be reached.
    """
    from huggingface_hub import HfApi, errors

    try:
        HfApi(library_name=LIBRARY).model_info(reference, revision=revision or MAIN)
    except errors.HfHubHTTPError:
        raise
    except Exception as error:  # the network may raise anything
        raise CheckpointError(
            f"the hub cannot be asked for the newest commit of model {reference!r}",
            hint="check the network, HF_ENDPOINT and HF_HUB_OFFLINE; a model that is here works "
            "without the hub",
        ) from error


def _fetched(reference: str, revision: str | None) -> Path:
    folder = snapshot(reference, revision, CONFIGS)
    commit = folder.name
    listing = cache.cached_listing(reference, commit)
    if listing is None:
        return _fetched_unlisted(reference, commit)
    files = files_of_model(reference, listing)
    missing = {name: listing[name] for name in files.of(listing) if not (folder / name).exists()}
    num_bytes = sum(missing.values())
    _refuse_full_disk(reference, folder, num_bytes)
    with progress.bar(f"fetching {reference.partition('/')[2]}", num_bytes) as counted:
        return snapshot(reference, commit, files, counted)


def _fetched_unlisted(reference: str, commit: str) -> Path:
    """Return the files of an earlier download, while the hub cannot be reached."""
    folder = snapshot(reference, commit, SAFETENSORS)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    files_of_model(reference, names)
    return folder


def _refuse_full_disk(reference: str, folder: Path, num_bytes: int) -> None:
    """Refuse a download that does not fit on the disk.

    Raises:
        CheckpointError: it does not fit; says how much is needed, and how much is free.
    """
    target = folder.parents[1]  # the folder itself may not exist yet
    free = shutil.disk_usage(target).free
    if num_bytes > free:
        raise CheckpointError(
            f"model {reference!r} needs {num_bytes / 1e9:.1f} GB more on the disk of "
            f"{str(target)!r}, and {free / 1e9:.1f} GB are free",
            hint="`vlmkit models rm` deletes models; HF_HOME names another place",
        )


def snapshot(
    reference: str, revision: str | None, files: Files, counted: type[Any] | None = None
) -> Path:
    """Download some files of a repository; return the folder of the commit.

    Args:
        reference: the hub id.
        revision: a branch, tag or commit.
        files: the files to download.
        counted: the class of huggingface_hub's progress bars; by default none is shown.
    """
    import huggingface_hub

    return Path(
        huggingface_hub.snapshot_download(
            reference,
            revision=revision,
            allow_patterns=list(files.wanted),
            ignore_patterns=list(files.unwanted),
            library_name=LIBRARY,
            tqdm_class=counted or progress.none(),
        )
    )
