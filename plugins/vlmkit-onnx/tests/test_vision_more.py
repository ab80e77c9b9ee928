"""Towers of families outside the zoo, whose processors lay out a whole conversation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.vision.encoder import OnnxVisionEncoder
from vlmkit_onnx.vision.names import FEATURES

pytestmark = pytest.mark.torch

TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
}
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
TILE = 28
RESOLUTIONS = [[down * TILE, across * TILE] for down in (1, 2, 3) for across in (1, 2, 3)]


def onevision(bound: str) -> Any:
    import transformers

    siglip = {"model_type": "siglip_vision_model", "vision_use_head": False}
    return transformers.LlavaOnevisionConfig(
        vision_config={**TOWER, **siglip, "image_size": TILE, "patch_size": 7},
        text_config={**TEXT, "model_type": "qwen2"},
        image_grid_pinpoints=RESOLUTIONS,
        vision_aspect_ratio=bound,
        image_token_index=99,
        video_token_index=98,
    )


def pixtral_llava() -> Any:
    import transformers

    return transformers.LlavaConfig(
        vision_config={**TOWER, "model_type": "pixtral", "image_size": 84, "patch_size": 14},
        text_config={**TEXT, "model_type": "mistral"},
        image_token_index=99,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )


def model_of(config: Any) -> Any:
    import torch
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    if hasattr(model.base_model, "image_newline"):
        torch.nn.init.ones_(model.base_model.image_newline)
    return model


def assert_equal(model: Any, encoder: OnnxVisionEncoder, images: list[dict[str, Any]]) -> None:
    from vlmkit_onnx.export.vision_check import reference

    expected = [reference(model, arrays)[FEATURES] for arrays in images]
    slots = [
        MediaSlot(0, len(rows), b"", arrays, len(rows))
        for arrays, rows in zip(images, expected, strict=True)
    ]
    for features, rows in zip(encoder.encode(slots), expected, strict=True):
        size = max(float(np.abs(rows).max()), 1)
        np.testing.assert_allclose(np.asarray(features.embeddings), rows, atol=1e-4 * size)


@pytest.mark.parametrize("bound", ["anyres_max_9", "anyres_max_2"])
def test_tiles_of_onevision_are_assembled_and_resampled_like_its_own_code(
    bound: str, one_thread: None, encoders: Any, tmp_path: Path
) -> None:
    import transformers

    model = model_of(onevision(bound))
    encoder = encoders.export(model, tmp_path)
    processor = transformers.LlavaOnevisionImageProcessorPil(
        size={"height": TILE, "width": TILE}, image_grid_pinpoints=RESOLUTIONS
    )
    images = []
    for number, size in enumerate([(60, 60), (90, 40), (20, 80), (84, 84)]):
        made = processor(zoo.picture(number, *size), return_tensors="np")
        images.append({key: np.asarray(made[key]) for key in ("pixel_values", "image_sizes")})
    assert_equal(model, encoder, images)


def test_a_llava_with_a_pixtral_tower_accepts_images_of_any_size(
    one_thread: None, encoders: Any, tmp_path: Path
) -> None:
    model = model_of(pixtral_llava())
    encoder = encoders.export(model, tmp_path)
    random = np.random.default_rng(0)
    sizes = [(42, 70), (14, 84), (42, 70), (28, 28)]
    images = [
        {
            "pixel_values": random.normal(size=(1, 3, *size)).astype(np.float32),
            "image_sizes": np.array([size]),
        }
        for size in sizes
    ]
    assert_equal(model, encoder, images)


@pytest.mark.slow
def test_the_graph_of_a_clipping_tower_has_all_clip_bounds(
    one_thread: None, encoders: Any, tmp_path: Path
) -> None:
    import torch
    import transformers

    tower = {**TOWER, "head_dim": 16, "num_key_value_heads": 2, "patch_size": 7}
    config = transformers.Gemma4Config(
        vision_config={**tower, "pooling_kernel_size": 2, "use_clipped_linears": True},
        text_config={**TEXT, "head_dim": 16, "hidden_size_per_layer_input": 0},
        audio_config=None,
    )
    model = model_of(config)
    with torch.no_grad():
        for number, layer in enumerate(m for m in model.modules() if hasattr(m, "input_min")):
            for name, bound in (("input", 0.5), ("output", 0.4)):
                getattr(layer, f"{name}_min").fill_(-bound - 0.01 * number)
                getattr(layer, f"{name}_max").fill_(bound + 0.02 * number)
    encoder = encoders.export(model, tmp_path)  # compares the graph with the model
    encoder.close()
