"""Decoders with GroupQueryAttention by the builder of onnxruntime-genai, against transformers."""

import numpy as np
import onnx
import pytest
import torch
import transformers

from vlmkit.errors import ConfigError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.build import build_engine
from vlmkit_onnx.decoders.masked_decoder import MaskedDecoder
from vlmkit_onnx.folder import external_data
from vlmkit_onnx.folder.community import community_layout
from vlmkit_onnx.folder.genai import genai_layout
from vlmkit_onnx.prompts.graph_embeddings import GraphEmbeddings
from vlmkit_onnx.self_checks.continuity import refuse_discontinuous
from vlmkit_onnx.self_checks.decoder_check import rows_are_invariant
from vlmkit_onnx.self_checks.row_length import max_independent_tokens
from vlmkit_onnx.settings import EngineSettings
from vlmkit_onnx.slots.memory import CacheSize
from vlmkit_testing import EngineContract

pytestmark = pytest.mark.torch
SLOTS, SLOT_TOKENS, NUM_TOKENS = 4, 96, 16
PHI3_WINDOW = 70  # as in the checkpoint of the builder


@pytest.fixture
def load(genai_folders, open_session):
    made = []

    def opened(name):
        layout = genai_layout(Checkpoint(name, genai_folders[name]))
        graph = layout.decoder
        made.append(MaskedDecoder(graph, open_session(graph.file), CacheSize(SLOTS, SLOT_TOKENS)))
        return made[-1]

    yield opened
    for decoder in made:
        decoder.close()


@pytest.fixture
def embed(genai_folders, open_session):
    stated = genai_layout(Checkpoint("m", genai_folders["qwen2_5_vl"])).embeddings
    made = GraphEmbeddings(open_session(stated.file), stated.names, stated.image_token)
    yield made
    made.close()


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_ragged_rows_over_dirty_slots_answer_as_transformers(family, load, ragged, reference):
    run = ragged(load(family))
    assert run.generate(NUM_TOKENS) == reference(family, run.prompts, NUM_TOKENS)


def test_embeddings_and_three_axes_of_positions_answer_as_transformers(
    load, ragged, reference, embed
):
    decoder = load("qwen2_5_vl")
    assert (decoder.spec.hidden_size, decoder.spec.num_position_axes) == (64, 3)
    run = ragged(decoder, embed)
    assert run.generate(NUM_TOKENS) == reference("qwen2_5_vl", run.prompts, NUM_TOKENS)


@pytest.mark.parametrize("name", ["llama", "llama-int4", "llama-fp16", "gemma2", "qwen2_5_vl"])
def test_a_correct_graph_passes_the_continuity_check(name, load):
    refuse_discontinuous(load(name), "model.onnx")


