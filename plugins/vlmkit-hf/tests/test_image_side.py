"""Image preprocessing: refused images, digests and transforms."""

import dataclasses
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings, strategies as st
from transformers.models.smolvlm import processing_smolvlm

import zoo
from vlmkit.errors import CheckpointError, ImageError, RequestError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.settings.images import ImageLimits
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.transform import TileGrid, Transform
from vlmkit_hf.images.calls import ProcessorCalls
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer

TokenizerOf = Callable[[str], HfTokenizer]
CheckpointOf = Callable[[str], Checkpoint]
ROW, SQUARE = (TileGrid(shape, (28, 28), (28, 28)) for shape in ((1, 2), (2, 2)))


def prompt(tokenizer: HfTokenizer, *images: Image):  # type: ignore[no-untyped-def]
    return tokenizer.prompt([Message.of("user", "What?", images)])


def plain(width: int, height: int) -> Image:
    return Image.open(np.full((height, width, 3), 90, dtype=np.uint8))


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
@settings(max_examples=25)
@given(short=st.integers(2, 40), ratio=st.floats(1, 100), is_wide=st.booleans())
def test_an_image_of_any_allowed_shape_is_accepted_or_refused(
    tokenizer_of: TokenizerOf, name: str, short: int, ratio: float, is_wide: bool
) -> None:
    long = int(short * ratio)
    size = (long, short) if is_wide else (short, long)
    try:
        made = prompt(tokenizer_of(name), plain(*size))
    except ImageError:
        return
    (slot,) = made.media
    assert 0 < slot.num_features <= slot.stop - slot.start


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
def test_a_refused_image_does_not_affect_the_next_request(
    tokenizer_of: TokenizerOf, name: str
) -> None:
    tokenizer = tokenizer_of(name)
    before = prompt(tokenizer, plain(64, 48))
    for size in ((2, 200), (200, 2), (2, 2)):
        try:
            prompt(tokenizer, plain(*size))
        except ImageError:
            continue
    after = prompt(tokenizer, plain(64, 48))

    assert after.token_ids == before.token_ids


def test_an_image_that_the_family_refuses_raises_an_image_error(tokenizer_of: TokenizerOf) -> None:
    strip = np.zeros((2, 402, 3), dtype=np.uint8)  # Qwen2-VL refuses side ratios over 200
    image = Image.open(strip, ImageLimits(max_aspect_ratio=1000.0))

    with pytest.raises(ImageError) as caught:
        prompt(tokenizer_of("qwen2_vl"), image)
    assert str(caught.value) == "the model's image processor cannot take an image of 402x2"


def test_a_memory_error_is_not_reported_as_a_bad_image(
    tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        np.empty(2**60, np.uint8)

    tokenizer = tokenizer_of("qwen2_vl")
    monkeypatch.setattr(ProcessorCalls, "process", fail)
    with pytest.raises(MemoryError):
        prompt(tokenizer, plain(64, 48))


def test_the_digest_changes_with_the_processors_settings(
    checkpoint_of: CheckpointOf, tokenizer_of: TokenizerOf, tmp_path: Path
) -> None:
    for path in checkpoint_of("qwen2_vl").path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "image_mean": [0.1, 0.2, 0.3]}))
    other = HfTokenizer(Checkpoint("m", tmp_path), HfTokenizerSettings())
    digests = {prompt(t, plain(64, 48)).media[0].digest for t in (tokenizer_of("qwen2_vl"), other)}

    assert len(digests) == 2


