"""Positions and attention masks equal those of the families' own code."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import CheckpointError, EngineError
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_onnx.prompts import families
from vlmkit_onnx.prompts.families import Positions, family_of

zoo = pytest.importorskip("zoo", exc_type=ImportError)
GRIDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm4v_moe", "glm46v", "glm_ocr")
GRIDS += ("paddleocr_vl",)
KNOWN = (*GRIDS, "qwen3_vl_moe", "llava", "llava_next", "llava_onevision", "idefics3", "smolvlm")
KNOWN += ("gemma3", "mistral3", "internvl", "paligemma", "vipllava", "llava_next_video")
KNOWN += ("granite4_vision", "exaone4_5", "aya_vision", "cohere2_vision", "gemma4")
KNOWN += ("gemma4_unified",)
HANDED = (*zoo.NAMES_VISION, *zoo.NAMES_VARIANTS)
IMAGE = 500

grids = st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 9))
pieces = st.lists(st.tuples(st.integers(1, 12), grids), min_size=1, max_size=4)


def prompt_of(pieces: list[tuple[int, tuple[int, int, int]]], tail: int) -> Prompt:
    """Return a prompt of text runs and images in turn; a grid counts merged cells."""
    ids: list[int] = []
    slots = []
    for length, (time, height, width) in pieces:
        ids += range(length)
        rows = time * height * width
        grid = np.array([[time, height * 2, width * 2]])
        slots.append(MediaSlot(len(ids), len(ids) + rows, b"", {"image_grid_thw": grid}, rows))
        ids += [IMAGE] * rows
    return Prompt((*ids, *range(tail)), tuple(slots))


@cache
def config_of(name: str) -> Any:
    import transformers

    return transformers.AutoConfig.for_model(name)


@cache
def rope_index_of(name: str) -> Callable[..., Any]:
    """Return the family's own position function, without weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    with torch.device("meta"):
        config = config_of(name)
        config.text_config.num_hidden_layers = config.vision_config.depth = 1
        config.vision_config.num_hidden_layers = 1
        model = transformers.AutoModelForImageTextToText.from_config(config)
    rule: Callable[..., Any] = model.base_model.get_rope_index
    return rule


@pytest.mark.torch
@pytest.mark.parametrize("name", GRIDS)
@settings(max_examples=60)
@given(pieces=pieces, tail=st.integers(1, 12))
def test_positions_of_any_prompt_equal_those_of_the_family(
    name: str, pieces: list[tuple[int, tuple[int, int, int]]], tail: int
) -> None:
    torch = pytest.importorskip("torch")

    prompt = prompt_of(pieces, tail)
    ids = torch.tensor([prompt.token_ids])
    grid = torch.tensor(np.concatenate([slot.inputs["image_grid_thw"] for slot in prompt.media]))
    expected, delta = rope_index_of(name)(ids, (ids == IMAGE).int(), image_grid_thw=grid)

    values, offset = family_of({"model_type": name, "image_token_id": IMAGE}).positions(prompt)

    assert values is not None
    np.testing.assert_array_equal(values, expected[:, 0].numpy())
    assert offset == int(delta)


@pytest.mark.torch
@pytest.mark.parametrize("name", HANDED)
def test_positions_equal_those_of_the_familys_own_code(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    folder = zoo.save(name, tmp_path)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}
    inputs = zoo.reference(name, [message], [zoo.picture(1, 84, 56)], return_tensors="pt")
    seen: dict[str, Any] = {}
    decoder = model.get_decoder()
    decoder.register_forward_pre_hook(lambda _m, _a, kw: seen.update(kw), with_kwargs=True)
    with torch.no_grad():
        model(**{key: value for key, value in inputs.items() if key != "labels"})
    family = family_of(transformers.AutoConfig.from_pretrained(folder).to_dict())
    ids = inputs["input_ids"][0].tolist()
    start = ids.index(family.image_token_id)
    count = ids.count(family.image_token_id)
    arrays = {key: value.numpy() for key, value in inputs.items()}
    prompt = Prompt(tuple(ids), (MediaSlot(start, start + count, b"", arrays, count),))

    values, _ = family.positions(prompt)

    if values is None:
        values = np.arange(len(ids))[None]
    handed = seen.get("position_ids")
    handed = torch.arange(len(ids))[None] if handed is None else handed
    np.testing.assert_array_equal(values, handed.reshape(-1, len(ids)).numpy())


