"""Makes the default configuration of a family small enough to build it at random in a moment.

Most families use the same names for sizes, so one table serves them. :mod:`.exceptions` has the
other names and rules. This module does not check that the small model can be built or run.
"""

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from census.exceptions import EXCEPTIONS
from census.sizes import HEAD, LAYERS, MOST_LAYERS, SMALL

PER_LAYER_LEAST = 8  # entries of a list that may be one for each layer
TOKEN = re.compile(r".*(token|_bos|_eos|_pad|start|end|patch)_(id|index|ids)|.*_token_idx")
MEDIA = (
    *("image", "video", "audio", "vision", "frame", "boi", "eoi", "boa", "eoa", "visual"),
    "patch",
)
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "encoder_layers")


class Shrinker:
    """Makes one family's configuration small.

    Args:
        vocab_size: of the tokenizer that it gets.
        spare: ids of tokens that no text has, for the family's own.
    """

    def __init__(self, vocab_size: int, spare: list[int]) -> None:
        self._vocab_size = vocab_size
        self._spare = list(spare)
        self._ids: dict[int, int] = {}

    def config(self, model_type: str) -> PreTrainedConfig:
        """Return the small configuration of a family."""
        kind = CONFIG_MAPPING[model_type]
        stated = kind().to_dict()
        small = self._part(stated)
        change: Callable[[dict[str, Any]], None] | None = EXCEPTIONS.get(model_type)
        if change is not None:
            change(small)
        return kind.from_dict(small)

    def _part(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        made = {key: self._value(key, value) for key, value in stated.items()}
        self._choose_layers(stated, made)
        _fit_heads(stated, made)
        _fit_rope(made)
        return made

    def _value(self, key: Any, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._part(value)
        if not isinstance(key, str) or isinstance(value, bool):
            return copy.deepcopy(value)
        if key.startswith(("vocab_size", "unpadded_vocab_size")) and isinstance(value, int):
            return min(value, self._vocab_size)
        if TOKEN.fullmatch(key) and isinstance(value, list):
            return [self._token(key, one) if isinstance(one, int) else one for one in value]
        if TOKEN.fullmatch(key) and isinstance(value, int):
            return self._token(key, value)
        if key in SMALL and isinstance(value, int):
            return min(value, SMALL[key])
        return copy.deepcopy(value)

    def _token(self, key: str, value: int) -> int:
        """Return a token's id in the small vocabulary, the same for the same."""
        is_media = any(word in key for word in MEDIA)
        if value in self._ids or is_media or value >= self._vocab_size:
            if value < 0:
                return value
            return self._ids.setdefault(value, self._spare[len(self._ids) % len(self._spare)])
        return value

    def _choose_layers(self, stated: Mapping[str, Any], made: dict[str, Any]) -> None:
        """Reduce settings for each layer to a few layers of all types."""
        name = next((n for n in LAYER_COUNTS if isinstance(stated.get(n), int)), None)
        count = stated[name] if name else 0
        lists = {k: v for k, v in stated.items() if isinstance(v, list | tuple) and len(v) == count}
        single = {k: v for k, v in stated.items() if _is_by_layer(v, count)}
        if name is None or count < PER_LAYER_LEAST or not (lists or single):
            return
        rows = [
            ([v[i] for v in lists.values()], [_of_layer(v, i) for v in single.values()])
            for i in range(count)
        ]
        kinds = [i for i, row in enumerate(rows) if row not in rows[:i]][:MOST_LAYERS]
        chosen = (kinds * LAYERS)[: max(LAYERS, len(kinds))]
        made[name] = len(chosen)
        for key, value in lists.items():
            made[key] = [self._value(key, value[index]) for index in chosen]
        for key, value in single.items():
            found = {place: _of_layer(value, index) for place, index in enumerate(chosen)}
            made[key] = {p: self._value(key, v) for p, v in found.items() if v is not None}


def _is_by_layer(value: Any, count: int) -> bool:
    """Tell whether keys are numbers of layers."""
    if not isinstance(value, Mapping) or not value:
        return False
    return all(str(key).isdigit() and int(key) < count for key in value)


def _of_layer(value: Mapping[Any, Any], index: int) -> Any:
    return value.get(index, value.get(str(index)))


def _fit_heads(stated: Mapping[str, Any], made: dict[str, Any]) -> None:
    """Fit the heads: as many for keys as for queries, and widths that add up."""
    heads = stated.get("num_attention_heads")
    if heads is not None and stated.get("num_key_value_heads") == heads:
        made["num_key_value_heads"] = made["num_attention_heads"]
    if heads is not None and "head_dim" in stated and stated["head_dim"] is None:
        made["head_dim"] = HEAD
    if "qk_rope_head_dim" not in stated:
        return
    rotated, other = made["qk_rope_head_dim"], made.get("qk_nope_head_dim", HEAD)
    made["num_key_value_heads"] = made["num_attention_heads"]
    if "qk_head_dim" in stated:
        made["qk_head_dim"] = rotated + other
    if stated.get("head_dim") == stated["qk_rope_head_dim"]:
        made["head_dim"] = rotated
    elif "head_dim" in stated:
        made["head_dim"] = rotated + other


def _fit_rope(part: dict[str, Any]) -> None:
    """Let sections and factors of a rotation have as many places as a small head has."""
    head = part.get("head_dim")
    if not isinstance(head, int):
        width, heads = part.get("hidden_size"), part.get("num_attention_heads")
        head = width // heads if isinstance(width, int) and isinstance(heads, int) else HEAD
    rope = part.get("rope_parameters")
    if not isinstance(rope, dict):
        return
    for table in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        share = table.get("partial_rotary_factor") or part.get("partial_rotary_factor") or 1.0
        half = max(1, int(head * share) // 2)
        if isinstance(section := table.get("mrope_section"), list):
            side = 3 * half // 8
            table["mrope_section"] = [half - 2 * side, side, side][: len(section)]
        for key in ("short_factor", "long_factor"):
            if isinstance(table.get(key), list):
                table[key] = table[key][:half]
