"""Recognises model folders by the names of their files and by small files; reads no weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.lfs_pointer import FETCH, is_pointer
from vlmkit.kit.single_file import gguf_files, is_projector, named_projector
from vlmkit.kit.weight_files import gguf_file

CONFIGS = "*config.json"  # the model's config, or a file that a plugin reads instead
_SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt")
_SEARCHED = ("*", "snapshots/*")
"""Where models may be inside a folder: in its subfolders, or in the layout of the hub's cache."""


def model_folder(folder: Path) -> Checkpoint:
    """Return the checkpoint of a model folder.

    Raises:
        CheckpointError: the folder holds no model, or pointers of Git LFS instead of files.
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


def with_projector(checkpoint: Checkpoint, wanted: str) -> Checkpoint:
    """Return a model in a GGUF file with the vision tower that a user named.

    Raises:
        CheckpointError: the model is in no GGUF file, or the tower is not beside it.
    """
    selected = replace(checkpoint, projector=checkpoint.path / wanted)
    if (file := gguf_file(selected) or gguf_file(checkpoint)) is None:
        raise CheckpointError(
            f"model {checkpoint.name!r} is in no GGUF file, and only such a model has a projector "
            f"({wanted!r})",
            hint="leave projector out",
        )
    name = named_projector(file.name, (path.name for path in file.parent.iterdir()), wanted)
    return replace(checkpoint, projector=file.with_name(name))


def model_file(file: Path, readable: Sequence[str]) -> CheckpointError:
    """Return the error for a file that no installed plugin reads as a model.

    Args:
        file: the file.
        readable: the suffixes that plugins own, each with its plugin.
    """
    read = f"; installed plugins read {', '.join(readable)}" if readable else ""
    if file.suffix.lower() == ".gguf":
        return CheckpointError(
            f"{str(file)!r} is a GGUF file, which no installed plugin reads",
            hint="install a plugin that owns the suffix '.gguf', or name the folder of the "
            f"safetensors model that it was made from{read}",
        )
    return CheckpointError(
        f"{str(file)!r} is a file, and a model is a folder",
        hint=f"name the folder that holds the model's config.json{read}",
    )


def _no_model(folder: Path) -> CheckpointError:
    """Return the error for a folder without a config."""
    problem = f"folder {str(folder)!r} holds no model: "
    if (folder / "model_index.json").is_file():
        return CheckpointError(
            f"{problem}it is a pipeline of diffusers, which makes images",
            hint="vlmkit runs models that answer in text",
        )
    found = [path.parent for each in _SEARCHED for path in folder.glob(f"{each}/config.json")]
    if found:
        return CheckpointError(
            f"{problem}it has no config.json", hint=f"did you mean {str(min(found))!r}?"
        )
    if ggufs := [path.name for path in gguf_files(folder)]:
        models = [name for name in ggufs if not is_projector(name)]
        return CheckpointError(
            f"{problem}it has GGUF ({(models or ggufs)[0]!r}) and no config.json",
            hint="fetch config.json and the tokenizer files of the model that it was made from; a "
            "file alone is read where a plugin owns the suffix '.gguf', such as vlmkit-torch",
        )
    return CheckpointError(
        f"{problem}it has no config.json",
        hint="name the folder that holds the model's config.json",
    )
