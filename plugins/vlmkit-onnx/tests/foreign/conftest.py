"""Fixtures: models in the layouts of other exporters, and functions that run them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlmkit_onnx.decoders.decoder import Tokens
from vlmkit_onnx.sessions.runtime import onnxruntime

SLOTS, SLOT_TOKENS, CHUNK = 4, 96, 10
PROMPTS = (5, 31, 18)
# Runs in its own process, because the builder changes sys.path and prints.
BUILDER = """
import importlib, json, os, sys
from pathlib import Path
import onnxruntime_genai
sys.path.insert(0, os.path.join(os.path.dirname(onnxruntime_genai.__file__), "models"))
builder = importlib.import_module("onnxruntime_genai.models.builder")
for name, source, target, precision, device, options in json.loads(sys.argv[1]):
    args = (name, source, target, precision, device, target + "/cache")
    builder.create_model(*args, **builder.parse_extra_options(*args, options))
    for file in Path(target).glob("cache"):
        file.rmdir()
"""
GENAI = {
    "llama": ("llama", "fp32", "cpu", []),
    "llama-int4": ("llama", "int4", "cpu", ["prune_lm_head=true"]),
    "llama-fp16": ("llama", "fp16", "cuda", []),
    "llama-int4-fp16": ("llama", "int4", "cuda", []),
    "gemma2": ("gemma2", "fp32", "cpu", []),
    "gpt_oss": ("gpt_oss", "fp32", "cpu", []),
    "qwen3-int4-b128": ("qwen3", "int4", "cpu", ["block_size=128"]),
    "mistral": ("mistral", "fp32", "cpu", []),
    "qwen2_5_vl": ("qwen2_5_vl", "fp32", "cpu", ["exclude_embeds=true"]),
    "phi3-128k": ("phi3", "fp32", "cpu", []),
}
PHI3_WINDOW = 70  # the original context length, in tokens


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip files that need torch if it is not installed."""
    import importlib.util

    needs = ("test_masked_decoder.py", "test_concat_decoder.py")
    if collection_path.name in needs and importlib.util.find_spec("torch") is None:
        return True
    return None


@pytest.fixture
def open_session() -> Callable[[Path], onnxruntime.InferenceSession]:
    """Return a function that opens a graph with one thread."""

    def opened(file: Path) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    return opened


@pytest.fixture(scope="session")
def genai_folders(
    saved: Callable[[str], Path], one_thread: None, made_once: Callable[..., Path]
) -> dict[str, Path]:
    """Return folders that the builder of onnxruntime-genai wrote, by name."""
    pytest.importorskip("onnxruntime_genai")
    root = made_once("genai", lambda folder: _build(saved, folder))
    return {name: root / name for name in GENAI}


