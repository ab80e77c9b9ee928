"""Images under a limit equal those of transformers, fill the limit, or are refused by name."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import zoo
from vlmkit.errors import ImageError, RequestError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.area import Area
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer

TokenizerOf = Callable[[str], HfTokenizer]

FIXED = ["llava", "llava_next", "gemma3", "paligemma"]
SIZED = [name for name in zoo.NAMES_VISION if name not in FIXED]
LIMITED = {
    "llama4": {"max_patches": 2},
    "cohere2_vision": {"max_patches": 1},
    "molmo2": {"max_crops": 1},
    "kimi_k25": {"max_patches": 12},
    "lfm2_vl": {"max_image_tokens": 4},
    "muse_glimmer": {"max_image_tokens": 4},
    "muse_spark": {"max_image_tokens": 3},
    "nemotron_h_omni": {"max_num_patches": 24},
    "gemma4_unified": {"max_soft_tokens": 70},
    "minicpmv4_6": {"max_slice_nums": 2},
    "ovis2": {"max_patches": 1},
    "step3p7": {"max_image_size": 56},
}
"""Families whose images have one limit, with a lower limit, or the only one."""
UNSIZED = ["video_llava", "aria", "emu3", "blip-2", "mllama"]
TOKEN = 28 * 28
TO_CLIENTS = {
    **LIMITED,
    "qwen2_vl": {"max_pixels": 4 * TOKEN},
    "qwen2_5_vl": {"min_pixels": 3 * TOKEN, "max_pixels": 6 * TOKEN},
    "qwen3_vl": {"size": {"longest_edge": 2 * TOKEN}},
    "glm4v": {"max_pixels": 8 * TOKEN},
    "idefics3": {"size": {"longest_edge": 28}},
    "smolvlm": {"do_image_splitting": False},
    "mistral3": {"size": {"longest_edge": 40}},
    "internvl": {"max_dynamic_patch": 2, "min_dynamic_patch": 2},
}
TO_TRANSFORMERS: dict[str, Mapping[str, Any]] = {
    "qwen2_vl": {"size": {"shortest_edge": TOKEN, "longest_edge": 4 * TOKEN}},
    "qwen2_5_vl": {"size": {"shortest_edge": 3 * TOKEN, "longest_edge": 6 * TOKEN}},
    "qwen3_vl": {"size": {"shortest_edge": TOKEN, "longest_edge": 2 * TOKEN}},
    "glm4v": {"size": {"shortest_edge": TOKEN, "longest_edge": 8 * TOKEN}},
    "internvl": {"max_patches": 2, "min_patches": 2},
}
"""The limits of clients, and the equal settings of the processor where these differ."""


def slots(tokenizer: HfTokenizer, *images: Image, **options: Any) -> tuple[MediaSlot, ...]:
    shown = [ImagePart(image, ImageOptions(**options)) for image in images]
    return tokenizer.prompt([Message.of("user", "What?", shown)]).media


def test_every_family_has_limits_or_a_fixed_size(tokenizer_of: TokenizerOf) -> None:
    for name in (*zoo.NAMES_VISION, *zoo.NAMES_MORE, *zoo.NAMES_OTHERS):
        honours = tokenizer_of(name).honours
        assert "max_image_tokens" in honours
        has_sizes = name in SIZED or name in LIMITED
        assert has_sizes != (name in FIXED or name in UNSIZED)
        assert {"image_detail", "mm_processor_kwargs"} & honours == (
            {"image_detail", "mm_processor_kwargs"} if has_sizes else set()
        )
    assert "max_image_tokens" not in tokenizer_of("llama").honours


@pytest.mark.parametrize("name", [*SIZED, *LIMITED])
def test_limited_images_equal_those_of_transformers(tokenizer_of: TokenizerOf, name: str) -> None:
    originals = [zoo.picture(1), zoo.picture(2, 84, 40), zoo.picture(3, 50, 100)]
    shown = ImageOptions(processor=TO_CLIENTS[name])
    parts = [ImagePart(Image.open(original), shown) for original in originals]
    ours = tokenizer_of(name).prompt([Message.of("user", "What?", parts)])
    content = [*({"type": "image"} for _ in originals), {"type": "text", "text": "What?"}]
    limits = TO_TRANSFORMERS.get(name, TO_CLIENTS[name])
    theirs = zoo.reference(name, [{"role": "user", "content": content}], originals, limits=limits)

    assert list(ours.token_ids) == np.asarray(theirs["input_ids"])[0].tolist()
    for original, slot in zip(originals, ours.media, strict=True):
        (alone,) = (content[:1] + content[-1:],)
        made = zoo.reference(name, [{"role": "user", "content": alone}], [original], limits=limits)
        for key in slot.inputs.keys() - {"mm_token_type_ids"}:  # covers the tokens of one slot only
            array = slot.inputs[key]
            np.testing.assert_array_equal(np.asarray(array), np.asarray(made[key]))


@pytest.mark.parametrize("name", SIZED)
@settings(max_examples=20)
@given(
    short=st.integers(4, 50),
    ratio=st.sampled_from([1, 1.3, 2, 5, 20, 60]),
    is_wide=st.booleans(),
    share=st.floats(0.01, 1),
)
def test_an_image_fills_its_token_limit_or_is_refused_with_the_minimum(
    tokenizer_of: TokenizerOf, name: str, short: int, ratio: float, is_wide: bool, share: float
) -> None:
    tokenizer = tokenizer_of(name)
    size = (int(short * ratio), short) if is_wide else (short, int(short * ratio))
    image = Image.open(np.full((size[1], size[0], 3), 90, dtype=np.uint8))
    try:
        (plain,) = slots(tokenizer, image)
    except ImageError:
        return  # a strip that resizing would reduce to nothing
    bound = max(1, int(plain.num_features * share))
    sizing = tokenizer._images._sizing  # type: ignore[union-attr]
    assert sizing is not None
    found = [
        sizing.num_tokens(Size(image.height, image.width), sizing.at(step, {}))
        for step in sizing.steps({})
    ]
    smaller = [num for num in (*found, plain.num_features) if num]
    if min(smaller) > bound:
        with pytest.raises(ImageError, match=f"needs {min(smaller)} at least"):
            slots(tokenizer, image, max_tokens=bound)
        bound = min(smaller)
    (slot,) = slots(tokenizer, image, max_tokens=bound)
    assert slot.num_features == max(num for num in smaller if num <= bound)
    assert slots(tokenizer, image, wanted_tokens=1)[0].num_features == min(smaller)


# The images are fixed, since Hypothesis would choose them by what other tests import, and a few are
# known to fail: LFM2-VL refuses strips, such as 13x260. Step 3.7 states too high a minimum for
# 49x980 and 44x57, since its number of tokens is not monotonic.
STRIPS_FAIL = ("lfm2_vl", "step3p7")
RANDOM = random.Random(0)
LIMITED_IMAGES = [
    (
        RANDOM.randint(4, 50),
        RANDOM.choice([1, 1.3, 2, 5, 20]),
        RANDOM.random() < 0.5,
        RANDOM.uniform(0.01, 1),
    )
    for _ in range(12)
]


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize(("short", "ratio", "is_wide", "share"), LIMITED_IMAGES)
def test_an_image_of_a_limited_family_fits_any_limit_or_states_the_minimum(
    tokenizer_of: TokenizerOf, name: str, short: int, ratio: float, is_wide: bool, share: float
) -> None:
    if ratio == 20 and name in STRIPS_FAIL:
        pytest.xfail("known, see above")
    tokenizer = tokenizer_of(name)
    size = (int(short * ratio), short) if is_wide else (short, int(short * ratio))
    image = Image.open(np.full((size[1], size[0], 3), 90, dtype=np.uint8))
    (plain,) = slots(tokenizer, image)
    bound = max(1, int(plain.num_features * share))
    sizing = tokenizer._images._sizing  # type: ignore[union-attr]
    assert sizing is not None
    found = {
        sizing.num_tokens(Size(image.height, image.width), sizing.at(step, {}))
        for step in sizing.steps({})
    }
    least = min({plain.num_features, *found} - {0})
    if least > bound:
        with pytest.raises(ImageError, match=f"needs {least} at least"):
            slots(tokenizer, image, max_tokens=bound)
        bound = least
    (slot,) = slots(tokenizer, image, max_tokens=bound)
    assert slot.num_features <= bound
    assert slot.num_features in found | {plain.num_features}


@pytest.mark.parametrize("name", FIXED)
def test_a_family_of_one_size_keeps_it_or_refuses_a_limit(
    tokenizer_of: TokenizerOf, name: str
) -> None:
    tokenizer, image = tokenizer_of(name), Image.open(zoo.picture(1, 84, 40))
    (plain,) = slots(tokenizer, image)
    num = plain.num_features

    assert slots(tokenizer, image, max_tokens=num)[0].digest == plain.digest
    assert slots(tokenizer, image, wanted_tokens=1)[0].digest == plain.digest
    with pytest.raises(ImageError) as caught:
        slots(tokenizer, image, max_tokens=num - 1)
    assert caught.value.code == "image_over_budget"
    assert str(caught.value) == (
        f"max_image_tokens is {num - 1}, and this model needs {num} at least for an image of 84x40"
    )


@pytest.mark.parametrize(
    ("name", "limits", "param"),
    [
        ("qwen2_vl", {"max_pixels": 84 * 84 + 1}, ".max_pixels"),
        ("qwen2_vl", {"max_pixels": 0}, ".max_pixels"),
        ("qwen2_vl", {"max_pixels": "784"}, ".max_pixels"),
        ("qwen2_vl", {"min_pixels": 3000, "max_pixels": 2000}, ".min_pixels"),
        ("qwen2_vl", {"size": {"longest_edge": 784}, "max_pixels": 784}, ""),
        ("qwen2_vl", {"size": {"height": 784}}, ".size"),
        ("qwen2_vl", {"size": 784}, ".size"),
        ("qwen2_vl", {"patch_size": 7}, ""),
        ("qwen2_vl", {"do_resize": False}, ""),
        ("idefics3", {"size": {"longest_edge": 57}}, ".longest_edge"),
        ("idefics3", {"max_image_size": {"longest_edge": 14}}, ""),
        ("smolvlm", {"do_image_splitting": 1}, ".do_image_splitting"),
        ("mistral3", {"size": {"longest_edge": 85}}, ".longest_edge"),
        ("internvl", {"max_dynamic_patch": 4}, ".max_dynamic_patch"),
        ("internvl", {"max_patches": 2, "max_dynamic_patch": 2}, ""),
        ("internvl", {"max_patches": 1, "min_patches": 2}, ".min_patches"),
        ("internvl", {"dynamic_image_size": "no"}, ".dynamic_image_size"),
        ("kimi_k25", {"max_patches": 61}, ".max_patches"),
        ("kimi_k25", {"patch_size": 7}, ""),
        ("gemma4_unified", {"max_soft_tokens": 69}, ".max_soft_tokens"),
    ],
)
def test_unknown_and_too_large_limits_are_refused_by_name(
    tokenizer_of: TokenizerOf, name: str, limits: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        slots(tokenizer_of(name), Image.open(zoo.picture(1)), processor=limits)
    assert caught.value.param == f"mm_processor_kwargs{param}"


def test_an_image_that_is_not_split_is_one_tile(tokenizer_of: TokenizerOf) -> None:
    image = Image.open(zoo.picture(1, 100, 60))
    for name, limits in {
        "internvl": {"crop_to_patches": False},
        "idefics3": {"do_image_splitting": False},
    }.items():
        (slot,) = slots(tokenizer_of(name), image, processor=limits)
        assert slot.num_features == 4
        assert slot.transform is not None
        assert slot.transform.num_tiles == 1


def test_a_token_limit_lowers_the_limits_of_a_client(tokenizer_of: TokenizerOf) -> None:
    limits = {"min_pixels": 9 * TOKEN}
    image, tokenizer = Image.open(zoo.picture(1, 30, 30)), tokenizer_of("qwen2_vl")

    assert slots(tokenizer, image, processor=limits)[0].num_features == 9
    assert slots(tokenizer, image, processor=limits, max_tokens=4)[0].num_features == 4


def test_the_transform_of_a_smaller_image_describes_its_own_size(tokenizer_of: TokenizerOf) -> None:
    image = Image.open(zoo.picture(1, 84, 56))
    large, small = (
        slots(tokenizer_of("qwen2_vl"), image, max_tokens=most)[0].transform for most in (6, 2)
    )

    assert large is not None
    assert small is not None
    assert (large.used_size, small.used_size) == ((56, 84), (28, 56))
    assert small.scale == (0.5, 2 / 3)


def test_limits_that_predict_wrong_numbers_of_tokens_are_not_used(
    checkpoint_of: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Area, "num_tokens", lambda *_: 3)
    tokenizer = HfTokenizer(checkpoint_of("qwen2_vl"), HfTokenizerSettings())
    image = Image.open(zoo.picture(1))
    num = slots(tokenizer, image)[0].num_features

    assert "image_detail" not in tokenizer.honours
    with pytest.raises(ImageError, match=f"needs {num} at least"):
        slots(tokenizer, image, max_tokens=1)


def test_a_processor_without_resizing_has_no_limits(
    checkpoint_of: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    for path in checkpoint_of("internvl").path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "preprocessor_config.json"
    path.write_text(path.read_text().replace('"do_resize": true', '"do_resize": false'))

    assert (
        "image_detail" not in HfTokenizer(Checkpoint("m", tmp_path), HfTokenizerSettings()).honours
    )


def test_an_image_outside_the_text_counts_as_the_patches_of_its_tower(
    tokenizer_of: TokenizerOf, checkpoint_of: Callable[[str], Checkpoint]
) -> None:
    original = Image.open(zoo.picture(1, 60, 44))
    side = checkpoint_of("mllama").config["vision_config"]["patch_size"]
    (slot,) = slots(tokenizer_of("mllama"), original)
    assert slot.num_features == 1
    assert slot.encoder_tokens == np.asarray(slot.inputs["pixel_values"]).size // (3 * side**2) > 1

    (slot,) = slots(tokenizer_of("llava"), original)
    assert slot.encoder_tokens == slot.num_features > 1
