"""Checkpoints of the Hugging Face hub: what is downloaded, where it is kept, what can go wrong.

Follows huggingface_hub's own environment variables: HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE,
HF_HUB_DISABLE_PROGRESS_BARS. Only data is fetched: JSON, templates, vocabularies and safetensors
(or ONNX, where a repository has no safetensors); never pickles and never code.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
# What lies in folders is other people's layout, but for "1_Pooling", which says how a model embeds,
# and "additional_chat_templates"; "consolidated" is the same weights once more.
_NOT_OURS = ("*[!gs]/*", "*[!n]g/*", "*[!e]s/*", "*/*.safetensors", "consolidated*", "adapter_m*")
_SAFETENSORS = (*_SMALL_FILES, "*.safetensors")
_ONNX = (*_SMALL_FILES, "*.onnx", "*.onnx_data*", "*.onnx.data")


def objection(reference: str) -> str | None:
    """Say why a reference cannot be a hub id; None where it can."""
    if _HUB_ID.fullmatch(reference) is None or ".." in reference or "--" in reference:
        return "a hub id reads org/name"
    return None


def fetch(reference: str, revision: str | None = None) -> Checkpoint:
    """Return a hub model's files, downloading what is not in the cache yet.

    Args:
        reference: the hub id, such as ``org/name``.
        revision: a branch, tag or commit; None is the main branch.

    Raises:
        CheckpointError: it does not exist, may not be read, is not in the cache while the hub
            cannot be reached, or has weights as pickles only.
    """
    folder = _snapshot(reference, revision, _SAFETENSORS, _NOT_OURS)
    if (folder / "adapter_config.json").is_file():
        return Checkpoint(reference, folder, revision)  # who loads it says what it is
    if not any(folder.glob("*.safetensors")):
        folder = _snapshot(reference, revision, _ONNX, ())
        if not any(folder.rglob("*.onnx")):
            raise CheckpointError(
                f"model {reference!r} has no weights in safetensors or ONNX form on the hub",
                hint="pickled weights can run code when they are read, so vlmkit never does; nor "
                "does it read GGUF",
            )
    return Checkpoint(reference, folder, revision)


def cached_models() -> list[str]:
    """Return the hub ids of the models in the cache, sorted."""
    import huggingface_hub
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except CacheNotFound:
        return []
    return sorted(
        repo.repo_id
        for repo in repos
        if repo.repo_type == "model"
        and any(file.file_name == "config.json" for r in repo.revisions for file in r.files)
    )


def _snapshot(
    reference: str, revision: str | None, wanted: Sequence[str], unwanted: Sequence[str]
) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = huggingface_hub.snapshot_download(
            reference,
            revision=revision,
            allow_patterns=list(wanted),
            ignore_patterns=list(unwanted),
            library_name="vlmkit",
        )
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"model {reference!r} is gated on the hub",
            hint="accept its terms there, then set HF_TOKEN to a token of the same account",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"model {reference!r} does not exist on the hub, or is private",
            hint="check the name; for a private model set HF_TOKEN",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"model {reference!r} has no revision {revision!r} on the hub"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError) as error:
        raise _unreachable(reference) from error
    except Exception as error:  # the network may raise anything
        raise CheckpointError(
            f"model {reference!r} could not be downloaded from the hub",
            hint="see the log, and try again: what was downloaded is kept",
        ) from error
    return Path(folder)


def _unreachable(reference: str) -> CheckpointError:
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        return CheckpointError(
            f"model {reference!r} is not completely in the cache, and HF_HUB_OFFLINE is set",
            hint=f"unset it, and fetch the model once: vlmkit models pull {reference}",
        )
    return CheckpointError(
        f"model {reference!r} is not completely in the cache, and the hub cannot be reached",
        hint="check the network, HF_ENDPOINT and proxies",
    )
