"""Decoders that append to a copy of their cache, against transformers."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: TID251 - after the conftest
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from vlmkit.errors import CheckpointError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.build import build_engine
from vlmkit_onnx.decoders.concat_decoder import ConcatDecoder
from vlmkit_onnx.folder.community import community_layout
from vlmkit_onnx.prompts.graph_embeddings import GraphEmbeddings
from vlmkit_onnx.self_checks.continuity import refuse_discontinuous
from vlmkit_onnx.settings import EngineSettings
from vlmkit_onnx.slots.memory import CacheSize
from vlmkit_testing import EngineContract

pytestmark = pytest.mark.torch
SLOTS, SLOT_TOKENS, NUM_TOKENS = 4, 96, 16
IMPLEMENTATION = "appending"
LEAST = -1e9  # masks a token; finite, as in graphs of optimum


class AppendingAttention:
    """Attention that appends to the cache of one call, and stores the result."""

    def __init__(self) -> None:
        self.past: list[torch.Tensor] = []
        self.present: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.bias = torch.zeros(())

    def __call__(self, module: Any, query: Any, key: Any, value: Any, *_: Any, **more: Any) -> Any:
        layer = module.layer_idx
        key = torch.cat([self.past[2 * layer], key], 2)
        value = torch.cat([self.past[2 * layer + 1], value], 2)
        self.present[layer] = (key, value)
        groups = query.shape[1] // key.shape[1]
        key, value = (array.repeat_interleave(groups, 1) for array in (key, value))
        scores = query @ key.transpose(2, 3) * more["scaling"] + self.bias
        return (torch.softmax(scores, -1) @ value).transpose(1, 2), None


class Decoder(nn.Module):
    """A llama like those of optimum: plain attention, and a cache that grows by appending."""

    def __init__(self, model: PreTrainedModel, attention: AppendingAttention) -> None:
        super().__init__()
        self.model = model
        self.attention = attention

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: list[torch.Tensor],
    ) -> Any:
        num_new, num_all = inputs_embeds.shape[1], attention_mask.shape[1]
        own = torch.arange(num_new)[:, None] + (num_all - num_new)
        is_seen = (torch.arange(num_all) <= own)[None, None] & (attention_mask[:, None, None] > 0)
        self.attention.past = past
        self.attention.bias = torch.where(is_seen, 0.0, LEAST)
        hidden = self.model.model(
            inputs_embeds=inputs_embeds, position_ids=position_ids, use_cache=False
        ).last_hidden_state
        present = self.attention.present
        return self.model.lm_head(hidden), [a for layer in sorted(present) for a in present[layer]]


def export(model: PreTrainedModel, file: Path) -> None:
    """Write the decoder of a llama."""
    config = model.config
    num_layers, rows, num_new, num_past = config.num_hidden_layers, 2, 3, 5
    shape = (rows, config.num_key_value_heads, num_past, config.head_dim)
    example = (
        torch.randn(rows, num_new, config.hidden_size),
        torch.ones(rows, num_past + num_new, dtype=torch.long),
        torch.arange(num_new)[None].repeat(rows, 1) + num_past,
        [torch.randn(shape) for _ in range(2 * num_layers)],
    )
    names = [
        f"past_key_values.{layer}.{part}"
        for layer in range(num_layers)
        for part in ("key", "value")
    ]
    dynamic = torch.export.Dim.DYNAMIC
    free = {0: dynamic, 1: dynamic}
    attention = AppendingAttention()
    AttentionInterface.register(IMPLEMENTATION, attention)
    before = config._attn_implementation
    config._attn_implementation = IMPLEMENTATION
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter of torch uses deprecated functions
        program = torch.onnx.export(
            Decoder(model, attention).eval(),
            example,
            dynamo=True,
            verbose=False,
            input_names=["inputs_embeds", "attention_mask", "position_ids", *names],
            output_names=["logits", *(n.replace("past_key_values", "present") for n in names)],
            dynamic_shapes=(free, free, free, [{0: dynamic, 2: dynamic}] * len(names)),
        )
    config._attn_implementation = before
    program.save(file)


@pytest.fixture(scope="module")
def folder(saved, one_thread, tmp_path_factory):
    """Return a llama in the layout of onnx-community, with several variants of its decoder."""
    source = saved("llama")
    made = tmp_path_factory.mktemp("community")
    (made / "onnx").mkdir()
    (made / "config.json").write_bytes((source / "config.json").read_bytes())
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    plain = made / "onnx" / "decoder_model_merged.onnx"
    export(model, plain)
    graph = onnx.load(plain)
    onnx.save(
        convert_float_to_float16(graph, disable_shape_infer=True),
        plain.with_stem("decoder_model_merged_fp16"),
    )
    onnx.save(without_positions(onnx.load(plain)), plain.with_stem("decoder_model_merged_int8"))
    onnx.save(with_branches(onnx.load(plain)), plain.with_stem("decoder_model_merged_uint8"))
    save_table(
        plain.with_stem("embed_tokens"), model.get_input_embeddings().weight.detach().numpy()
    )
    return made


def save_table(file, table):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["inputs_embeds"])],
        "embed_tokens",
        [value("input_ids", TensorProto.INT64, ["batch", "tokens"])],
        [value("inputs_embeds", TensorProto.FLOAT, ["batch", "tokens", table.shape[1]])],
        [numpy_helper.from_array(table, "table")],
    )
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), file)


def without_positions(model):
    """Make a graph count its past by the width of its cache, like the oldest graphs."""
    graph = model.graph
    graph.input.remove(next(node for node in graph.input if node.name == "position_ids"))
    node = helper.make_node
    constants = {"zero": 0, "one": 1, "axis": [0]}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(number, np.int64), f"own_{name}")
        for name, number in constants.items()
    )
    first = [
        node("Shape", ["past_key_values.0.key"], ["own_past"], start=2, end=3),
        node("Shape", ["inputs_embeds"], ["own_new"], start=1, end=2),
        node("Add", ["own_past", "own_new"], ["own_all"]),
        node("Squeeze", ["own_past", "own_axis"], ["own_start"]),
        node("Squeeze", ["own_all", "own_axis"], ["own_stop"]),
        node("Range", ["own_start", "own_stop", "own_one"], ["own_range"]),
        node("Unsqueeze", ["own_range", "own_axis"], ["own_row"]),
        node("Shape", ["inputs_embeds"], ["own_shape"], start=0, end=2),
        node("Expand", ["own_row", "own_shape"], ["position_ids"]),
    ]
    nodes = [*first, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def with_branches(model):
    """Add the inputs of transformers.js that this graph does not need."""
    value = helper.make_tensor_value_info
    model.graph.input.append(value("use_cache_branch", TensorProto.BOOL, [1]))
    model.graph.input.append(value("num_logits_to_keep", TensorProto.INT64, []))
    return model


@pytest.fixture
def load(folder, open_session):
    made = []

    def opened(variant):
        graph = community_layout(Checkpoint("llama", folder), variant).decoder
        made.append(ConcatDecoder(graph, open_session(graph.file), CacheSize(SLOTS, SLOT_TOKENS)))
        return made[-1]

    yield opened
    for decoder in made:
        decoder.close()


@pytest.fixture
def embed(folder, open_session):
    stated = community_layout(Checkpoint("llama", folder)).embeddings
    made = GraphEmbeddings(open_session(stated.file), stated.names, stated.image_token)
    yield made
    made.close()


def test_a_graph_that_appends_is_distinguished_from_one_that_writes_in_place(folder):
    layout = community_layout(Checkpoint("llama", folder))
    assert layout.decoder.kind == "concat"
    assert layout.precision == "fp32"
    assert not layout.is_batch_invariant


@pytest.mark.parametrize(
    ("variant", "what"),
    [("fp32", "positions"), ("int8", "no positions"), ("uint8", "branches")],
)
def test_ragged_rows_over_dirty_slots_answer_as_transformers(
    variant, what, load, ragged, embed, reference
):
    decoder = load(variant)
    refuse_discontinuous(decoder, variant)
    assert decoder.spec.num_position_axes == (what != "no positions")
    run = ragged(decoder, embed)
    assert run.generate(NUM_TOKENS) == reference("llama", run.prompts, NUM_TOKENS)


def test_a_graph_without_positions_would_answer_wrongly_if_rows_were_padded(
    load, ragged, embed, reference
):
    run = ragged(load("int8"), embed)
    refuse_discontinuous(run.decoder, "model.onnx")
    run.decoder._pads_rows = True
    with pytest.raises(CheckpointError) as caught:
        refuse_discontinuous(run.decoder, "model.onnx")
    assert str(caught.value) == (
        "'model.onnx' gives other logits for tokens in a batch than for the whole sequence"
    )
    answers = run.generate(NUM_TOKENS)
    expected = reference("llama", run.prompts, NUM_TOKENS)
    assert answers[1] == expected[1]  # the longest row is never padded
    assert answers != expected


def test_a_graph_of_two_branches_gets_its_branch_and_single_new_tokens(load, ragged, embed):
    decoder = load("uint8")
    seen = []
    session = decoder._session

    class Spy:
        def run(self, names, feeds):
            seen.append((bool(feeds["use_cache_branch"][0]), feeds["inputs_embeds"].shape[1]))
            assert feeds["num_logits_to_keep"].shape == ()
            assert feeds["num_logits_to_keep"] == 1
            return session.run(names, feeds)

    decoder._session = Spy()
    run = ragged(decoder, embed)
    run.prefill(0, run.prompts[0], chunk=3)
    assert seen == [(False, 3), (True, 1), (True, 1)]


def test_a_graph_in_half_precision_is_near_the_one_in_single(load, ragged, embed):
    decoder = load("fp16")
    assert {state.dtype for state in decoder.memory.states.values()} == {np.dtype(np.float16)}
    half, single = ragged(decoder, embed), ragged(load("fp32"), embed)
    ours, theirs = half.prefill(1, half.prompts[1]), single.prefill(1, single.prompts[1])
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, atol=0.02)
    assert [len(answer) for answer in half.generate(4)] == [4, 4, 4]


def test_other_rows_change_a_row_by_rounding_only(load, ragged, embed):
    run = ragged(load("fp32"), embed)
    for slot, ids in enumerate(run.prompts):
        run.prefill(slot, ids)
    starts = [len(ids) for ids in run.prompts]
    together = run.decoder.decode(
        0, np.array(starts, np.int32), run.tokens([[7], [8], [9]], starts)
    )
    alone = run.decoder.decode(0, np.array(starts[:1], np.int32), run.tokens([[7]], starts[:1]))
    np.testing.assert_allclose(alone[0], together[0], atol=1e-5)


def test_a_vocabulary_that_config_json_does_not_state_is_refused(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "onnx").symlink_to(folder / "onnx")
    config = json.loads((folder / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"vocab_size": 17}))
    with pytest.raises(CheckpointError) as caught:
        community_layout(Checkpoint("llama", other))
    assert str(caught.value) == (
        f"'decoder_model_merged.onnx' gives logits of {config['vocab_size']} tokens, and the "
        "vocabulary in 'config.json' has 17"
    )


class TestConcatEngine(EngineContract):
    @pytest.fixture(autouse=True)
    def _checkpoint(self, folder):
        self.checkpoint = Checkpoint("llama", folder)

    def make(self):
        settings = EngineSettings(
            cache_tokens=400, max_chunk_tokens=16, max_sequences=6, num_threads=1
        )
        return build_engine(BuildContext("", self.checkpoint, settings))

    def prompts(self):
        return [Prompt(tuple(range(1, count)), ()) for count in (6, 40, 17)]
