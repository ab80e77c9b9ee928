"""Finds reasons why a model's weight files cannot be read, from names, sizes and headers.

Covers neither ONNX graphs, which have their own files, nor the values of weights.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vlmkit.kit.checkpoint import FETCH_AGAIN, Checkpoint
from vlmkit.kit.lfs_pointer import FETCH, is_pointer
from vlmkit.kit.objection import Objection
from vlmkit.kit.safetensors_header import read_header
from vlmkit.kit.single_file import (
    gguf_files,
    is_further_piece,
    is_projector,
    pieces_of,
    projectors_beside,
)

WHOLE = "model.safetensors"
INDEX = f"{WHOLE}.index.json"

VISION_ADAPTER = "vision-lora"
MERGE = "merge it with PEFT (merge_and_unload), and load what is saved then"

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_OTHERS = {
    "TensorFlow's": ("*.h5",),
    "Flax's": ("*.msgpack",),
    "NumPy's": ("*.npz",),
}


def objection(checkpoint: Checkpoint) -> Objection | None:
    """Return why a model's weights cannot be read from safetensors; None if they seem complete."""
    if checkpoint.file is not None:
        return Objection(
            f"its weights are in the single file {checkpoint.file.name!r}",
            hint="install an engine for files of this form",
        )
    folder = checkpoint.path
    index = checkpoint.read_json(INDEX).get("weight_map")
    files = _named(index) if index is not None else [WHOLE]
    has_weights = index is not None or (folder / WHOLE).exists()
    if checkpoint.has("adapter_config.json"):
        return _adapter(checkpoint, has_weights=has_weights)
    if not has_weights:
        return _absent(folder)
    if not files:
        return Objection(f"{INDEX!r} does not say which weight is in which file", hint=FETCH_AGAIN)
    return next(filter(None, (_flaw(checkpoint, file) for file in files)), None)


def objection_to_pictures(checkpoint: Checkpoint) -> Objection | None:
    """Return why a model's weights do not support images: an unmerged adapter; None if they do."""
    if not checkpoint.has(f"{VISION_ADAPTER}/adapter_config.json"):
        return None
    return Objection(
        f"it answers about pictures with the adapter in {VISION_ADAPTER!r}, which lies beside the "
        "weights and is not part of them",
        hint=f'{MERGE}; media_encoder.use = "none" serves its text',
    )


def absent_tower(checkpoint: Checkpoint) -> Objection:
    """Return why a model without a vision tower has no encoder of images."""
    if (file := checkpoint.file) is not None:
        return Objection(
            f"no file with a vision tower is beside {file.name!r}",
            hint="put the model's vision tower there, under a name with the part 'mmproj'",
        )
    return Objection("the checkpoint has no vision encoder (no 'vision_config' in config.json)")


def gguf_file(checkpoint: Checkpoint) -> Path | None:
    """Return the GGUF file that holds a model's weights; None if other files do.

    It is the file that was named, or that of a folder that has one and no safetensors; of several
    pieces, the first. Files with vision towers are others; see :func:`projector_files`.
    """
    if checkpoint.file is not None:
        return checkpoint.file if checkpoint.file.suffix.lower() == ".gguf" else None
    found = [
        path
        for path in gguf_files(checkpoint.path)
        if path != checkpoint.projector
        and not is_projector(path.name)
        and not is_further_piece(path.name)
    ]
    if len(found) != 1 or checkpoint.has("*.safetensors*"):
        return None
    return found[0]


def files_of_one(checkpoint: Checkpoint) -> list[Path]:
    """Return the files of a model in a single file, with its vision tower; empty for others.

    Of a file in several pieces, those that are there.
    """
    if (file := checkpoint.file or gguf_file(checkpoint)) is None:
        return []
    later = [file.with_name(name) for name in pieces_of(file.name)[1:]]
    return [file, *(piece for piece in later if piece.exists()), *projector_files(checkpoint)]


def projector_files(checkpoint: Checkpoint) -> list[Path]:
    """Return the selected vision tower of a model's GGUF file, or all beside it, sorted."""
    if (file := gguf_file(checkpoint)) is None:
        return []
    is_selected = checkpoint.file is not None or checkpoint.projector is not None
    return checkpoint.projectors if is_selected else projectors_beside(file)


def _named(index: Any) -> list[str]:
    """Return the files that an index names; empty if the index is invalid."""
    if not isinstance(index, dict) or not all(isinstance(file, str) for file in index.values()):
        return []
    return sorted(set(index.values()))