def _build(saved: Callable[[str], Path], root: Path) -> None:
    """Write all models in one process, because its start takes longer than a model."""
    sources = {"phi3-128k": _with_two_rotations(saved("phi3"), root / "phi3")}
    jobs = [
        (family, str(sources.get(name) or saved(family)), str(root / name), *how)
        for name, (family, *how) in GENAI.items()
    ]
    made = subprocess.run(
        [sys.executable, "-c", BUILDER, json.dumps(jobs)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    _add_embeddings(root / "qwen2_5_vl", saved("qwen2_5_vl"))


def _with_two_rotations(checkpoint: Path, folder: Path) -> Path:
    """Copy a checkpoint with different rotations for long and short sequences."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"sliding_window": None, "original_max_position_embeddings": PHI3_WINDOW}
    factors = [1.0, 1.5, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0]
    config["rope_parameters"] = {
        "type": "longrope",  # the builder's name for it
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * len(factors),
        "long_factor": factors,
        "original_max_position_embeddings": PHI3_WINDOW,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _add_embeddings(folder: Path, checkpoint: Path) -> None:
    """Add the embeddings graph to a decoder, like the scripts for vision models."""
    import torch
    import transformers

    auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(checkpoint, dtype=torch.float32)
    save_embeddings(
        folder / "embedding.onnx",
        model.get_input_embeddings().weight.detach().numpy(),
        model.config.image_token_id,
    )
    stated = json.loads((folder / "genai_config.json").read_text())
    stated["model"]["embedding"] = {
        "filename": "embedding.onnx",
        "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
        "outputs": {"inputs_embeds": "inputs_embeds"},
    }
    stated["model"]["image_token_id"] = model.config.image_token_id
    (folder / "genai_config.json").write_text(json.dumps(stated))


def save_embeddings(file: Path, table: Any, image_token: int) -> None:
    """Write a graph that embeds tokens and inserts image rows at the placeholders."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    width = table.shape[1]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Equal", ["input_ids", "image_token"], ["is_image"]),
        helper.make_node("NonZero", ["is_image"], ["places"]),
        helper.make_node("Transpose", ["places"], ["indices"]),
        helper.make_node("ScatterND", ["rows", "indices", "image_features"], ["inputs_embeds"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "embedding",
        [
            value("input_ids", TensorProto.INT64, ["batch", "tokens"]),
            value("image_features", TensorProto.FLOAT, ["image_tokens", width]),
        ],
        [value("inputs_embeds", TensorProto.FLOAT, ["batch", "tokens", width])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array(image_token, np.int64), "image_token"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, file)


class Ragged:
    """Three requests of different lengths: chunked prompts, then joint steps of one token each."""

    def __init__(self, decoder: Any, embed: Callable[[Any], Any] | None = None) -> None:
        self.decoder = decoder
        self.embed = embed  # from ids [n] to rows
        rng = np.random.default_rng(1)
        self.prompts = [rng.integers(0, 360, count).tolist() for count in PROMPTS]
        for name in decoder.memory.states:  # data of earlier sequences
            rows = decoder.memory.rows(name, 0, decoder.memory.num_slots)
            rows[:] = rng.normal(0, 3, rows.shape)

    def tokens(self, ids: list[list[int]], starts: list[int]) -> Tokens:
        """Return the new tokens of rows that hold ``starts`` tokens."""
        array = np.array(ids, np.int64)
        positions = np.array(starts)[:, None] + np.arange(array.shape[1])
        axes = max(1, self.decoder.spec.num_position_axes)
        return Tokens(
            array,
            None if self.embed is None else self.embed(array.ravel()).reshape(*array.shape, -1),
            np.repeat(positions[None], axes, 0).astype(np.int64),
        )

    def prefill(self, slot: int, ids: list[int], chunk: int = CHUNK) -> Any:
        """Compute a prompt; return its last logits."""
        logits = None
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            tokens = self.tokens([part], [start])
            is_last = start + len(part) == len(ids)
            logits = self.decoder.prefill(slot, start, tokens, num_rows=int(is_last))
            assert logits.shape == (int(is_last), self.decoder.spec.vocab_size)
        return logits

    def generate(self, num_tokens: int) -> list[list[int]]:
        """Return the greedy answers."""
        answers = [
            [int(self.prefill(slot, ids)[0].argmax())] for slot, ids in enumerate(self.prompts)
        ]
        for step in range(num_tokens - 1):
            starts = [len(ids) + step for ids in self.prompts]
            tokens = self.tokens([[answer[-1]] for answer in answers], starts)
            logits = self.decoder.decode(0, np.array(starts, np.int32), tokens)
            for answer, row in zip(answers, logits, strict=True):
                answer.append(int(row.argmax()))
        return answers


@pytest.fixture
def ragged() -> type[Ragged]:
    """Return a function that runs three requests on a decoder."""
    return Ragged


@pytest.fixture(scope="session")
def reference(saved: Callable[[str], Path], one_thread: None) -> Callable[..., list[list[int]]]:
    """Return a function that computes the greedy answers of transformers."""
    import torch
    import transformers

    def answers(family: str, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        auto = (
            transformers.AutoModelForImageTextToText
            if "_vl" in family
            else transformers.AutoModelForCausalLM
        )
        model = auto.from_pretrained(saved(family), dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None
        with torch.no_grad():
            return [
                model.generate(
                    torch.tensor([ids]),
                    attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                    max_new_tokens=num_tokens,
                    do_sample=False,
                    pad_token_id=0,
                )[0, len(ids) :].tolist()
                for ids in prompts
            ]

    return answers


def tiny_decoder(
    file: Path,
    *,
    block_size: int = 0,
    window: int = -1,
    rotates: bool = True,
    dynamic: bool = False,
) -> Path:
    """Write a handmade decoder of one layer and 32 tokens that runs."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    width, vocab, tokens = 16, 32, 64
    angles = np.arange(tokens)[:, None] / 10 ** (np.arange(width // 2)[None] / 4)
    arrays = {
        "table": rng.normal(size=(vocab, 3 * width)),
        "head": rng.normal(size=(width, vocab)),
        "cos": np.cos(angles),
        "sin": np.sin(angles),
    }
    weights = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    weights += [numpy_helper.from_array(np.array(1, np.int64), "one")]
    weights += [numpy_helper.from_array(np.array([1], np.int64), "axis")]
    node, value, more = helper.make_node, helper.make_tensor_value_info, "com.microsoft"
    nodes = [
        node("Gather", ["table", "input_ids"], ["qkv"]),
        node("ReduceSum", ["attention_mask", "axis"], ["counts"], keepdims=0),
        node("Sub", ["counts", "one"], ["last"]),
        node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        node("Shape", ["attention_mask"], ["shape"]),
        node("Gather", ["shape", "one"], ["columns"]),
        node("Cast", ["columns"], ["total"], to=TensorProto.INT32),
        node(
            "GroupQueryAttention",
            ["qkv", "", "", "past_key_values.0.key", "past_key_values.0.value", "lengths", "total"]
            + ["cos", "sin"] * rotates,
            ["rows", "present.0.key", "present.0.value"],
            domain=more,
            num_heads=1,
            kv_num_heads=1,
            do_rotary=int(rotates),
            local_window_size=window,
        ),
        node("MatMul", ["rows", "head"], ["logits"]),
    ]
    if block_size:
        weights += [
            numpy_helper.from_array(np.zeros((vocab, 1, block_size // 2), np.uint8), "packed")
        ]
        weights += [numpy_helper.from_array(np.zeros(vocab, np.float32), "scales")]
        facts = {"K": width, "N": vocab, "bits": 4, "block_size": block_size}
        nodes += [node("MatMulNBits", ["rows", "packed", "scales"], ["x"], domain=more, **facts)]
    if dynamic:
        nodes += [node("DynamicQuantizeLinear", ["rows"], ["a", "b", "c"])]
    cache = ["batch", 1, "past", "width"]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            value("input_ids", TensorProto.INT64, ["batch", "tokens"]),
            value("attention_mask", TensorProto.INT64, ["batch", "all"]),
            value("past_key_values.0.key", TensorProto.FLOAT, cache),
            value("past_key_values.0.value", TensorProto.FLOAT, cache),
        ],
        [
            value("logits", TensorProto.FLOAT, ["batch", "tokens", vocab]),
            value("present.0.key", TensorProto.FLOAT, cache),
            value("present.0.value", TensorProto.FLOAT, cache),
        ],
        weights,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(more, 1)]
    file.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    file.write_bytes(model.SerializeToString())
    return file


@pytest.fixture
def make_decoder() -> Callable[..., Path]:
    """Return a function that writes a small decoder."""
    return tiny_decoder


@pytest.fixture
def make_embeddings() -> Callable[..., None]:
    """Return a function that writes an embeddings graph with inputs for image rows."""
    return save_embeddings
