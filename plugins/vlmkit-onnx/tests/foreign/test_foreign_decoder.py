"""Decoder graphs that vlmkit cannot run are refused at load, with one clear error."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vlmkit.errors import CheckpointError
from vlmkit_onnx.decoders.concat_decoder import ConcatDecoder
from vlmkit_onnx.decoders.decoder import Tokens
from vlmkit_onnx.decoders.masked_decoder import MaskedDecoder
from vlmkit_onnx.decoders.slots_decoder import SlotsDecoder
from vlmkit_onnx.folder.layout import DecoderGraph
from vlmkit_onnx.self_checks.continuity import refuse_discontinuous
from vlmkit_onnx.slots.memory import CacheSize

FLOAT, HALF, INT64, INT8, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.BOOL,
)
CACHE = (FLOAT, ["batch", 2, "past", 8])
INPUTS = {
    "inputs_embeds": (FLOAT, ["batch", "tokens", 24]),
    "attention_mask": (INT64, ["batch", "all"]),
    "position_ids": (INT64, ["batch", "tokens"]),
    **{f"past_key_values.{i}.{part}": CACHE for i in range(3) for part in ("key", "value")},
}
LOGITS = (FLOAT, ["batch", "tokens", 32])


@pytest.fixture
def shell(tmp_path, open_session):
    """Return a function that opens a graph without computation; None removes an input."""

    def opened(changes=(), logits=LOGITS, lacks=(), kind=ConcatDecoder, **graph):
        inputs = {k: v for k, v in {**INPUTS, **dict(changes)}.items() if v is not None}
        outputs = {
            name.replace("past_key_values", "present"): (name, stated)
            for name, stated in inputs.items()
            if name.startswith("past_key_values")
        }
        nodes = [helper.make_node("Identity", [name], [out]) for out, (name, _) in outputs.items()]
        nodes += [  # the rank is not known in advance
            helper.make_node("RandomUniform", [], ["any"], shape=[9]),
            helper.make_node("NonZero", ["any"], ["row"]),
            helper.make_node("Squeeze", ["row", "zero"], ["sizes"]),
            helper.make_node("Reshape", ["numbers", "sizes"], ["logits"]),
        ]
        value = helper.make_tensor_value_info
        stated = {name: stated for name, (_, stated) in outputs.items()} | {"logits": logits}
        made = helper.make_graph(
            nodes,
            "shell",
            [value(name, *facts) for name, facts in inputs.items()],
            [value(name, *facts) for name, facts in stated.items() if name not in lacks],
            [
                numpy_helper.from_array(np.array([0]), "zero"),
                helper.make_tensor("numbers", logits[0], [0], []),
            ],
        )
        opset = helper.make_opsetid("", 18)
        model = helper.make_model(made, opset_imports=[opset], ir_version=10)
        file = tmp_path / "model.onnx"
        onnx.save(model, file)
        return kind(DecoderGraph(file, "concat", **graph), open_session(file), CacheSize(2, 16))

    return opened


def test_a_graph_with_known_inputs_is_accepted(shell):
    spec = shell().spec
    assert (spec.num_layers, spec.vocab_size, spec.hidden_size) == (3, 32, 24)
    assert spec.num_position_axes == 1
    assert shell({"position_ids": (INT64, [3, "batch", "tokens"])}).spec.num_position_axes == 3
    assert shell({"position_ids": None}).spec.num_position_axes == 0
    ids = {"inputs_embeds": None, "input_ids": (INT64, ["batch", "tokens"])}
    assert not shell(ids).spec.takes_embeddings
    more = {"use_cache_branch": (BOOL, [1]), "num_logits_to_keep": (INT64, [])}
    assert shell(more).spec == spec


def test_other_names_of_inputs_are_supported(shell):
    changes = {
        "inputs_embeds": None,
        "rows": INPUTS["inputs_embeds"],
        "attention_mask": None,
        "mask": INPUTS["attention_mask"],
    }
    names = {"inputs_embeds": "rows", "attention_mask": "mask"}
    assert shell(changes, names=names).spec.hidden_size == 24


WRONG = {
    "an unknown input": (
        {"past_conv.0": (FLOAT, ["batch", 8, 3])},
        "'model.onnx' needs input 'past_conv.0', which vlmkit cannot give",
    ),
    "no mask": ({"attention_mask": None}, "'model.onnx' has no input 'attention_mask'"),
    "neither ids nor embeddings": (
        {"inputs_embeds": None},
        "'model.onnx' takes neither or both of token ids and embeddings, expected one",
    ),
    "ids and embeddings": (
        {"input_ids": (INT64, ["batch", "tokens"])},
        "'model.onnx' takes neither or both of token ids and embeddings, expected one",
    ),
    "no cache": (
        {name: None for name in INPUTS if name.startswith("past")},
        "'model.onnx' has no input 'past_key_values.0.key'",
    ),
    "a key without values": (
        {"past_key_values.1.value": None},
        "'model.onnx' has no input 'past_key_values.1.value'",
    ),
    "a cache of small integers": (
        {name: (INT8, CACHE[1]) for name in INPUTS if name.startswith("past")},
        (
            "input 'past_key_values.0.key' of 'model.onnx' is tensor(int8) ['batch', 2, "
            "'past', 8], "
            "expected floats [batch, heads, tokens, width] of any number of tokens"
        ),
    ),
    "a cache of three axes": (
        {"past_key_values.0.key": (FLOAT, ["batch", "past", 16])},
        (
            "input 'past_key_values.0.key' of 'model.onnx' is tensor(float) ['batch', 'past', 16], "
            "expected floats [batch, heads, tokens, width] of any number of tokens"
        ),
    ),
    "a cache of fixed length": (
        {"past_key_values.2.value": (FLOAT, ["batch", 2, 4096, 8])},
        (
            "input 'past_key_values.2.value' of 'model.onnx' is tensor(float) ['batch', 2, "
            "4096, 8], "
            "expected floats [batch, heads, tokens, width] of any number of tokens"
        ),
    ),
    "other heads in one layer": (
        {"past_key_values.1.key": (FLOAT, ["batch", 4, "past", 8])},
        (
            "input 'past_key_values.1.key' of 'model.onnx' is tensor(float) ['batch', 4, "
            "'past', 8], "
            "and 'past_key_values.0.key' is tensor(float) ['batch', 2, 'past', 8]: expected "
            "the same "
            "heads in all layers"
        ),
    ),
    "another width in one layer": (
        {"past_key_values.1.value": (FLOAT, ["batch", 2, "past", 16])},
        (
            "input 'past_key_values.1.value' of 'model.onnx' is tensor(float) ['batch', 2, 'past', "
            "16], and 'past_key_values.0.key' is tensor(float) ['batch', 2, 'past', 8]: "
            "expected the "
            "same heads in all layers"
        ),
    ),
    "another precision in one layer": (
        {"past_key_values.2.key": (HALF, CACHE[1])},
        (
            "input 'past_key_values.2.key' of 'model.onnx' is tensor(float16) ['batch', 2, 'past', "
            "8], and 'past_key_values.0.key' is tensor(float) ['batch', 2, 'past', 8]: "
            "expected the "
            "same heads in all layers"
        ),
    ),
    "no number of heads": (
        {name: (FLOAT, ["batch", "heads", "past", 8]) for name in INPUTS if "past" in name},
        (
            "input 'past_key_values.0.key' of 'model.onnx' does not say how many heads "
            "there are, or "
            "how wide they are"
        ),
    ),
    "two axes of positions": (
        {"position_ids": (INT64, [2, "batch", "tokens"])},
        "the positions of 'model.onnx' are [2, 'batch', 'tokens'], expected 3 axes of them or one",
    ),
    "positions that are no numbers": (
        {"position_ids": (FLOAT, ["batch", "tokens"])},
        (
            "input 'position_ids' of 'model.onnx' is tensor(float) ['batch', 'tokens'], which no "
            "'position_ids' is"
        ),
    ),
    "a mask of four axes": (
        {"attention_mask": (FLOAT, ["batch", 1, "tokens", "all"])},
        (
            "input 'attention_mask' of 'model.onnx' is tensor(float) ['batch', 1, 'tokens', "
            "'all'], "
            "which no 'attention_mask' is"
        ),
    ),
    "embeddings of no width": (
        {"inputs_embeds": (FLOAT, ["batch", "tokens", "hidden"])},
        "'model.onnx' does not say how wide its embeddings are",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("kind", [ConcatDecoder, MaskedDecoder])
def test_a_graph_with_unknown_inputs_is_refused(shell, changes, message, kind):
    with pytest.raises(CheckpointError) as caught:
        shell(changes, kind=kind)
    assert str(caught.value) == message


OF_THE_CACHE = [
    "no cache",
    "a key without values",
    "a cache of small integers",
    "a cache of three axes",
    "a cache of fixed length",
    "no number of heads",
]


@pytest.mark.parametrize("name", OF_THE_CACHE)
def test_an_exported_graph_with_an_unknown_cache_is_refused(shell, name):
    changes, message = WRONG[name]
    with pytest.raises(CheckpointError) as caught:
        shell(changes, kind=SlotsDecoder)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "logits",
    [(FLOAT, ["batch", "tokens", "vocab"]), (FLOAT, ["batch", 32]), (INT64, LOGITS[1])],
)
def test_logits_of_a_wrong_shape_or_type_are_refused(shell, logits):
    with pytest.raises(CheckpointError, match=r"expected floats \[batch, tokens, vocabulary\]"):
        shell(logits=logits)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("logits", ConcatDecoder),
        ("present.1.value", ConcatDecoder),
        ("present.1.value", SlotsDecoder),
    ],
)
def test_a_missing_output_is_refused(shell, name, kind):
    with pytest.raises(CheckpointError) as caught:
        shell(lacks=[name], kind=kind)
    assert str(caught.value) == f"'model.onnx' has no output {name!r}"


def test_a_width_that_the_graph_leaves_open_comes_from_the_layout(shell):
    open_width = {name: (FLOAT, ["batch", 2, "past", "width"]) for name in INPUTS if "past" in name}
    assert shell(open_width, head_dim=8).memory.token_bytes == 3 * 2 * 2 * 8 * 4
    with pytest.raises(CheckpointError, match="does not say how many heads there are"):
        shell(open_width)


def test_a_cache_that_no_attention_writes_is_not_written_in_place(shell):
    with pytest.raises(CheckpointError) as caught:
        shell(kind=MaskedDecoder)
    assert str(caught.value) == (
        "input 'past_key_values.0.key' of 'model.onnx' is not the cache of one attention operator"
    )


def test_attention_without_positions_is_refused(tmp_path, make_decoder, open_session):
    file = make_decoder(tmp_path / "model.onnx", rotates=False)
    with pytest.raises(CheckpointError) as caught:
        MaskedDecoder(
            DecoderGraph(file, "masked", head_dim=16), open_session(file), CacheSize(2, 16)
        )
    assert str(caught.value) == "'model.onnx' takes no positions, and its attention makes none"


@pytest.mark.parametrize("num_slots", [1, 2])
def test_a_width_that_differs_from_the_graph_is_refused(
    tmp_path, make_decoder, open_session, num_slots
):
    file = make_decoder(tmp_path / "model.onnx")
    for width in (16, 8):
        graph = DecoderGraph(file, "masked", head_dim=width)
        decoder = MaskedDecoder(graph, open_session(file), CacheSize(num_slots, 16))
        if width == 16:
            refuse_discontinuous(decoder, file.name)
            continue
        with pytest.raises(CheckpointError) as caught:
            refuse_discontinuous(decoder, file.name)
    assert str(caught.value) == (
        "'model.onnx' does not compute 6 tokens with the shapes that it states"
    )


@pytest.mark.parametrize("kind", [MaskedDecoder, ConcatDecoder])
def test_a_graph_that_appends_in_another_way_is_refused(tmp_path, make_decoder, open_session, kind):
    file = make_decoder(tmp_path / "model.onnx")
    decoder = kind(DecoderGraph(file, "masked", head_dim=16), open_session(file), CacheSize(2, 16))
    refuse_discontinuous(decoder, file.name)
    decoder._io.feeds = confused(decoder._io.feeds)
    with pytest.raises(CheckpointError, match="than for the whole sequence"):
        refuse_discontinuous(decoder, file.name)


def confused(feeds):
    """Return a function that changes each token after a past; the other inputs stay."""

    def given(tokens, mask, *, has_past):
        made = feeds(tokens, mask, has_past=has_past)
        if has_past:
            made["input_ids"] = np.zeros_like(made["input_ids"])
        return made

    return given


@pytest.fixture
def decoder(tmp_path, make_decoder, open_session):
    file = make_decoder(tmp_path / "model.onnx")
    graph = DecoderGraph(file, "masked", head_dim=16)
    made = MaskedDecoder(graph, open_session(file), CacheSize(3, 40))
    yield made
    made.close()


def tokens(*rows):
    ids = np.array(rows, np.int64)
    return Tokens(ids, None, np.zeros((1, *ids.shape), np.int64))


def test_chunks_and_other_rows_do_not_change_logits(decoder):
    whole = decoder.prefill(0, 0, tokens([1, 2, 3, 4, 5, 6]), num_rows=1)
    assert decoder.prefill(1, 0, tokens([1, 2, 3]), num_rows=0).shape == (0, 32)
    decoder.prefill(1, 3, tokens([4, 5]), num_rows=0)
    decoder.prefill(2, 0, tokens([9]), num_rows=0)
    starts = np.array([5, 1], np.int32)
    logits = decoder.decode(1, starts, tokens([6], [9]))
    np.testing.assert_allclose(logits[0], whole[0], atol=1e-5)
    again = decoder.decode(1, starts[:1], tokens([6]))
    assert np.array_equal(again[0], logits[0])


def test_a_slot_can_be_filled_to_its_end(decoder):
    last = decoder.memory.slot_tokens - 1
    decoder.prefill(0, 0, tokens([3] * last), num_rows=0)
    assert np.isfinite(decoder.decode(0, np.array([last], np.int32), tokens([1]))).all()
