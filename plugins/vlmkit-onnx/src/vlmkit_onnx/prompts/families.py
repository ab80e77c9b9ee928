"""What a model family does with a prompt: its image token, where tokens stand, who sees whom.

Facts of transformers' model code, written down in numpy; text families need none. How a family's
vision tower wants its images is written in the graph, not here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError, EngineError
from vlmkit.interfaces.prompt import MediaSlot, Prompt

Visibility = Literal["causal", "image_blocks", "near_image_blocks", "wide_image_blocks", "prefix"]
"""Who sees whom in a prompt.

causal: a token sees what stands before it; image_blocks: and the tokens of one image see each
other, as far as a layer's window reaches; near_image_blocks: the same in layers with a window only;
wide_image_blocks: the same in all layers, whatever the window; prefix: all tokens of a prompt with
an image see each other, whatever the window.
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
    """Where the tokens of a sequence stand.

    Attributes:
        values: ``[axes, seq]`` int64 of the prompt; None where token ``i`` stands at ``i``.
        offset: token ``i`` after the prompt stands at ``i + offset``.
    """

    values: NDArray[np.int64] | None
    offset: int


def _plain(_prompt: Prompt) -> Positions:
    return Positions(None, 0)


@dataclass(frozen=True, slots=True)
class Family:
    """What an engine needs to know about a family.

    Attributes:
        image_token_id: the token whose places take the rows of images; None for a text model.
        visibility: who sees whom.
        rule: gives the positions of a prompt.
    """

    image_token_id: int | None = None
    visibility: Visibility = "causal"
    rule: Callable[[Prompt], Positions] = _plain

    def positions(self, prompt: Prompt) -> Positions:
        """Return where a prompt's tokens stand, and where the next ones will.

        Raises:
            EngineError: an image's arrays do not say how large it is, or say something that does
                not fit its tokens.
        """
        return self.rule(prompt)


def family_of(config: Config) -> Family:
    """Return the family of a model.

    Args:
        config: the content of its ``config.json``.

    Raises:
        CheckpointError: the model sees images, in a way that is not known.
    """
    name = config.get("model_type")
    known = _SEEING.get(str(name))
    if known is not None:
        image_token_id = next(
            (int(config[key]) for key in _IMAGE_TOKEN_KEYS if config.get(key) is not None),
            known.image_token_id,
        )
        visibility = known.visibility if _sees_ahead(config, known) else "causal"
        return Family(image_token_id, visibility, known.rule(config, image_token_id))
    if any(config.get(key) is not None for key in _VISION_KEYS):
        raise CheckpointError(
            f"model type {name!r} sees images in a way that vlmkit-onnx does not know",
            hint=f"it knows {', '.join(_SEEING)}",
        )
    return Family()


@dataclass(frozen=True, slots=True)
class _GridPositions:
    """M-RoPE of the Qwen-VL families: time, height and width.

    A text token stands at the same place on all three axes. The rows of an image stand at their
    cells of its merged grid, and what follows stands behind the longer side.

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
        parts, place, done = [], 0, 0
        for slot in prompt.media:
            inside = np.flatnonzero(ids[slot.start : slot.stop] == self.image_token_id)
            cells, side = self._cells(slot, len(inside))
            first = slot.start + int(inside[0])
            before = first - done
            parts += [_run(place, before), cells + place + before]
            place += before + side
            done = first + len(inside)
        parts.append(_run(place, len(ids) - done))
        values = np.concatenate(parts, axis=1)
        return Positions(values, int(values.max()) + 1 - len(ids))

    def _cells(self, slot: MediaSlot, count: int) -> tuple[NDArray[np.int64], int]:
        """Return an image's cells ``[3, rows]``, and by how much it moves what follows."""
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
class _Seeing:
    """A family that sees images.

    Attributes:
        image_token_id: where ``config.json`` leaves the default out.
        visibility: who sees whom.
        rule: gives positions.
        two_way: what ``use_bidirectional_attention`` says where it is left out, in families that
            see only backwards if it is not "vision"; None where it does not matter.
    """

    image_token_id: int
    visibility: Visibility = "causal"
    rule: Callable[[Config, int], Callable[[Prompt], Positions]] = _plain_rule
    two_way: str | None = None


def _sees_ahead(config: Config, family: _Seeing) -> bool:
    """Tell whether the tokens of an image see each other, where a family leaves that open.

    Raises:
        CheckpointError: all tokens do.
    """
    if family.two_way is None:
        return True
    text = config.get("text_config") or {}
    told = text.get("use_bidirectional_attention", family.two_way)
    if told == "all":
        raise CheckpointError("every token of the model sees every other, which makes no answers")
    return bool(told == "vision")


_SEEING: Mapping[str, _Seeing] = {
    "llava": _Seeing(32000),
    "vipllava": _Seeing(32000),
    "llava_next": _Seeing(32000),
    "llava_next_video": _Seeing(32001),
    "llava_onevision": _Seeing(151646),
    "granite4_vision": _Seeing(32000),
    "idefics3": _Seeing(128257),
    "smolvlm": _Seeing(128257),
    "qwen2_vl": _Seeing(151655, rule=_grid_rule),
    "qwen2_5_vl": _Seeing(151655, rule=_grid_rule),
    "qwen3_vl": _Seeing(151655, rule=_grid_rule),
    "qwen3_vl_moe": _Seeing(151655, rule=_grid_rule),
    "glm4v": _Seeing(151343, rule=_grid_rule),
    "glm4v_moe": _Seeing(151363, rule=_grid_rule),
    "glm46v": _Seeing(151343, rule=_grid_rule),
    "glm_ocr": _Seeing(59280, rule=_grid_rule),
    "paddleocr_vl": _Seeing(100295, rule=_grid_rule),
    "exaone4_5": _Seeing(67),
    "gemma3": _Seeing(262144, visibility="image_blocks"),
    "gemma4": _Seeing(258880, visibility="near_image_blocks", two_way=""),
    "gemma4_unified": _Seeing(258880, visibility="wide_image_blocks", two_way="vision"),
    "mistral3": _Seeing(10),
    "internvl": _Seeing(151667),
    "aya_vision": _Seeing(255036),
    "cohere2_vision": _Seeing(255036),
    "paligemma": _Seeing(256000, visibility="prefix", rule=_from_one_rule),
}