@pytest.mark.torch
@pytest.mark.parametrize("name", KNOWN)
def test_an_image_token_that_a_config_leaves_out_is_the_familys_default(name: str) -> None:
    assert family_of({"model_type": name}).image_token_id == config_of(name).image_token_id


def test_a_qwen_prompt_without_images_has_consecutive_positions() -> None:
    family = family_of({"model_type": "qwen2_vl"})
    assert family.positions(Prompt((1, 2, 3))) == Positions(None, 0)


def test_paligemma_counts_from_one_and_sees_its_whole_prompt() -> None:
    family = family_of({"model_type": "paligemma", "image_token_index": IMAGE})
    values, offset = family.positions(Prompt((IMAGE, 2, 3)))
    assert values is not None
    assert values.tolist() == [[1, 2, 3]]
    assert offset == 1
    assert family.visibility == "prefix"


def test_only_images_of_gemma_have_bidirectional_attention() -> None:
    seen = {name: family_of({"model_type": name}).visibility for name in KNOWN}
    assert {name: sees for name, sees in seen.items() if sees != "causal"} == {
        "gemma3": "image_blocks",
        "gemma4_unified": "wide_image_blocks",
        "paligemma": "prefix",
    }


@pytest.mark.parametrize(
    ("name", "sees"), [("gemma4", "near_image_blocks"), ("gemma4_unified", "wide_image_blocks")]
)
def test_gemma_4_states_whether_image_tokens_see_each_other(name: str, sees: str) -> None:
    seen = []
    for said in ("vision", None):
        text = {"use_bidirectional_attention": said}
        seen.append(family_of({"model_type": name, "text_config": text}).visibility)
    assert seen == [sees, "causal"]

    everywhere = {"model_type": name, "text_config": {"use_bidirectional_attention": "all"}}
    with pytest.raises(CheckpointError, match="every token of the model sees every other"):
        family_of(everywhere)


@pytest.mark.torch
def test_prompt_layouts_and_towers_cover_the_same_families() -> None:
    pytest.importorskip("torch")
    from vlmkit_onnx.export.towers import table

    assert set(families._VISION_FAMILIES) == set(table._TOWERS) == set(KNOWN)


def test_a_text_family_has_no_image_token() -> None:
    family = family_of({"model_type": "llama"})
    assert family.image_token_id is None
    assert family.visibility == "causal"
    assert family.positions(Prompt((1, 2))) == Positions(None, 0)


@pytest.mark.parametrize("key", ["vision_config", "image_token_index", "mm_vision_tower"])
def test_an_unknown_family_with_images_is_refused(key: str) -> None:
    with pytest.raises(CheckpointError, match="'newvlm' takes images in a way"):
        family_of({"model_type": "newvlm", key: 1})


def test_an_image_without_a_grid_is_refused() -> None:
    prompt = Prompt((IMAGE, 1), (MediaSlot(0, 1, b"", {}, 1),))
    family = family_of({"model_type": "qwen2_vl", "image_token_id": IMAGE})
    with pytest.raises(EngineError, match="'image_grid_thw'"):
        family.positions(prompt)


def test_a_grid_that_does_not_fit_the_prompt_is_refused() -> None:
    grid = np.array([[1, 4, 4]])
    prompt = Prompt((IMAGE, 1), (MediaSlot(0, 1, b"", {"image_grid_thw": grid}, 1),))
    family = family_of({"model_type": "qwen2_vl", "image_token_id": IMAGE})
    with pytest.raises(EngineError, match="1x2x2 cells, and its prompt 1 places"):
        family.positions(prompt)
