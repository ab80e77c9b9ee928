"""Models of the hub that are on this disk. Sends no request to the hub.

The folder is huggingface_hub's, so other programs store models there, too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vlmkit.errors import CheckpointError
from vlmkit.kit.single_file import (
    is_further_piece,
    is_projector,
    pieces_of,
    select_file,
    select_projector,
    split_tag,
    suffix_of,
    tag_of,
)
from vlmkit_hf.hub.repository import CONFIGS, GGUF, Listing, files_of_model

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, HFCacheInfo


def cached_folder(reference: str, revision: str | None) -> Path | None:
    """Return the folder of a completely cached model; None if it is not known to be complete.

    That is known of models fetched with their listing, as :mod:`vlmkit_hf.hub.fetching` does.
    """
    import huggingface_hub
    from huggingface_hub import errors

    listing = cached_listing(reference, revision)
    if listing is None:
        return None
    try:
        files = files_of_model(reference, listing)
        folder = huggingface_hub.snapshot_download(
            reference,
            revision=revision,
            allow_patterns=list(files.wanted),
            ignore_patterns=list(files.unwanted),
            local_files_only=True,
        )
    except (CheckpointError, errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError):
        return None
    return Path(folder)


def cached_file(
    reference: str, revision: str | None, suffixes: Iterable[str], projector: str | None = None
) -> Path | None:
    """Return the file that a reference with a tag selects; None if it is not cached.

    A vision tower in the repository must be cached, too, and so must all pieces of the file.
    """
    import huggingface_hub

    repository, _ = split_tag(reference)
    listing = cached_listing(repository, revision)
    if listing is None:
        return None
    try:
        name = select_file(reference, listing, suffixes)
        tower = select_projector(name, listing, projector)
    except CheckpointError:
        return None  # the hub may have more files by now
    names = [*pieces_of(name), *filter(None, [tower])]
    found = [
        huggingface_hub.try_to_load_from_cache(repository, each, revision=revision)
        for each in names
    ]
    return Path(str(found[0])) if all(isinstance(each, str) for each in found) else None


def cached_listing(reference: str, revision: str | None) -> Listing | None:
    """Return a repository's files, as the hub listed them when a part was fetched."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        files = huggingface_hub.get_cached_repo_tree(reference, revision=revision)
    except errors.CachedRepoTreeNotFoundError:
        return None
    return {file.path: file.size for file in files}


def cached_models() -> list[str]:
    """Return the hub ids of the completely cached models and single files, sorted."""
    found = [repo for repo in _scan() if repo.repo_type == "model"]
    whole = {repo.repo_id for repo in found if any(_is_complete(repo, r) for r in repo.revisions)}
    return sorted({*whole, *(name for repo in found for name in _single_files(repo))})


def _single_files(repo: "CachedRepoInfo") -> Iterator[str]:
    """Yield a reference to each cached file that holds a whole model."""
    names = {
        file.file_name
        for revision in repo.revisions
        for file in revision.files
        if file.file_path.parent == revision.snapshot_path
        and suffix_of(file.file_name, GGUF)
        and not is_projector(file.file_name)
    }
    names = {
        name for name in names if names.issuperset(pieces_of(name)) and not is_further_piece(name)
    }
    tags = Counter(tag_of(name, GGUF) for name in names)
    for name in names:
        tag = tag_of(name, GGUF)
        yield f"{repo.repo_id}:{tag if tags[tag] == 1 else name}"


def remove(reference: str, revision: str | None) -> int:
    """Delete a model, or one revision of it; return the number of bytes freed.

    Raises:
        CheckpointError: it is not in the cache.
    """
    repository, tag = split_tag(reference)
    if tag:
        raise CheckpointError(
            f"model {reference!r} is one file of a repository, which is deleted as a whole",
            hint=f"vlmkit models rm {repository}",
        )
    scanned = _scanned()
    repos = () if scanned is None else scanned.repos
    repo = next((r for r in repos if r.repo_type == "model" and r.repo_id == reference), None)
    if scanned is None or repo is None:
        raise CheckpointError(
            f"model {reference!r} is not on this disk", hint="`vlmkit models list` shows what is"
        )
    known = {r for r in repo.revisions if revision in (None, r.commit_hash, *r.refs)}
    if not known:
        there = sorted({name for r in repo.revisions for name in (*r.refs, r.commit_hash)})
        raise CheckpointError(
            f"model {reference!r} has no revision {revision!r} on this disk",
            hint=f"it has {', '.join(there)}",
        )
    deleted = scanned.delete_revisions(*(r.commit_hash for r in known))
    deleted.execute()
    return deleted.expected_freed_size


def _scan() -> "frozenset[CachedRepoInfo]":
    scanned = _scanned()
    return frozenset() if scanned is None else scanned.repos


def _scanned() -> "HFCacheInfo | None":
    import huggingface_hub
    from huggingface_hub.errors import CacheNotFound

    try:
        return huggingface_hub.scan_cache_dir()
    except CacheNotFound:
        return None


def _is_complete(repo: "CachedRepoInfo", revision: "CachedRevisionInfo") -> bool:
    """Tell whether a model is complete; without a listing, config and weights are enough."""
    names = {
        file.file_path.relative_to(revision.snapshot_path).as_posix() for file in revision.files
    }
    if not CONFIGS.of(names):
        return False
    listing = cached_listing(repo.repo_id, revision.commit_hash)
    try:
        files = files_of_model(repo.repo_id, names if listing is None else listing)
    except CheckpointError:
        return False
    return listing is None or files.of(listing) <= names
