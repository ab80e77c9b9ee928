"""Folders of onnxruntime-genai: their configuration, and no path outside them."""

import contextlib
import json

import pytest
from hypothesis import given, strategies as st

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder.genai import genai_layout
from vlmkit_onnx.folder.layout import TokenGraph, VisionGraph

DECODER = {
    "filename": "model.onnx",
    "head_size": 16,
    "inputs": {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    },
    "outputs": {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    },
}
MODEL = {"context_length": 48, "vocab_size": 32, "type": "llama"}


@pytest.fixture
def read(tmp_path, make_decoder):
    make_decoder(tmp_path / "model.onnx")

    def layout(decoder=(), **model):
        stated = {**MODEL, "decoder": {**DECODER, **dict(decoder)}, **model}
        (tmp_path / "genai_config.json").write_text(json.dumps({"model": stated, "search": {}}))
        return genai_layout(Checkpoint("m", tmp_path))

    return layout


def test_the_configuration_of_a_text_model_is_read(read, tmp_path):
    layout = read()
    assert layout.kind == "onnxruntime-genai"
    assert (layout.precision, layout.is_batch_invariant) == ("fp32", True)
    assert (layout.max_sequence_tokens, layout.embeddings, layout.vision) == (48, None, None)
    graph = layout.decoder
    assert (graph.file, graph.kind, graph.head_dim) == (tmp_path / "model.onnx", "masked", 16)
    assert graph.past_key % 0 == "past_key_values.0.key"
    assert graph.names == {}


def test_every_name_comes_from_the_configuration(read, tmp_path):
    inputs = {
        "input_ids": "tokens",
        "inputs_embeds": "input_ids",
        "past_key_names": "cache/%d/k",
        "position_ids": "position_ids",
        "cross_attention": {"nested": "group"},
    }
    outputs = {"logits": "scores", "present_value_names": "out%dv"}
    layout = read(
        {"inputs": inputs, "outputs": outputs},
        embedding={"filename": "embedding.onnx", "inputs": {"input_ids": "ids"}},
        vision={"filename": "vision tower.onnx", "outputs": {"image_features": "rows"}},
        image_token_id=7,
    )
    graph = layout.decoder
    assert graph.names == {"input_ids": "tokens", "inputs_embeds": "input_ids", "logits": "scores"}
    assert (graph.past_key, graph.present_value) == ("cache/%d/k", "out%dv")
    assert graph.past_value == "past_key_values.%d.value"  # the default if it is not stated
    assert layout.embeddings == TokenGraph(tmp_path / "embedding.onnx", {"input_ids": "ids"}, 7)
    assert layout.vision == VisionGraph(
        tmp_path / "vision tower.onnx", is_own=False, names={"image_features": "rows"}
    )


def test_packed_weights_determine_the_precision(read, tmp_path, make_decoder):
    make_decoder(tmp_path / "model.onnx", block_size=128)
    layout = read()
    assert (layout.precision, layout.is_batch_invariant) == ("int4", False)


@pytest.mark.parametrize(
    ("stated", "window", "expected"),
    [(20, -1, 20), (20, 20, 48), (0, -1, 48), (-1, -1, 48), (None, -1, 48), (99, -1, 48)],
)
def test_a_graph_that_omits_the_window_is_limited_to_it(
    read, tmp_path, make_decoder, stated, window, expected
):
    make_decoder(tmp_path / "model.onnx", window=window)
    assert read({"sliding_window": {"window_size": stated}}).max_sequence_tokens == expected


@pytest.mark.parametrize(
    "name",
    [
        "../model.onnx",
        "/etc/passwd",
        "part/model.onnx",
        "..",
        "",
        ".hidden.onnx",
        "model.ort",
        "model.onnx\0",
        "model.onnx\n",
        "..\\model.onnx",
        "x" * 300 + ".onnx",
        3,
        None,
    ],
)
@pytest.mark.parametrize("part", ["decoder", "embedding", "vision"])
def test_a_file_is_a_plain_name_in_the_folder(read, part, name):
    stated = (
        {part: {**DECODER, "filename": name}} if part == "decoder" else {part: {"filename": name}}
    )
    with pytest.raises(CheckpointError, match="is not a configuration of a language model"):
        read(**stated)


@pytest.mark.parametrize(
    "template",
    ["past", "%s", "%d.%d", "%99999999999d", "%(x)d", "past.%d.%", "%d" + "x" * 999, 3, None, ""],
)
def test_a_template_has_one_place_for_the_layer(read, template):
    with pytest.raises(CheckpointError) as caught:
        read({"inputs": {"past_key_names": template}})
    assert str(caught.value) == (
        "'past_key_names' in 'genai_config.json' is not a name with one '%d' in it"
    )


@pytest.mark.parametrize("length", [0, -5, 2**40, "many", 1.5, None])
def test_an_absurd_length_is_refused(read, length):
    with pytest.raises(CheckpointError, match="is not a configuration of a language model"):
        read(context_length=length)


def test_another_vocabulary_is_refused(read):
    with pytest.raises(CheckpointError) as caught:
        read(vocab_size=1000)
    assert str(caught.value) == (
        "'model.onnx' gives logits of 32 tokens, and the vocabulary in 'genai_config.json' has 1000"
    )


def test_a_split_decoder_is_refused(read):
    with pytest.raises(CheckpointError, match="splits the decoder, which is not supported"):
        read({"pipeline": [{"first": {}}]})
    with pytest.raises(CheckpointError, match="splits the decoder, which is not supported"):
        read(encoder={"filename": "encoder.onnx"})


def test_a_missing_decoder_is_named(read):
    with pytest.raises(CheckpointError, match=r"^'other\.onnx' is missing"):
        read({"filename": "other.onnx"})


def test_a_decoder_of_embeddings_needs_their_graph(read):
    with pytest.raises(CheckpointError) as caught:
        read({"inputs": {"inputs_embeds": "input_ids"}})
    assert str(caught.value) == (
        "the decoder of model 'm' takes embeddings, and 'genai_config.json' names no graph that "
        "makes them"
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=9,
)


@given(data=st.data())
def test_any_content_of_a_known_file_is_read_or_refused(read, data):
    known = ["decoder", "context_length", "vocab_size", "vision", "embedding", "image_token_id"]
    inner = ["filename", "inputs", "outputs", "head_size", "sliding_window", "pipeline"]
    model = data.draw(st.dictionaries(st.sampled_from(known[1:]), JSON, max_size=2))
    decoder = data.draw(st.dictionaries(st.sampled_from(inner), JSON, max_size=2))
    with contextlib.suppress(CheckpointError):
        read(decoder, **model)