def _adapter(checkpoint: Checkpoint, *, has_weights: bool) -> Objection:
    stated = checkpoint.read_json("adapter_config.json")
    kind, base = stated.get("peft_type"), stated.get("base_model_name_or_path")
    named = f"an adapter ({kind})" if isinstance(kind, str) else "an adapter"
    if has_weights:
        return Objection(
            f"{named} lies beside the weights, and is not part of them",
            hint=f"{MERGE}; or take adapter_config.json out, to run the weights alone",
        )
    of = f" of {base!r}" if isinstance(base, str) else ""
    return Objection(f"it is {named}{of}, and not a model", hint=MERGE)


def _absent(folder: Path) -> Objection:
    """Return what the folder holds instead of readable weights."""
    if pieces := _names(folder, ("model-*-of-*.safetensors",)):
        return Objection(
            f"its weights are in pieces such as {pieces[0]!r}, and {INDEX!r} is missing, which "
            "says what is in each",
            hint=f"fetch {INDEX}, too",
        )
    if consolidated := _names(folder, ("consolidated*.safetensors",)):
        return Objection(
            f"{consolidated[0]!r} is in Mistral's own form, and {WHOLE!r} is missing",
            hint="fetch the same model in the form of transformers",
        )
    if other := _names(folder, ("*.safetensors",)):
        return Objection(
            f"{WHOLE!r} is missing, which its weights should be named, not {other[0]!r}",
            hint=f"if {other[0]} holds all of them, name it {WHOLE}",
        )
    if gguf := _gguf(folder):
        return gguf
    if pickles := _names(folder, _PICKLES):
        return Objection(
            f"its weights are a pickle ({pickles[0]!r}), which can run code when it is read, so it "
            "never is",
            hint="load them with transformers where you trust them, and save_pretrained the model",
        )
    for whose, patterns in _OTHERS.items():
        if found := _names(folder, patterns):
            return Objection(
                f"its weights are in {whose} form ({found[0]!r}), which is not read",
                hint="load the safetensors model that they are of",
            )
    return Objection("there are no *.safetensors weights", hint="fetch them, too")


def _gguf(folder: Path) -> Objection | None:
    """Return what GGUF files a folder holds; None if it holds none."""
    ggufs = [path.name for path in gguf_files(folder)]
    models = [name for name in ggufs if not is_projector(name)]
    if not ggufs:
        return None
    if not models:
        return Objection(
            f"its only GGUF file has a vision tower ({ggufs[0]!r}), and no language model",
            hint="put the GGUF file of the language model beside it",
        )
    several = "" if len(models) == 1 else f" in {len(models)} files"
    return Objection(
        f"its weights are GGUF{several} ({models[0]!r}), which is not read",
        hint="load the safetensors model that it was made from; vlmkit-torch reads one GGUF file "
        "beside config.json and tokenizer files",
    )


def _names(folder: Path, patterns: Iterable[str]) -> Sequence[str]:
    return sorted(path.name for pattern in patterns for path in folder.glob(pattern))


def _flaw(checkpoint: Checkpoint, file: str) -> Objection | None:
    """Return what is wrong with one weight file; None if nothing is."""
    if Path(file).name != file or "\\" in file:
        return Objection(
            f"{INDEX!r} names {file!r}, which is not a file of its folder", hint=FETCH_AGAIN
        )
    path = checkpoint.path / file
    try:
        if is_pointer(path):
            return Objection(
                f"{file!r} is a pointer of Git LFS and not the file itself", hint=FETCH
            )
        stated, found = _stated_bytes(path), path.stat().st_size
    except FileNotFoundError:
        return Objection(f"{file!r} is missing", hint=FETCH_AGAIN)
    except OSError as error:
        return Objection(f"{file!r} cannot be read: {error.strerror}", hint="see who may read it")
    except ValueError:
        return Objection(f"{file!r} is not a safetensors file", hint=FETCH_AGAIN)
    if stated != found and not checkpoint.is_preview:
        return Objection(f"{file!r} has {found} bytes, and should have {stated}", hint=FETCH_AGAIN)
    return None


def _stated_bytes(path: Path) -> int:
    """Return the size in bytes of a file by its header.

    Raises:
        ValueError: the file is not a safetensors file.
        OSError: the file cannot be read.
    """
    tensors, begin = read_header(path)
    return begin + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
