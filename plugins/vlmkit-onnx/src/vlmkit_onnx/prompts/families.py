"""The rules of a model family for a prompt: its image token, positions and visibility.

Taken from transformers' model code and implemented in numpy; text families need none. The graph of
a family's vision tower states how images are passed to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError, EngineError
from vlmkit.interfaces.prompt import MediaSlot, Prompt

Visibility = Literal["causal", "image_blocks", "near_image_blocks", "wide_image_blocks", "prefix"]
"""Which tokens of a prompt see each other.

- causal: a token sees itself and earlier tokens.
- image_blocks: also, the tokens of one image see each other within a layer's window.
- near_image_blocks: the same, but only in layers with a window.
- wide_image_blocks: the same in all layers, regardless of the window.
- prefix: all tokens of a prompt with an image see each other, regardless of the window.
"""

Config = Mapping[str, Any]

_IMAGE_TOKEN_KEYS = ("image_token_id", "image_token_index")
_VISION_KEYS = (
    *_IMAGE_TOKEN_KEYS,
    "audio_config",
    "img_processor",
    "mm_vision_tower",
    "vision_config",
    "vision_tower",
    "visual",
)


class Positions(NamedTuple):
    """The positions of a sequence's tokens.

    Attributes:
        values: ``[axes, seq]`` int64 of the prompt; None if token ``i`` has position ``i``.
        offset: token ``i`` after the prompt has position ``i + offset``.
    """

    values: NDArray[np.int64] | None
    offset: int


def _plain(_prompt: Prompt) -> Positions:
    return Positions(None, 0)


@dataclass(frozen=True, slots=True)
class Family:
    """The rules of a family that an engine needs.

    Attributes:
        image_token_id: the placeholder of image rows; None for a text model.
        visibility: which tokens see each other.
        rule: returns the positions of a prompt.
    """

    image_token_id: int | None = None
    visibility: Visibility = "causal"
    rule: Callable[[Prompt], Positions] = _plain

    def positions(self, prompt: Prompt) -> Positions:
        """Return the positions of a prompt's tokens and of its answer.

        Raises:
            EngineError: an image's arrays do not state its size, or the size does not fit its
                tokens.
        """
        return self.rule(prompt)


def family_of(config: Config) -> Family:
    """Return the family of a model.

    Args:
        config: the content of its ``config.json``.

    Raises:
        CheckpointError: the model takes images, and its family is unknown.
    """
    name = config.get("model_type")
    known = _VISION_FAMILIES.get(str(name))
    if known is not None:
        image_token_id = next(
            (int(config[key]) for key in _IMAGE_TOKEN_KEYS if config.get(key) is not None),
            known.image_token_id,
        )
        visibility = known.visibility if _is_bidirectional(config, known) else "causal"
        return Family(image_token_id, visibility, known.rule(config, image_token_id))
    if any(config.get(key) is not None for key in _VISION_KEYS):
        raise CheckpointError(
            f"model type {name!r} takes images in a way that vlmkit-onnx does not support",
            hint=f"supported: {', '.join(_VISION_FAMILIES)}",
        )
    return Family()


@dataclass(frozen=True, slots=True)
class _GridPositions:
    """M-RoPE of the Qwen-VL families: time, height and width.

    A text token has the same position on all three axes. The rows of an image have the positions of
    their cells in its merged grid. Later tokens follow the longer side.

    Attributes:
        image_token_id: of the image rows.
        merge: patches on each side of a cell.
    """

    image_token_id: int
    merge: int

    def __call__(self, prompt: Prompt) -> Positions:
        if not prompt.media:
            return Positions(None, 0)
        ids = np.array(prompt.token_ids, np.int64)
        parts, position, done = [], 0, 0
        for slot in prompt.media:
            inside = np.flatnonzero(ids[slot.start : slot.stop] == self.image_token_id)
            cells, side = self._cells(slot, len(inside))
            first = slot.start + int(inside[0])
            before = first - done
            parts += [_run(position, before), cells + position + before]
            position += before + side
            done = first + len(inside)
        parts.append(_run(position, len(ids) - done))
        values = np.concatenate(parts, axis=1)
        return Positions(values, int(values.max()) + 1 - len(ids))

    def _cells(self, slot: MediaSlot, count: int) -> tuple[NDArray[np.int64], int]:
        """Return an image's cells ``[3, rows]``, and by how much it shifts later tokens."""
        if "image_grid_thw" not in slot.inputs:
            raise EngineError("an image of this model needs 'image_grid_thw' among its arrays")
        grid = np.asarray(slot.inputs["image_grid_thw"]).reshape(-1)
        time, height, width = int(grid[0]), int(grid[1]) // self.merge, int(grid[2]) // self.merge
        if count == 0 or time * height * width != count:
            raise EngineError(
                f"an image's grid has {time}x{height}x{width} cells, and its prompt {count} places"
            )
        return np.indices((time, height, width)).reshape(3, -1), max(height, width)


