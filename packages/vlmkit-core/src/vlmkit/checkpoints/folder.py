"""Whether a folder can be a model's, told from the names of its files and from small ones."""

from pathlib import Path

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.lfs_pointer import FETCH, is_pointer

CONFIGS = "*config.json"  # of a model, or what some plugin reads in its place
_SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt")
_SEARCHED = ("*", "snapshots/*")
"""Where a folder's own models may lie: in a folder of it, or as the hub's cache keeps them."""


def model_folder(folder: Path) -> Checkpoint:
    """Return a folder as a model's.

    Raises:
        CheckpointError: it holds none, or only notes where the content is.
    """
    checkpoint = Checkpoint(folder.resolve().name, folder)
    if not checkpoint.has(CONFIGS):
        raise _no_model(folder)
    for pattern in _SMALL_FILES:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and is_pointer(path):
                raise CheckpointError(
                    f"{path.name!r} of model {checkpoint.name!r} is a pointer of Git LFS and not "
                    "the file itself",
                    hint=FETCH,
                )
    return checkpoint


def model_file(file: Path) -> CheckpointError:
    """Return why a file is not a model, which a folder is."""
    if file.suffix == ".gguf":
        return CheckpointError(
            f"{str(file)!r} is a GGUF file, which is not read",
            hint="name the folder of the safetensors model that it was made from",
        )
    return CheckpointError(
        f"{str(file)!r} is a file, and a model is a folder",
        hint="name the folder that holds the model's config.json",
    )


def _no_model(folder: Path) -> CheckpointError:
    """Return what a folder without a config is."""
    problem = f"folder {str(folder)!r} holds no model: "
    if (folder / "model_index.json").is_file():
        return CheckpointError(
            f"{problem}it is a pipeline of diffusers, which makes images",
            hint="vlmkit runs models that answer in text",
        )
    found = [path.parent for place in _SEARCHED for path in folder.glob(f"{place}/config.json")]
    if found:
        return CheckpointError(
            f"{problem}it has no config.json", hint=f"did you mean {str(min(found))!r}?"
        )
    if ggufs := sorted(path.name for path in folder.glob("*.gguf")):
        return CheckpointError(
            f"{problem}it has no config.json, and GGUF ({ggufs[0]!r}) is not read",
            hint="load the safetensors model that it was made from",
        )
    return CheckpointError(
        f"{problem}it has no config.json",
        hint="name the folder that holds the model's config.json",
    )
