"""Folders of transformers.js: the selected files and their reported layout."""

import json
import shutil

import pytest
from onnx import TensorProto, helper

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder.community import VARIANTS, community_layout, is_community

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
    "vocab_size": 32,
}


def suffix(variant):
    return "" if variant == "fp32" else f"_{variant}"


@pytest.fixture
def folder(tmp_path, make_decoder):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def checkpoint(folder, **config):
    if config:
        (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return Checkpoint("m", folder)


def takes_embeddings(file):
    """Write a graph with embeddings as input, which is never run."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["inputs_embeds"], ["logits"])],
        "decoder",
        [value("inputs_embeds", TensorProto.FLOAT, ["batch", "tokens", 8])],
        [value("logits", TensorProto.FLOAT, ["batch", "tokens", "vocab"])],
    )
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(helper.make_model(graph).SerializeToString())


@pytest.mark.parametrize("best", range(len(VARIANTS)))
def test_the_best_variant_for_a_cpu_is_selected(folder, make_decoder, best):
    for variant in VARIANTS[best:]:
        make_decoder(folder / "onnx" / f"model{suffix(variant)}.onnx")
    layout = community_layout(checkpoint(folder))
    assert layout.precision == VARIANTS[best]
    assert layout.decoder.file == folder / "onnx" / f"model{suffix(VARIANTS[best])}.onnx"


def test_a_text_model_has_no_other_parts(folder, make_decoder):
    make_decoder(folder / "onnx" / "model.onnx")
    layout = community_layout(checkpoint(folder))
    assert (layout.kind, layout.decoder.kind) == ("onnx-community", "masked")
    assert (layout.embeddings, layout.vision) == (None, None)
    assert (layout.max_sequence_tokens, layout.decoder.head_dim) == (48, 16)
    assert layout.is_batch_invariant


def test_the_variant_of_each_part_is_selected_separately(folder):
    for name in ("decoder_model_merged_q4", "embed_tokens_fp16", "vision_encoder_quantized"):
        takes_embeddings(folder / "onnx" / f"{name}.onnx")
    layout = community_layout(checkpoint(folder), "q4")
    assert layout.decoder.kind == "concat"
    assert layout.embeddings.file.name == "embed_tokens_fp16.onnx"
    assert layout.vision.file.name == "vision_encoder_quantized.onnx"
    assert not layout.vision.is_own
    takes_embeddings(folder / "onnx" / "vision_encoder_q4.onnx")
    assert community_layout(checkpoint(folder), "q4").vision.file.name == "vision_encoder_q4.onnx"


def test_a_requested_variant_must_exist(folder, make_decoder):
    make_decoder(folder / "onnx" / "model_q4.onnx")
    make_decoder(folder / "onnx" / "model_quantized.onnx")
    assert community_layout(checkpoint(folder), "quantized").precision == "quantized"
    assert community_layout(checkpoint(folder), "q8").precision == "quantized"
    with pytest.raises(CheckpointError) as caught:
        community_layout(checkpoint(folder), "fp16")
    assert str(caught.value) == "model 'm' has no variant 'fp16' of onnx/model.onnx"
    assert caught.value.hint == "it has q4, quantized"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, True),
        ({"block_size": 32}, True),
        ({"block_size": 128}, False),
        ({"dynamic": True}, False),
    ],
)
def test_invariance_is_stated_only_if_it_was_measured(folder, make_decoder, facts, expected):
    make_decoder(folder / "onnx" / "model_q4.onnx", **facts)
    assert community_layout(checkpoint(folder)).is_batch_invariant is expected


@pytest.mark.parametrize(
    ("window", "config", "expected"),
    [
        (-1, {"sliding_window": 20}, 20),
        (20, {"sliding_window": 20}, 48),
        (-1, {"sliding_window": 20, "use_sliding_window": False}, 48),
        (-1, {"sliding_window": None}, 48),
        (-1, {"text_config": {"max_position_embeddings": 30}}, 30),
        (-1, {"max_position_embeddings": None}, 4096),
    ],
)
def test_a_graph_that_omits_the_window_is_limited_to_it(
    folder, make_decoder, window, config, expected
):
    make_decoder(folder / "onnx" / "model.onnx", window=window)
    assert community_layout(checkpoint(folder, **config)).max_sequence_tokens == expected


@pytest.mark.parametrize("wrong", [0, -1, "9", 1.5, True, 2**40])
def test_an_absurd_length_is_refused(folder, make_decoder, wrong):
    make_decoder(folder / "onnx" / "model.onnx")
    with pytest.raises(CheckpointError, match="'max_position_embeddings' in"):
        community_layout(checkpoint(folder, max_position_embeddings=wrong))


def test_another_vocabulary_is_refused(folder, make_decoder):
    make_decoder(folder / "onnx" / "model.onnx")
    with pytest.raises(CheckpointError) as caught:
        community_layout(checkpoint(folder, vocab_size=33))
    assert str(caught.value) == (
        "'model.onnx' gives logits of 32 tokens, and the vocabulary in 'config.json' has 33"
    )


def test_the_older_name_of_a_vision_input_is_recognised(folder):
    takes_embeddings(folder / "onnx" / "decoder_model_merged.onnx")
    takes_embeddings(folder / "onnx" / "embed_tokens.onnx")
    file = folder / "onnx" / "vision_encoder.onnx"
    takes_embeddings(file)
    assert community_layout(checkpoint(folder)).vision.names == {}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["grid_thw"], ["image_features"])],
        "vision",
        [value("grid_thw", TensorProto.INT64, ["images", 3])],
        [value("image_features", TensorProto.INT64, ["images", 3])],
    )
    file.write_bytes(helper.make_model(graph).SerializeToString())
    assert community_layout(checkpoint(folder)).vision.names == {"image_grid_thw": "grid_thw"}


def test_a_decoder_of_embeddings_needs_their_graph(folder):
    takes_embeddings(folder / "onnx" / "decoder_model_merged.onnx")
    with pytest.raises(CheckpointError, match=r"^model 'm' has no onnx/embed_tokens\*.onnx"):
        community_layout(checkpoint(folder))


def test_a_folder_without_a_decoder_is_refused(folder, make_decoder):
    assert not is_community(checkpoint(folder))
    make_decoder(folder / "onnx" / "decoder_with_past_model.onnx")
    assert not is_community(checkpoint(folder))
    with pytest.raises(CheckpointError) as caught:
        community_layout(checkpoint(folder))
    assert str(caught.value) == (
        "model 'm' has no onnx/decoder_model_merged*.onnx and no onnx/model*.onnx, nor a decoder "
        "with a cache beside config.json"
    )
    make_decoder(folder / "onnx" / "model_int8.onnx")
    assert is_community(checkpoint(folder))


def test_a_truncated_decoder_is_refused(folder, make_decoder):
    file = make_decoder(folder / "onnx" / "model.onnx")
    shutil.copy(file, folder / "whole")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="is not a whole ONNX file"):
        community_layout(checkpoint(folder))


def test_graphs_beside_the_config_are_those_of_optimum(folder, make_decoder):
    file = make_decoder(folder / "model.onnx")
    assert is_community(checkpoint(folder))
    layout = community_layout(checkpoint(folder))
    assert (layout.kind, layout.decoder.file) == ("optimum", file)
    with pytest.raises(CheckpointError, match=r"^model 'm' has no variant 'q4' of model\.onnx"):
        community_layout(checkpoint(folder), "q4")
    own = make_decoder(folder / "onnx" / "model.onnx")
    assert community_layout(checkpoint(folder)).decoder.file == own


def test_a_graph_without_a_cache_beside_the_config_is_not_a_decoder(folder):
    takes_embeddings(folder / "model.onnx")
    assert not is_community(checkpoint(folder))
