"""Image processors of families whose transformers processors need torchvision, by definition.

``test_torchvision`` compares them with those of transformers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import zoo
from vlmkit.errors import RequestError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit_hf.images.pillow import pixels
from vlmkit_hf.images.pillow.processor import processor_class
from vlmkit_hf.images.pillow.views import Cut, Pad, Resize, num_tiles, show
from vlmkit_hf.images.size import Size
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer

BILINEAR, BICUBIC = PIL.Image.Resampling.BILINEAR, PIL.Image.Resampling.BICUBIC


def processor(name: str, **settings: Any) -> Any:
    kind = processor_class(name)
    assert kind is not None
    return kind(**settings)


def test_processor_names_are_recognised_with_and_without_the_suffix_fast() -> None:
    names = ("Llama4ImageProcessor", "Llama4ImageProcessorFast", "CLIPImageProcessor", "")
    known = [processor_class(name) is not None for name in names]

    assert known == [True, True, False, False]


def test_a_tile_is_resized_by_pillow_and_normalised_in_float32() -> None:
    original = zoo.picture(1, 60, 60)
    made = processor("Cohere2VisionImageProcessor", size={"height": 28, "width": 28}, max_patches=1)
    values = made(original, return_tensors="np")["pixel_values"]
    levels = np.asarray(original.resize((28, 60), BICUBIC).resize((28, 28), BICUBIC), np.float32)
    mean, deviation = (np.float32(n) * 255 for n in (made.image_mean, made.image_std))

    np.testing.assert_array_equal(values[0], ((levels - mean) / deviation).transpose(2, 0, 1))


@pytest.mark.torch
def test_llama4_rounds_every_step_to_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    original = zoo.picture(1, 28, 28)
    made = processor("Llama4ImageProcessor", size={"height": 28, "width": 28}, max_patches=1)
    values = made(original, return_tensors="np")["pixel_values"]
    levels = torch.from_numpy(np.array(original)).permute(2, 0, 1).to(torch.bfloat16)
    half = torch.tensor(0.5, dtype=torch.bfloat16)
    expected = (levels * made.rescale_factor).sub(half).div(half)

    assert torch.equal(torch.from_numpy(values[0]), expected.float())


@pytest.mark.torch
def test_resizing_without_a_filter_equals_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    original = np.array(zoo.picture(1, 60, 44))
    wanted = torch.from_numpy(original).permute(2, 0, 1)[None].float()
    for size in (Size(28, 28), Size(100, 33)):
        made = pixels.unfiltered(original, size, BILINEAR)
        expected = torch.nn.functional.interpolate(wanted, size=tuple(size), mode="bilinear")
        apart = np.abs(made - expected[0].permute(1, 2, 0).round().numpy())
        assert apart.max() <= 1
        assert (apart > 0).mean() < 0.001


def test_a_view_is_resized_padded_and_cut_row_by_row() -> None:
    original = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    view = (Pad(Size(4, 8), fill=9), Cut(Size(4, 4), Size(4, 2)))
    tiles = show(original, view, lambda it, _: it)

    assert num_tiles(view) == len(tiles) == 3
    np.testing.assert_array_equal(tiles[1], original[:, 2:6])
    assert (tiles[2][:, 2:] == 9).all()
    assert num_tiles((Resize(Size(8, 8)),)) == 1


@pytest.fixture(scope="module", params=[*zoo.NAMES_MORE, *zoo.NAMES_OTHERS, *zoo.NAMES_THINKERS])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = zoo.save_processor(request.param, tmp_path_factory.mktemp(request.param))
    return HfTokenizer(Checkpoint(request.param, folder), HfTokenizerSettings())


def test_a_prompt_has_the_tokens_of_the_family_processor(tokenizer: HfTokenizer) -> None:
    originals = [zoo.picture(1, 84, 40), zoo.picture(2, 50, 100)]
    images = tokenizer._images
    assert images is not None
    if images.leads:
        originals = originals[:1]
    name = images._checkpoint.name
    made = tokenizer.prompt([Message.of("user", "What?", [Image.open(p) for p in originals])])
    parts = [*({"type": "image"} for _ in originals), {"type": "text", "text": "What?"}]
    wanted = zoo.reference(name, [{"role": "user", "content": parts}], originals)

    assert list(made.token_ids) == np.asarray(wanted["input_ids"])[0].tolist()


def test_a_model_of_one_image_refuses_a_second_by_name(tmp_path: Path) -> None:
    checkpoint = Checkpoint("m", zoo.save_processor("blip-2", tmp_path))
    made = HfTokenizer(checkpoint, HfTokenizerSettings())
    shown = [Image.open(zoo.picture(1)), Image.open(zoo.picture(2))]

    with pytest.raises(RequestError, match="takes one image, and there are 2") as caught:
        made.prompt([Message.of("user", "What?", shown)])
    assert caught.value.code == "too_many_images"


def test_a_leading_image_comes_first_wherever_the_message_has_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint("m", zoo.save_processor("blip-2", tmp_path))
    made = HfTokenizer(checkpoint, HfTokenizerSettings())
    said = Message.of("user", "Wait."), Message.of("assistant", "Yes.")
    shown = Message.of("user", "What?", [Image.open(zoo.picture(1))])
    prompt = made.prompt([*said, shown])
    alone = made.prompt([*said, Message.of("user", "What?")])

    assert (prompt.media[0].start, prompt.media[0].stop) == (0, 6)
    assert prompt.token_ids[6:] == alone.token_ids


def test_an_outlined_image_has_the_same_tokens(tokenizer: HfTokenizer) -> None:
    images = tokenizer._images
    assert images is not None
    for original in (zoo.picture(1, 84, 40), zoo.picture(2, 50, 100)):
        image = Image.open(original)
        whole = images.prepare(image, tokenizer._encoder)
        light = images.outline(image, tokenizer._encoder, {})
        assert light.expansion == whole.expansion


@pytest.mark.parametrize(
    ("name", "used", "pad", "count"),
    [
        ("llama4", (28, 58), None, 4),
        ("cohere2_vision", (56, 112), (0, 0, 0, 0), 3),
        ("gemma4_unified", None, (0, 0, 0, 0), 1),
    ],
)
def test_the_transform_describes_the_preprocessing(
    tmp_path: Path, name: str, used: tuple[int, int] | None, pad: Any, count: int
) -> None:
    checkpoint = Checkpoint(name, zoo.save_processor(name, tmp_path))
    made = HfTokenizer(checkpoint, HfTokenizerSettings())
    original = Image.open(zoo.picture(1, 84, 40))
    (slot,) = made.prompt([Message.of("user", "What?", [original])]).media
    transform = slot.transform
    assert transform is not None
    assert used is None or transform.used_size == used
    assert pad is None or transform.pad == pad
    assert transform.num_tiles == count
    assert transform.scale == (transform.used_size[0] / 40, transform.used_size[1] / 84)