def test_the_digest_changes_with_the_package_that_prepared_the_image(
    checkpoint_of: CheckpointOf, tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prompt(tokenizer_of("qwen2_vl"), plain(64, 48)).media[0]
    monkeypatch.setattr("vlmkit_hf.images.side.version", lambda _: "0.0.0")
    other = HfTokenizer(checkpoint_of("qwen2_vl"), HfTokenizerSettings())

    assert prompt(other, plain(64, 48)).media[0].digest != before.digest


def test_a_processor_that_needs_num2words_for_video_works_for_images_without_it(
    checkpoint_of: CheckpointOf, tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prompt(tokenizer_of("smolvlm"), plain(64, 48))
    monkeypatch.setattr(processing_smolvlm, "num2words", None)
    made = prompt(HfTokenizer(checkpoint_of("smolvlm"), HfTokenizerSettings()), plain(64, 48))

    assert made.token_ids == expected.token_ids
    assert made.media[0].digest == expected.media[0].digest
    assert processing_smolvlm.num2words is None, "whoever else asks for video is told the truth"


def test_a_model_that_needs_an_image_refuses_a_prompt_without_one(
    tokenizer_of: TokenizerOf,
) -> None:
    with pytest.raises(RequestError, match="this model needs an image"):
        prompt(tokenizer_of("paligemma"))


def test_a_text_model_refuses_images(tokenizer_of: TokenizerOf) -> None:
    with pytest.raises(RequestError) as caught:
        prompt(tokenizer_of("llama"), plain(8, 8))
    assert caught.value.code == "images_not_supported"


@pytest.mark.parametrize(
    ("name", "size", "used", "more"),
    [
        ("qwen2_vl", (84, 40), (28, 84), {}),
        ("glm4v", (84, 40), (28, 84), {}),
        ("gemma3", (84, 40), (56, 56), {}),
        ("paligemma", (84, 40), (28, 28), {}),
        ("mistral3", (84, 40), (56, 84), {}),
        ("llava", (84, 40), (28, 58), {"crop": (0, 15, 28, 43)}),
        ("llava", (40, 84), (58, 28), {"crop": (15, 0, 43, 28)}),
        ("llava_next", (84, 40), (27, 56), {"pad": (0, 0, 1, 0), "num_tiles": 3, "grid": ROW}),
        ("idefics3", (60, 60), (56, 56), {"num_tiles": 5, "grid": SQUARE}),
        ("internvl", (84, 40), (28, 56), {"num_tiles": 3, "grid": ROW}),
        ("internvl", (60, 60), (28, 28), {}),
    ],
)
def test_the_transform_describes_the_preprocessing(
    tokenizer_of: TokenizerOf,
    name: str,
    size: tuple[int, int],
    used: tuple[int, int],
    more: dict[str, object],
) -> None:
    width, height = size
    transform = prompt(tokenizer_of(name), plain(width, height)).media[0].transform

    assert transform == Transform(
        source_size=(height, width),
        turned=False,
        upright_size=(height, width),
        used_size=used,
        scale=(used[0] / height, used[1] / width),
        **more,
    )


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "gemma3", "paligemma", "mistral3"])
def test_the_transform_maps_a_mark_to_its_position_in_the_image(
    tokenizer_of: TokenizerOf, name: str
) -> None:
    """A white square is in the arrays at the position that the transform computes."""
    pixels = np.zeros((80, 80, 3), dtype=np.uint8)
    pixels[36:52, 24:40] = 255
    slot = prompt(tokenizer_of(name), Image.open(pixels)).media[0]
    if name == "qwen2_vl":
        found = _unpatched(slot.inputs, 14, 2)
    else:
        found = np.asarray(slot.inputs["pixel_values"])[0, 0]
    rows, columns = np.nonzero(found > (found.max() + found.min()) / 2)
    assert slot.transform is not None
    top, left = slot.transform.crop[:2] if slot.transform.crop else (0, 0)
    vertical, horizontal = slot.transform.scale

    assert abs(rows.mean() + 0.5 + top - 44 * vertical) < 1.5
    assert abs(columns.mean() + 0.5 + left - 32 * horizontal) < 1.5