def _run(start: int, count: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.arange(start, start + count), (3, count))


def _from_one(prompt: Prompt) -> Positions:
    """PaliGemma counts from one."""
    return Positions(np.arange(1, len(prompt) + 1)[None], 1)


def _grid_rule(config: Config, image_token_id: int) -> Callable[[Prompt], Positions]:
    vision = config.get("vision_config") or {}
    return _GridPositions(image_token_id, int(vision.get("spatial_merge_size", 2)))


def _plain_rule(_config: Config, _image_token_id: int) -> Callable[[Prompt], Positions]:
    return _plain


def _from_one_rule(_config: Config, _image_token_id: int) -> Callable[[Prompt], Positions]:
    return _from_one


@dataclass(frozen=True, slots=True)
class _VisionFamily:
    """A family that takes images.

    Attributes:
        image_token_id: the default, if ``config.json`` states none.
        visibility: which tokens see each other.
        rule: returns the rule of positions.
        bidirectional: default of ``use_bidirectional_attention``, in families whose attention is
            causal unless it is "vision"; None if the family ignores it.
    """

    image_token_id: int
    visibility: Visibility = "causal"
    rule: Callable[[Config, int], Callable[[Prompt], Positions]] = _plain_rule
    bidirectional: str | None = None


def _is_bidirectional(config: Config, family: _VisionFamily) -> bool:
    """Return whether the tokens of an image see each other, by a configuration.

    Raises:
        CheckpointError: all tokens of the model see each other.
    """
    if family.bidirectional is None:
        return True
    text = config.get("text_config") or {}
    stated = text.get("use_bidirectional_attention", family.bidirectional)
    if stated == "all":
        raise CheckpointError(
            "every token of the model sees every other, so it cannot generate text"
        )
    return bool(stated == "vision")


_VISION_FAMILIES: Mapping[str, _VisionFamily] = {
    "llava": _VisionFamily(32000),
    "vipllava": _VisionFamily(32000),
    "llava_next": _VisionFamily(32000),
    "llava_next_video": _VisionFamily(32001),
    "llava_onevision": _VisionFamily(151646),
    "granite4_vision": _VisionFamily(32000),
    "idefics3": _VisionFamily(128257),
    "smolvlm": _VisionFamily(128257),
    "qwen2_vl": _VisionFamily(151655, rule=_grid_rule),
    "qwen2_5_vl": _VisionFamily(151655, rule=_grid_rule),
    "qwen3_vl": _VisionFamily(151655, rule=_grid_rule),
    "qwen3_vl_moe": _VisionFamily(151655, rule=_grid_rule),
    "glm4v": _VisionFamily(151343, rule=_grid_rule),
    "glm4v_moe": _VisionFamily(151363, rule=_grid_rule),
    "glm46v": _VisionFamily(151343, rule=_grid_rule),
    "glm_ocr": _VisionFamily(59280, rule=_grid_rule),
    "paddleocr_vl": _VisionFamily(100295, rule=_grid_rule),
    "exaone4_5": _VisionFamily(67),
    "gemma3": _VisionFamily(262144, visibility="image_blocks"),
    "gemma4": _VisionFamily(258880, visibility="near_image_blocks", bidirectional=""),
    "gemma4_unified": _VisionFamily(258880, visibility="wide_image_blocks", bidirectional="vision"),
    "mistral3": _VisionFamily(10),
    "internvl": _VisionFamily(151667),
    "aya_vision": _VisionFamily(255036),
    "cohere2_vision": _VisionFamily(255036),
    "paligemma": _VisionFamily(256000, visibility="prefix", rule=_from_one_rule),
}
