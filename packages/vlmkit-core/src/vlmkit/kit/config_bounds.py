"""Bounds for the values in a checkpoint's JSON files, checked before anything is built from them.

A checkpoint is untrusted: one number in its config can request terabytes, or a million layers.
The bounds depend only on field names, not on the model family.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint

MAX_INTEGER = 2**63 - 1
MAX_LAYERS = 2**10
MAX_PARTS = 2**14
"""Maximum number of experts, heads, groups and similar parts."""
MAX_SIZE = 2**24
"""Maximum width, vocabulary size and number of tokens."""
MAX_POSITIONS = 2**27
MAX_SIDE = 2**13
"""Maximum pixels of one side of an image."""

_HINT = "compare the file with that of the model's authors"


class _Bound(NamedTuple):
    """The largest value of fields whose names match a pattern."""

    names: re.Pattern[str]
    most: int


def _bound(names: str, most: int) -> _Bound:
    return _Bound(re.compile(names), most)


_MODEL = (
    _bound(
        r"num_(\w+_)?layers|n_layers?|(encoder|decoder)_layers|layers|depths?|num_stages",
        MAX_LAYERS,
    ),
    _bound(
        r"(num|n)_\w*(experts|heads|groups|blocks|streams|codebooks|head|modules)\w*", MAX_PARTS
    ),
    _bound(r"(max_|n_|num_)?\w*(position|positions|position_embeddings)", MAX_POSITIONS),
    _bound(r"n_ctx|max_seq\w*|seq_len\w*|(max_)?context_len\w*|max_length", MAX_POSITIONS),
    _bound(r"(vision_)?(image|patch|tile|crop)_size", MAX_SIDE),
    _bound(
        r"\w*(_size|_dim|_dims|_rank|_channels|_width|_len|_length|_tokens|_states)|d_\w+"
        r"|n_embd|n_inner|width|channels|embed_dims?|hidden_sizes|num_queries|num_latents",
        MAX_SIZE,
    ),
)
_IMAGES = (
    _bound(r"height|width|crop_size|patch_size|pad_size|image_size|\w*grid_pinpoints", MAX_SIDE),
    _bound(r"max_pixels|longest_edge|max_\w+", MAX_INTEGER),
    _bound(r"\w+", MAX_SIZE),
)
_GENERATION = (_bound(r"max_length|max_new_tokens", MAX_INTEGER), _bound(r"\w+", MAX_SIZE))
_BOUNDS: Mapping[str, tuple[_Bound, ...]] = {
    "config.json": _MODEL,
    "generation_config.json": _GENERATION,
    "preprocessor_config.json": _IMAGES,
    "processor_config.json": _IMAGES,
    "video_preprocessor_config.json": _IMAGES,
    "tokenizer_config.json": (),
}
_COUNTS = re.compile(
    r"num_(\w+_)?layers|n_layers?|max_position_embeddings|n_positions|vocab_size|hidden_size"
)
"""Fields for which -1 has no special meaning."""
_AREAS = frozenset({"merge_size", "min_pixels", "temporal_patch_size"})
"""Fields of image processors that measure edges as pixels of the whole image."""
_EDGES = frozenset({"shortest_edge", "size"})
_FREE = frozenset({"model_max_length", "max_length"})
"""Fields in which a huge number means no limit."""

_OBJECTS = re.compile(r"(text|vision|audio|llm|language|thinker|talker)_config|rope_scaling")
_FAILED_FIELD = re.compile(r"[Vv]alidation error for field '(\w{1,100})'", re.ASCII)
_MAX_SHOWN_CHARS = 60


def refuse_unreasonable(checkpoint: Checkpoint) -> None:
    """Raise an error if a checkpoint's JSON files hold values that no real model has.

    Raises:
        CheckpointError: a file is not JSON, or a field has a value of the wrong type or out of
            bounds; names file and field.
    """
    for file, bounds in _BOUNDS.items():
        content = checkpoint.read_json(file)
        owner = f"{file!r} of model {checkpoint.name!r}"
        if file == "config.json":
            _refuse_types(owner, content)
        sides = _IMAGES is bounds and _AREAS.isdisjoint(_names(content))
        for path, value in _numbers(content):
            if expected := _expected(path, value, bounds, has_sides=sides):
                raise CheckpointError(
                    f"{owner}: {'.'.join(path)!r} is {_shown(value)}, expected {expected}",
                    hint=_HINT,
                )


def failed_field(error: BaseException | None) -> str | None:
    """Return the field that transformers' typed configuration refused; None for other errors."""
    while error is not None:
        if found := _FAILED_FIELD.search(str(error)):
            return found[1]
        error = error.__cause__ or error.__context__
    return None


def _expected(
    path: tuple[str, ...], value: float, bounds: tuple[_Bound, ...], *, has_sides: bool
) -> str | None:
    """Return a description of the expected value; None if the number is within its bound."""
    if not isinstance(value, int) and math.isnan(value):
        return "a number"
    name = _name_of(path)
    if name in _FREE:
        return None
    if has_sides and not _EDGES.isdisjoint(path):
        most = MAX_SIDE
    else:
        most = next((b.most for b in bounds if b.names.fullmatch(name)), MAX_INTEGER)
    if value < 0 and _COUNTS.fullmatch(name):
        return "at least 0"
    is_bounded = most < MAX_INTEGER or isinstance(value, int)
    return f"at most {most}" if is_bounded and abs(value) > most else None


def _name_of(path: tuple[str, ...]) -> str:
    """Return the last name in a path that is not a list index."""
    return next((name for name in reversed(path) if not name.isdecimal()), "")


def _numbers(content: Any) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield all numbers of a JSON value with their paths."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), content)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield path, value
        elif isinstance(value, dict):
            pending += (((*path, str(key)), inner) for key, inner in value.items())
        elif isinstance(value, list):
            pending += (((*path, str(index)), inner) for index, inner in enumerate(value))


def _names(content: Any) -> Iterator[str]:
    """Yield the names of all fields of a JSON value."""
    pending = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield from value
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _refuse_types(owner: str, config: Mapping[str, Any]) -> None:
    """Raise an error for parts of a config with the wrong type."""
    for path, part in _parts(config):
        for name, value in part.items():
            if value is None or (expected := _type_of(name, value)) is None:
                continue
            raise CheckpointError(
                f"{owner}: {'.'.join((*path, name))!r} is {_shown(value)}, expected {expected}",
                hint=_HINT,
            )


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    pending: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), config)]
    while pending:
        path, part = pending.pop()
        yield path, part
        pending += (
            ((*path, name), inner)
            for name, inner in part.items()
            if isinstance(inner, dict) and name.endswith("_config")
        )


def _type_of(name: str, value: Any) -> str | None:
    """Return a description of the expected type of a field; None if the value has it."""
    if _OBJECTS.fullmatch(name):
        return None if isinstance(value, dict) else "an object"
    if name == "model_type":
        return None if isinstance(value, str) else "a text"
    if name in ("layer_types", "architectures"):
        is_texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return None if is_texts else "a list of texts"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