def _unpatched(inputs: object, patch: int, merge: int) -> np.ndarray:
    """Reassemble the patches of Qwen2-VL; return ``[height, width]`` of the first channel."""
    rows, columns = np.asarray(inputs["image_grid_thw"])[0, 1:]  # type: ignore[index]
    pixels = np.asarray(inputs["pixel_values"])  # type: ignore[index]
    shape = (rows // merge, columns // merge, merge, merge, 3, 2, patch, patch)
    blocks = pixels.reshape(shape)[..., 0, 0, :, :]
    return blocks.transpose(0, 2, 4, 1, 3, 5).reshape(rows * patch, columns * patch)


def test_a_broken_processor_config_is_a_broken_checkpoint(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    for path in checkpoint_of("llava").path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "preprocessor_config.json").unlink()

    with pytest.raises(CheckpointError, match=r"'m' has no 'preprocessor_config\.json'"):
        HfTokenizer(Checkpoint("m", tmp_path), HfTokenizerSettings())


@pytest.mark.parametrize("name", ["llava", "llava_next", "idefics3", "gemma3", "paligemma"])
def test_a_processor_saved_in_one_file_gives_the_same_inputs(
    checkpoint_of: CheckpointOf, tokenizer_of: TokenizerOf, tmp_path: Path, name: str
) -> None:
    for path in checkpoint_of(name).path.iterdir():
        if not path.name.startswith(("preprocessor", "processor", "tokenizer")):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    zoo.processor(name).save_pretrained(tmp_path)
    tokenizer = HfTokenizer(Checkpoint("m", tmp_path), HfTokenizerSettings())
    image = Image.open(zoo.picture(1, 64, 48))

    assert not (tmp_path / "preprocessor_config.json").exists()
    assert prompt(tokenizer, image).token_ids == prompt(tokenizer_of(name), image).token_ids


def test_a_checkpoint_that_names_a_fast_image_processor_gets_the_pillow_form(
    checkpoint_of: CheckpointOf, tokenizer_of: TokenizerOf, tmp_path: Path
) -> None:
    for path in checkpoint_of("qwen2_vl").path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "preprocessor_config.json"
    content = {**json.loads(path.read_text()), "image_processor_type": "Qwen2VLImageProcessorFast"}
    path.write_text(json.dumps(content))
    tokenizer = HfTokenizer(Checkpoint("m", tmp_path), HfTokenizerSettings())
    image = Image.open(zoo.picture(1, 64, 48))

    assert prompt(tokenizer, image).token_ids == prompt(tokenizer_of("qwen2_vl"), image).token_ids


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "idefics3"])
def test_a_rotated_image_is_processed_upright_and_the_transform_says_so(
    tokenizer_of: TokenizerOf, tmp_path: Path, name: str
) -> None:
    upright = zoo.picture(1, 80, 48)
    turned = upright.transpose(PIL.Image.Transpose.ROTATE_90)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # "turn a quarter clockwise"
    turned.save(tmp_path / "turned.png", exif=exif)
    one = prompt(tokenizer_of(name), Image.open(upright)).media[0]
    other = prompt(tokenizer_of(name), Image.open(tmp_path / "turned.png")).media[0]

    assert other.digest == one.digest
    np.testing.assert_array_equal(
        np.asarray(other.inputs["pixel_values"]), np.asarray(one.inputs["pixel_values"])
    )
    assert one.transform is not None
    assert other.transform == dataclasses.replace(one.transform, source_size=(80, 48), turned=True)
    assert one.transform.upright_size == (48, 80)


@pytest.mark.parametrize("name", zoo.NAMES_VISION)
def test_threads_that_prepare_different_images_do_not_mix_them(
    tokenizer_of: TokenizerOf, name: str
) -> None:
    tokenizer = tokenizer_of(name)
    images = [Image.open(zoo.picture(seed, 30 + 9 * seed, 90 - 7 * seed)) for seed in range(8)]
    expected = [prompt(tokenizer, image) for image in images]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda image: prompt(tokenizer, image), images * 4))

    for number, other in enumerate(made):
        same = expected[number % len(images)]
        assert other.token_ids == same.token_ids
        for key, array in same.media[0].inputs.items():
            np.testing.assert_array_equal(np.asarray(other.media[0].inputs[key]), array)


@pytest.mark.torch  # the processor's class in older versions of transformers
def test_a_processor_with_an_unknown_layout_is_refused_by_name(
    tmp_path: Path,
) -> None:
    checkpoint = Checkpoint("m", zoo.save_processor("fuyu", tmp_path))

    with pytest.raises(CheckpointError, match=r"'m' \(FuyuProcessor\) treats images in a way that"):
        HfTokenizer(checkpoint, HfTokenizerSettings())


@pytest.mark.parametrize(
    ("name", "field"), [("llava", "image_token_index"), ("qwen2_vl", "image_token_id")]
)
@pytest.mark.parametrize("token", [5, 10_000_000, -200])
def test_an_invalid_image_token_is_reported_by_its_field(
    checkpoint_of: CheckpointOf, tmp_path: Path, name: str, field: str, token: int
) -> None:
    for path in checkpoint_of(name).path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("image_token_index", "image_token_id"):
        config.pop(key, None)
    (tmp_path / "config.json").write_text(json.dumps({**config, field: token}))

    with pytest.raises(
        CheckpointError, match=f"config.json of model 'm': '{field}' is {token}, which is no token"
    ):
        HfTokenizer(Checkpoint("m", tmp_path), HfTokenizerSettings())


def test_invalid_processor_settings_raise_a_checkpoint_error(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    for path in checkpoint_of("llava").path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "image_mean": []}))

    with pytest.raises(CheckpointError, match=r"treats images in a way that vlmkit-hf does not"):
        HfTokenizer(Checkpoint("m", tmp_path), HfTokenizerSettings())


def test_a_tokenizer_that_panics_at_a_text_is_refused_at_load(
    checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    for path in checkpoint_of("llava").path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"]["single"][0]["SpecialToken"]["id"] = "x"
    file.write_text(json.dumps(content))

    with pytest.raises(CheckpointError, match=r"'tokenizer\.json' of model 'm' cannot encode"):
        HfTokenizer(Checkpoint("m", tmp_path), HfTokenizerSettings())
