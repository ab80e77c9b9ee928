"""The file with the vision tower of a model (``mmproj``), compared with ``config.json``.

Source of the fields: ``clip-impl.h`` of llama.cpp. Reads no weight, and no audio encoder.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vlmkit.errors import CheckpointError
from vlmkit.kit import weight_files
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_file import GgufFile, read_header
from vlmkit_quantized.gguf_names import PlainTensor
from vlmkit_quantized.gguf_towers import ACTIVATIONS, GELU, SILU, Tower, TowerSizes

ARCHITECTURE = "clip"
CLOSE = 1e-5
INNER = "feed_forward_length"
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Projector:
    """A vision tower with its projector in a file.

    Attributes:
        file: the header.
        kind: the ``clip.projector_type``.
        tensors: what each tensor is.
        absent: weights that the file lacks and no answer depends on.
    """

    file: GgufFile
    kind: str
    tensors: Mapping[str, PlainTensor]
    absent: Sequence[PlainTensor]


def file_of(checkpoint: Checkpoint) -> Path | None:
    """Return the file with the vision tower of a model; None if there is none.

    Raises:
        FormatError: there are several.
    """
    found = weight_files.projector_files(checkpoint)
    if len(found) > 1:
        raise FormatError(
            f"it has {len(found)} files with vision towers, {found[0].name!r} and "
            f"{found[1].name!r}, and only one can be used",
            hint=f'name one: projector = "{found[0].name}"',
        )
    return found[0] if found else None


def read(path: Path) -> GgufFile:
    """Return the header of a file, which must be that of a vision tower.

    Raises:
        FormatError: it is something else, or contradicts itself.
    """
    try:
        file = read_header(path, has_texts=False)
    except OSError as error:
        raise FormatError(f"its file {path.name!r} cannot be read: {error.strerror}") from error
    stated = file.text("general.architecture")
    if stated != ARCHITECTURE:
        raise FormatError(
            f"its file {path.name!r} should have a vision tower ({ARCHITECTURE!r}), and has the "
            f"architecture {stated!r} in 'general.architecture'"
        )
    if file.fields.get("clip.has_vision_encoder") is not True:
        raise FormatError(f"its file {path.name!r} has no vision tower")
    if file.fields.get("clip.has_audio_encoder") is True:
        raise FormatError(
            f"its file {path.name!r} has an audio encoder, too, which is not supported"
        )
    return file


def kind_of(file: GgufFile, name: str) -> str:
    """Return the kind of a projector.

    Raises:
        FormatError: the file states none.
    """
    for key in ("clip.projector_type", "clip.vision.projector_type"):
        if found := file.text(key):
            return found
    raise FormatError(f"its file {name!r} states no 'clip.projector_type'")


def matched(
    checkpoint: Checkpoint, path: Path, tower: Tower, config: Config, width: int
) -> Projector:
    """Return the tower in a file, which must be that of a model.

    Args:
        checkpoint: the model.
        path: the file.
        tower: that of its ``config.json``.
        config: its ``config.json``, with defaults.
        width: the size of an embedding of its decoder.

    Raises:
        FormatError: the file is of another model, or not supported.
    """
    file = read(path)
    check = _Check(file, path.name)
    kind = kind_of(file, path.name)
    if kind != tower.projector:
        raise FormatError(
            f"its file {path.name!r} has a projector of the kind {kind!r}, and its config.json "
            f"(model_type {config.get('model_type')!r}) needs {tower.projector!r}"
        )
    sizes = TowerSizes(config, file, width)
    if tower.states_width:
        check.numbers("projection_dim", sizes.text_width, "hidden_size")
    for key, field in tower.stated:
        check.numbers(key, _single(sizes.vision.get(field)), field)
    for fact in tower.facts(sizes):
        check.numbers(fact.key, fact.wanted, fact.field, fact.default)
    check.activation(sizes.vision.get("hidden_act"))
    _check_images(check, checkpoint)
    return Projector(
        file, kind, dict(tower.tensors(sizes)), [plain for _, plain in tower.absent(sizes)]
    )


@dataclass(frozen=True, slots=True)
class _Check:
    """Compares fields of a file with those of a folder."""

    file: GgufFile
    name: str

    def numbers(
        self,
        key: str,
        wanted: Any,
        field: str,
        default: float | None = None,
        where: str = "config.json",
    ) -> None:
        """Require one number or several, where both sides state them."""
        found = self.file.fields.get(f"clip.vision.{key}", default)
        if isinstance(found, np.ndarray):
            found = found.tolist()
        is_unstated = key == INNER and not found  # as older converters write it
        if found is None or wanted is None or isinstance(found, str) or is_unstated:
            return
        if not _are_close(found, wanted):
            raise FormatError(
                f"its file {self.name!r} has {key} {_text(found)}, and its {where} has "
                f"{_text(wanted)} in {field!r}"
            )

    def activation(self, stated: Any) -> None:
        """Require the flag of an activation."""
        flags = [name for name in (GELU, SILU) if self.file.fields.get(f"clip.{name}") is True]
        if flags != _flags_of(stated):
            raise FormatError(
                f"its file {self.name!r} has {' and '.join(flags) or 'no flag'} of an activation, "
                f"and its config.json has {stated!r} in 'vision_config.hidden_act'"
            )


def _flags_of(activation: Any) -> list[str] | None:
    """Return the flags of a file with an activation; None if no file has it."""
    flag = ACTIVATIONS.get(str(activation))
    return None if flag is None else list(filter(None, [flag]))


def _are_close(found: Any, wanted: Any) -> bool:
    one, other = (each if isinstance(each, list) else [each] for each in (found, wanted))
    are_numbers = all(isinstance(each, int | float) for each in (*one, *other))
    return (
        are_numbers
        and len(one) == len(other)
        and all(map(partial(math.isclose, rel_tol=CLOSE), one, other))
    )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:100]


def _single(value: Any) -> Any:
    """Return one of a pair of equal numbers."""
    is_pair = isinstance(value, list) and len(value) > 1 and value.count(value[0]) == len(value)
    return value[0] if is_pair else value


def _check_images(check: _Check, checkpoint: Checkpoint) -> None:
    """Compare how pixels are scaled with the settings of the image processor.

    Raises:
        FormatError: they differ.
    """
    for name in PREPROCESSORS:
        try:
            whole = checkpoint.read_json(name)
        except CheckpointError:
            continue  # the component that reads it reports it
        inner = whole.get("image_processor")
        stated = inner if isinstance(inner, Mapping) else whole
        for field in ("image_mean", "image_std"):
            check.numbers(field, stated.get(field), field, where=name)
