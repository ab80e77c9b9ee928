"""Embeddings and scores equal those computed from transformers' hidden states and logits."""

import asyncio
import itertools
import json
import shutil
from collections.abc import Callable, Sequence as Seq
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
import torch
import transformers
from onnx_ir.passes.common import RemoveUnusedNodesPass

import vlmkit
import zoo
from parity import runner
from parity.pipeline import conversation
from parity.test_negative_controls import images_blank
from vlmkit.checkpoints.pooling import Mode
from vlmkit.types.request import Request

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]
ATOL = 1e-5
TEXTS = [
    "The sea.",
    "Tell me about the sea, the sky and all that is between them, at length.",
    "Hi",
]
ANSWERS = ["Yes.", "no", "It is far too early to tell, and nobody should say so."]
FLAGS = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
ENGINES = {
    "torch": {"use": "torch", "cache_tokens": 1200, "block_tokens": 4, "max_chunk_tokens": 64},
    "tight": {"use": "torch", "cache_tokens": 240, "block_tokens": 4, "max_chunk_tokens": 64},
    "onnx": {"use": "onnx", "cache_tokens": 1200, "max_chunk_tokens": 64, "num_threads": 1},
}


def with_pooling(folder: Path, mode: Mode, place: Path) -> Path:
    """Return a copy of a checkpoint that states its pooling mode."""
    shutil.copytree(folder, place, symlinks=True)
    (place / "1_Pooling").mkdir()
    stated = {f"pooling_mode_{flag}": name == mode for name, flag in FLAGS.items()}
    (place / "1_Pooling/config.json").write_text(json.dumps(stated))
    return place


def load(folder: Path, engine: str) -> vlmkit.Model:
    return vlmkit.load(folder, engine=ENGINES[engine], scheduler={"max_step_tokens": 13})


def states_of(model: Any, inputs: Any) -> torch.Tensor:
    """Return transformers' last hidden state, ``[seq, hidden]``."""
    with torch.no_grad():
        states: torch.Tensor = model.model(**inputs, use_cache=False).last_hidden_state
        return states[0].double()


def pooled(states: torch.Tensor, mode: Mode) -> Any:
    vector = {"last": states[-1], "mean": states.mean(0), "cls": states[0]}[mode]
    return (vector / vector.norm()).numpy()


def expected_vectors(
    name: str, folder: Path, mode: Mode, asked: Seq[runner.Request]
) -> tuple[list[Any], list[Any]]:
    """Return transformers' vectors of plain texts, and of conversations."""
    model = runner.load_reference(name, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    plain = [states_of(model, _ids(tokenizer(text)["input_ids"])) for text in TEXTS]
    made = [states_of(model, runner.reference_inputs(name, request)) for request in asked]
    return [pooled(s, mode) for s in plain], [pooled(s, mode) for s in made]


def _ids(token_ids: Seq[int]) -> dict[str, Any]:
    ids = torch.tensor([list(token_ids)])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def differences(found: Seq[Any], wanted: Seq[Any]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))


def modes_and_names() -> list[Any]:
    """Return all pairs; in every run each way to pool is tried on one family of text or images."""
    always = {("mean", "llama"), ("cls", "qwen3_vl")}
    pairs = itertools.product(("last", "mean", "cls"), ("llama", "gemma2", "qwen3_vl", "gemma3"))
    return [
        pytest.param(*pair, marks=() if pair[0] == "last" or pair in always else pytest.mark.slow)
        for pair in pairs
    ]


@pytest.mark.parametrize(("mode", "name"), modes_and_names())
@pytest.mark.parametrize("engine", ["torch", "tight", "onnx"])
def test_embeddings_equal_those_of_transformers(
    engine: str, name: str, mode: Mode, saved: Saved, exported: Saved, tmp_path: Path
) -> None:
    made = exported(name) if engine == "onnx" else saved(name)
    folder = with_pooling(made, mode, tmp_path / "model")
    asked = runner.requests(name)
    plain, said = expected_vectors(name, saved(name), mode, asked)
    with load(folder, engine) as model:
        for _ in range(2):  # the second time, their common prefix is cached
            assert differences(model.embed(TEXTS), plain) < ATOL
            assert differences(model.embed([conversation(r) for r in asked]), said) < ATOL
        for text, vector in zip(TEXTS, plain, strict=True):
            assert differences(model.embed([text]), [vector]) < ATOL