def test_positions_that_differ_by_axis_reach_the_graph(load, ragged, embed, saved):
    folder = saved("qwen2_5_vl")
    run = ragged(load("qwen2_5_vl"), embed)
    positions = np.stack([np.arange(12), np.arange(12) // 3, np.arange(12) % 3])[:, None]
    tokens = run.tokens([run.prompts[1][:12]], [0])
    tokens.positions[:] = positions
    ours = run.decoder.prefill(1, 0, tokens, num_rows=1)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        hidden = model.model.language_model(
            inputs_embeds=torch.from_numpy(tokens.embeddings),
            position_ids=torch.from_numpy(positions),
        ).last_hidden_state
        theirs = model.lm_head(hidden)[:, -1].numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    tokens.positions[:] = np.arange(12)
    assert np.abs(run.decoder.prefill(2, 0, tokens, num_rows=1) - theirs).max() > 1e-3


def test_a_graph_in_half_precision_is_near_transformers(load, ragged, saved):
    decoder = load("llama-fp16")
    assert {state.dtype for state in decoder.memory.states.values()} == {np.dtype(np.float16)}
    run = ragged(decoder)
    ours = run.prefill(1, run.prompts[1])
    assert ours.dtype == np.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(saved("llama"), dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([run.prompts[1]])).logits[:, -1].numpy()
    np.testing.assert_allclose(ours, theirs, atol=0.02)
    assert [len(answer) for answer in run.generate(4)] == [4, 4, 4]


@pytest.mark.parametrize("name", ["llama", "llama-int4"])
def test_a_row_has_the_same_bits_in_a_batch_on_a_batch_invariant_cpu(
    name, load, ragged, genai_folders
):
    assert genai_layout(Checkpoint(name, genai_folders[name])).is_batch_invariant
    run = ragged(load(name))
    keeps_bits = rows_are_invariant(run.decoder)
    assert keeps_bits or name == "llama-int4"
    for slot, ids in enumerate(run.prompts):
        run.prefill(slot, ids)
    starts = [len(ids) for ids in run.prompts]
    next_ids = [[7], [8], [9]]
    together = run.decoder.decode(0, np.array(starts, np.int32), run.tokens(next_ids, starts))
    for row in (2, 1, 0):
        alone = run.decoder.decode(
            row,
            np.array(starts[row : row + 1], np.int32),
            run.tokens(next_ids[row : row + 1], starts[row : row + 1]),
        )
        np.testing.assert_allclose(alone[0], together[row], atol=0 if keeps_bits else 1e-5)


def test_a_copied_prefix_continues_as_its_source(load, ragged):
    run = ragged(load("llama"))
    ids = run.prompts[1]
    whole = run.prefill(0, ids)
    run.decoder.memory.copy(0, 3, 20)
    rest = run.tokens([ids[20:]], [20])
    continued = run.decoder.prefill(3, 20, rest, num_rows=1)
    np.testing.assert_allclose(continued, whole, atol=1e-4)


def test_logits_outlive_the_next_step(load, ragged):
    run = ragged(load("llama"))
    first = run.prefill(0, run.prompts[0])
    kept = first.copy()
    run.prefill(0, run.prompts[2])
    assert np.array_equal(first, kept)


@pytest.fixture
def community(genai_folders, saved, tmp_path):
    """Return graphs of the same builder with the names of onnx-community."""
    (tmp_path / "onnx").mkdir()
    (tmp_path / "config.json").write_bytes((saved("llama") / "config.json").read_bytes())
    for name, file in {"llama": "model", "llama-int4": "model_q4"}.items():
        graph = onnx.load(genai_folders[name] / "model.onnx")
        target = tmp_path / "onnx" / f"{file}.onnx"
        onnx.save(graph, target, save_as_external_data=True, location=f"{file}.onnx_data")
    return Checkpoint("llama", tmp_path)


def test_the_same_graphs_under_the_names_of_onnx_community_answer_the_same(
    community, load, ragged, reference, open_session
):
    for variant, name in (("fp32", "llama"), (None, "llama-int4")):
        layout = community_layout(community, variant)
        graph = layout.decoder
        external_data.check(graph.file, community.path)
        assert (layout.precision, graph.kind) == (variant or "q4", "masked")
        decoder = MaskedDecoder(graph, open_session(graph.file), CacheSize(SLOTS, SLOT_TOKENS))
        run = ragged(decoder)
        answers = run.generate(NUM_TOKENS)
        assert answers == ragged(load(name)).generate(NUM_TOKENS)
        if variant == "fp32":
            assert answers == reference("llama", run.prompts, NUM_TOKENS)
        decoder.close()


def test_a_graph_without_its_sliding_window_is_limited_to_the_window(genai_folders):
    layout = genai_layout(Checkpoint("mistral", genai_folders["mistral"]))
    assert layout.max_sequence_tokens == 8


class MixingDecoder:
    """A decoder in which each row depends on its neighbour."""

    def __init__(self, decoder):
        self._decoder, self.spec = decoder, decoder.spec

    def __getattr__(self, name):
        return getattr(self._decoder, name)

    def decode(self, first_slot, starts, tokens):
        logits = self._decoder.decode(first_slot, starts, tokens).copy()
        logits[0] += tokens.ids[1, 0] + starts[1]
        return logits


def test_a_graph_with_rotation_by_its_longest_row_is_limited_in_length(genai_folders, load):
    assert max_independent_tokens(load("llama"), SLOT_TOKENS) == SLOT_TOKENS
    assert max_independent_tokens(load("phi3-128k"), SLOT_TOKENS) == PHI3_WINDOW
    assert max_independent_tokens(MixingDecoder(load("llama")), SLOT_TOKENS) == SLOT_TOKENS

    def built(**settings):
        checkpoint = Checkpoint("phi3", genai_folders["phi3-128k"])
        few = EngineSettings(cache_tokens=400, max_sequences=1, num_threads=1, **settings)
        return build_engine(BuildContext("", checkpoint, few))

    assert built().limits.max_sequence_tokens == PHI3_WINDOW
    with pytest.raises(ConfigError, match=f"if one is over {PHI3_WINDOW} tokens"):
        built(max_sequence_tokens=80)


def test_graphs_with_large_blocks_are_not_batch_invariant(genai_folders):
    layout = genai_layout(Checkpoint("qwen3", genai_folders["qwen3-int4-b128"]))
    assert (layout.precision, layout.is_batch_invariant) == ("int4", False)


class TestGenaiEngine(EngineContract):
    @pytest.fixture(autouse=True)
    def _checkpoint(self, genai_folders):
        self.checkpoint = Checkpoint("llama", genai_folders["llama"])

    def make(self):
        settings = EngineSettings(
            cache_tokens=400, max_chunk_tokens=16, max_sequences=6, num_threads=1
        )
        return build_engine(BuildContext("", self.checkpoint, settings))

    def prompts(self):
        return [Prompt(tuple(range(1, count)), ()) for count in (6, 40, 17)]