def expected_scores(name: str, folder: Path, asked: runner.Request) -> list[list[float]]:
    """Return transformers' log-probabilities of the tokens of each continuation."""
    model, made = runner.load_reference(name, folder), []
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = runner.reference_inputs(name, asked)
    num_prompt = inputs["input_ids"].shape[1]
    for text in ANSWERS:
        given = tokenizer(text, add_special_tokens=False)["input_ids"]
        done = model.generate(
            **inputs,
            max_new_tokens=len(given),
            do_sample=False,
            prefix_allowed_tokens_fn=lambda _, ids, own=given: [own[len(ids) - num_prompt]],
            output_logits=True,
            return_dict_in_generate=True,
        )
        rows = torch.cat(done.logits).double().log_softmax(-1)
        made.append([row[token_id].item() for row, token_id in zip(rows, given, strict=True)])
    return made


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_vl", "paligemma"])
@pytest.mark.parametrize("engine", ["torch", "tight", "onnx"])
def test_scores_equal_summed_log_softmax_of_transformers(
    engine: str, name: str, saved: Saved, exported: Saved
) -> None:
    folder = saved(name)
    asked = runner.requests(name)[0]
    wanted = expected_scores(name, folder, asked)
    with load(exported(name) if engine == "onnx" else folder, engine) as model:
        for _ in range(2):
            scores = model.score(conversation(asked), ANSWERS)
            for score, logprobs in zip(scores, wanted, strict=True):
                found = [sample.logprob for sample in score.samples]
                assert found == pytest.approx(logprobs, abs=ATOL)
                assert score.logprob == pytest.approx(sum(logprobs), abs=ATOL * len(logprobs))


@pytest.mark.parametrize("name", ["llama", "qwen3_vl", "gemma3"])
@pytest.mark.parametrize("engine", ["torch", "tight", "onnx"])
def test_prompt_log_probabilities_equal_those_of_transformers(
    engine: str, name: str, saved: Saved, exported: Saved
) -> None:
    folder = saved(name)
    asked = runner.requests(name)[0]
    inputs = runner.reference_inputs(name, asked)
    with torch.no_grad():
        logits = runner.load_reference(name, folder)(**inputs).logits[0].double()
    wanted = logits.log_softmax(-1)
    request = Request(messages=conversation(asked), task="score")
    with load(exported(name) if engine == "onnx" else folder, engine) as model:
        read = asyncio.run(model.runner.atokenize(request))
        assert list(read.token_ids) == inputs["input_ids"][0].tolist()
        assert len(read.texts) == 1 + len(read.media)
        for _ in range(2):
            choices = model.submit(request).result().choices
            for (start, stop), choice in zip(read.texts, choices, strict=True):
                ids = list(read.token_ids[start:stop])
                rows = wanted[range(start - 1, stop - 1), ids].tolist()
                assert [sample.token_id for sample in choice.samples] == ids
                assert [s.logprob for s in choice.samples] == pytest.approx(rows, abs=ATOL)


def without_states(folder: Path) -> None:
    """Make a decoder one of an earlier version, which gave logits alone."""
    graph = onnx_ir.load(folder / "decoder.onnx")
    onnx_ir.external_data.load_to_model(graph)
    graph.graph.outputs.remove(next(o for o in graph.graph.outputs if o.name == "hidden_states"))
    RemoveUnusedNodesPass()(graph)
    graph.graph.inputs.remove(next(i for i in graph.graph.inputs if i.name == "hidden_indices"))
    (folder / "decoder.onnx.data").unlink()
    onnx_ir.save(graph, folder / "decoder.onnx")


def test_the_packaged_model_embeds_on_either_engine() -> None:
    pictures = [[zoo.picture(1, 90, 70)]]
    vectors = []
    for engine in ("onnx", "torch"):
        with vlmkit.load("demo", engine={"use": engine}) as model:
            vectors += model.embed(["What is it?"], images=pictures)
    assert vectors[0] @ vectors[1] > 0.999


def test_a_graph_exported_without_hidden_states_scores_but_does_not_embed(
    tmp_path: Path,
) -> None:
    packaged = Path(str(resources.files("vlmkit_demo"))) / "checkpoint"
    folder = Path(shutil.copytree(packaged, tmp_path / "demo"))
    without_states(folder)
    with vlmkit.load(folder, engine={"use": "onnx", "num_threads": 1}) as model:
        assert model.facts.limits.hidden_size == 0
        with pytest.raises(vlmkit.RequestError, match="gives no embeddings"):
            model.embed(TEXTS)
        right, wrong = model.score("Which colour is the circle?", ["red", "qqq"])
        assert right.logprob > wrong.logprob


@pytest.mark.parametrize(("mode", "other"), [("last", "mean"), ("mean", "cls"), ("cls", "last")])
def test_embeddings_of_different_pooling_modes_differ(
    mode: Mode, other: Mode, saved: Saved, tmp_path: Path
) -> None:
    folder = with_pooling(saved("llama"), mode, tmp_path / "model")
    plain, _ = expected_vectors("llama", folder, other, [])
    with load(folder, "torch") as model:
        assert differences(model.embed(TEXTS), plain) > 1000 * ATOL


def test_embeddings_with_blank_image_features_differ(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = runner.requests("llava")[:1]
    _, said = expected_vectors("llava", saved("llava"), "last", asked)
    with load(saved("llava"), "torch") as model:
        images_blank(monkeypatch)  # not before: a model that sees nothing is refused at load
        assert differences(model.embed([conversation(r) for r in asked]), said) > 100 * ATOL
