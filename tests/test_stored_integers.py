"""vlmkit-onnx computes with the integers of a quantized checkpoint, or rejects it by layer."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vlmkit
from vlmkit.cli import run as command
from vlmkit.errors import CheckpointError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402 - they need torch

from parity import pipeline, runner  # noqa: E402
from quantized_checkpoints import (  # noqa: E402
    awq,
    bitsandbytes,
    compressed,
    folders,
    gguf_folders,
    gptq,
)
from quantized_checkpoints.folders import Quantized  # noqa: E402
from vlmkit.interfaces.memory_plan import PlannedLoad  # noqa: E402
from vlmkit.plugins.registry import BuildContext  # noqa: E402
from vlmkit_onnx import memory_plan  # noqa: E402
from vlmkit_onnx.export import exporter, stored_form  # noqa: E402
from vlmkit_onnx.export.quantize import BlockLinear  # noqa: E402
from vlmkit_onnx.export.stored_layers import StoredLayers, block_weights  # noqa: E402
from vlmkit_onnx.folder import export_cache, manifest  # noqa: E402
from vlmkit_onnx.settings import EngineSettings  # noqa: E402
from vlmkit_quantized import formats  # noqa: E402
from vlmkit_quantized.gguf_blocks import BLOCK_FORMATS  # noqa: E402
from vlmkit_torch.loading.reading import read_config, read_model  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

Saved = Callable[[str], Path]
Make = Callable[..., Quantized]
Row = tuple[bytes, bytes, bytes]
UP = "model.layers.0.mlp.up_proj"
ALWAYS = {"gptq", "awq, rows", "compressed, packed", "Q4_0", "Q8_0", "bfloat16"}
"""Forms that run always, each method among them; the others are slow tests."""


def sample_of(names: Iterable[str]) -> list[Any]:
    """Return parameters of which some are slow."""
    return [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in names]


METHODS: dict[str, tuple[Make, str]] = {
    "gptq": (gptq.make, "gptq-int4"),
    "gptq, groups of 32": (partial(gptq.make, group_size=32, version=2), "gptq-int4"),
    "gptq, 8 bits": (partial(gptq.make, bits=8, is_symmetric=False), "gptq-int8"),
    "gptq, 3 bits": (partial(gptq.make, bits=3), "gptq-int3"),
    "gptq, a group that is not full": (partial(gptq.make, group_size=80), "gptq-int4"),
    "gptq, any order in one group": (
        partial(gptq.make, group_size=-1, is_ordered=True),
        "gptq-int4",
    ),
    "awq": (awq.make, "awq-int4"),
    "awq, rows": (partial(awq.make, group_size=-1), "awq-int4"),
    "compressed, packed": (
        partial(compressed.make, weights={"symmetric": False}),
        "compressed-tensors-int4",
    ),
    "compressed, 8 bits": (partial(compressed.make, scheme="int"), "compressed-tensors-int8"),
    "Q4_0": (partial(gguf_folders.make, kind="Q4_0"), "gguf-int4"),
    "Q8_0": (partial(gguf_folders.make, kind="Q8_0"), "gguf-int8"),
}


def export(folder: Path, place: Path, precision: Any = "stored") -> Path:
    """Export a checkpoint, its vision tower in float32; return the folder."""
    target = place / "exported" / folder.name
    exporter.export(
        Checkpoint("m", folder), target, precision, lambda _: None, vision_precision="fp32"
    )
    return target


def rows_of(codes: Any, scales: Any, zeros: Any) -> Iterator[Row]:
    """Yield the codes of each row, and the scales and zero points of its columns, as bytes."""
    for row in range(len(codes)):
        yield (
            codes[row].astype(np.uint8).tobytes(),
            scales[row].astype(np.float32).tobytes(),
            zeros[row].astype(np.uint8).tobytes(),
        )


def rows_of_graph(folder: Path) -> Counter[Row]:
    """Return the rows of all MatMulNBits operators of a decoder."""
    graph = onnx.load(folder / "decoder.onnx").graph
    arrays = {each.name: each for each in graph.initializer}
    found: Counter[Row] = Counter()
    for node in graph.node:
        if node.op_type != "MatMulNBits":
            continue
        numbers = {each.name: each.i for each in node.attribute}
        bits, block, width = numbers["bits"], numbers["block_size"], numbers["K"]
        codes, scales, zeros = (
            onnx.numpy_helper.to_array(arrays[name]) for name in node.input[1:4]
        )
        blocks = -(-width // block)
        scales = scales.reshape(-1, blocks)
        codes = codes.reshape(len(scales), -1)
        zeros = zeros.reshape(len(scales), -1)
        if bits == 4:
            codes, zeros = (
                np.stack([each & 15, each >> 4], -1).reshape(len(each), -1)
                for each in (codes, zeros)
            )
        columns = np.arange(width) // block
        found.update(rows_of(codes[:, :width], scales[:, columns], zeros[:, columns]))
    return found


def rows_of_checkpoint(folder: Path) -> Counter[Row]:
    """Return the rows of the quantized linear layers of a checkpoint."""
    found: Counter[Row] = Counter()
    for name, weight in formats.weights(Checkpoint("m", folder)).items():
        if weight.layout is None or "embed" in name:
            continue
        packed = weight.packed()
        columns = packed.codes.shape[1]
        groups = packed.column_groups
        if groups is None:
            groups = np.arange(columns) // (columns // packed.scales.shape[1])
        zeros = np.broadcast_to(packed.zero_points, packed.scales.shape)
        found.update(rows_of(packed.codes, packed.scales[:, groups], zeros[:, groups]))
    return found


@pytest.mark.parametrize("method", sample_of(METHODS))
def test_the_integers_of_the_graph_are_those_of_the_checkpoint(
    method: str, saved: Saved, tmp_path: Path
) -> None:
    make, precision = METHODS[method]
    made = make(saved("llama"), tmp_path)
    folder = export(made.folder, tmp_path)

    assert rows_of_graph(folder) == rows_of_checkpoint(made.folder)
    assert manifest.read(folder).precision == precision


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sample_of(["float16", "bfloat16"]))
def test_integers_are_found_where_values_are_rounded_to_the_models_type(
    dtype: str, saved: Saved, tmp_path: Path
) -> None:
    made = awq.make(saved("llama"), tmp_path, group_size=-1)
    folders.edit(made.folder, dtype=dtype)
    folder = export(made.folder, tmp_path)

    assert rows_of_graph(folder) == rows_of_checkpoint(made.folder)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K"])
def test_blocks_of_gguf_have_the_same_values_in_the_form_of_the_operator(kind: str) -> None:
    blocks = BLOCK_FORMATS[kind]
    octets = np.random.default_rng(0).integers(0, 256, (5, 3 * blocks.num_bytes), np.uint8)
    scale = blocks.num_bytes - 2 if kind in ("Q3_K", "Q6_K") else 0
    octets.reshape(5, 3, -1)[..., scale + 1] &= 0x3B  # the exponents of scales are finite
    linear = blocks.linear(octets)
    weights = block_weights(linear, blocks.layout)

    assert stored_form.objection_to(blocks.layout, linear.codes.shape[1]) is None
    values = BlockLinear(weights, None)._weight(slice(None))
    assert torch.equal(values, torch.from_numpy(linear.dense()))


def mixed(source: Path, place: Path) -> Quantized:
    """Return a checkpoint of GPTQ with keys of 8 bits between queries and values of 4."""
    four, eight = (gptq.make(source, place / str(bits), bits=bits) for bits in (4, 8))
    tensors, others = (folders.tensors(made.folder) for made in (four, eight))
    plain, plain_others = (folders.tensors(made.plain) for made in (four, eight))
    for name in others:
        if ".k_proj." in name:
            tensors[name] = others[name]
    for name in plain_others:
        if ".k_proj." in name:
            plain[name] = plain_others[name]
    folders.write(four.folder, tensors)
    folders.write(four.plain, plain)
    stated = json.loads((four.folder / "config.json").read_text())["quantization_config"]
    dynamic = {"+:.*k_proj.*": {"bits": 8}}
    folders.edit(four.folder, quantization_config={**stated, "dynamic": dynamic})
    return four


TIED = "qwen3, tied"
ANSWERED: dict[str, tuple[Make, str]] = {
    "gptq": (gptq.make, "llama"),
    "gptq, 4 and 8 bits": (mixed, "llama"),
    "gptq, joined projections": (gptq.make, "phi3"),
    "gptq, experts": (gptq.make, "mixtral"),
    "awq, images": (awq.make, "llava"),
    "awq, tied": (partial(awq.make, is_tied=True), "qwen3"),
    "awq, images and rotation": (awq.make, "qwen2_5_vl"),
    "compressed, a plain layer between others": (partial(compressed.make, plain="k_proj"), "llama"),
    "compressed, 8 bits": (partial(compressed.make, scheme="int"), "llama"),
    "Q4_0, tied": (partial(gguf_folders.make, kind="Q4_0", is_tied=True), "llama"),
    "Q8_0, experts": (partial(gguf_folders.make, kind="Q8_0"), "qwen3_moe"),
}


def without_rounded_activations(folder: Path) -> None:
    """Change a graph so that MatMulNBits computes with activations in float32."""
    model = onnx.load(folder / "decoder.onnx")
    for node in model.graph.node:
        for each in node.attribute:
            if each.name == "accuracy_level":
                each.i = 1
    onnx.save(model, folder / "decoder.onnx")


@pytest.mark.parametrize("case", sample_of(ANSWERED))
def test_answers_are_those_of_the_values_but_for_rounded_activations(
    case: str, saved: Saved, tmp_path: Path
) -> None:
    make, family = ANSWERED[case]
    made = make(saved(family), tmp_path)
    asked = runner.requests(family)
    wanted = runner.expected(family, made.plain, asked, banned=())
    folder = export(made.folder, tmp_path)
    largest = max(answer.logits.abs().max().item() for answer in wanted)

    rounded = compared(family, folder, wanted)
    without_rounded_activations(folder)
    exact = compared(family, folder, wanted)

    assert exact.num_equal == len(asked)
    assert exact.difference < EXACT * largest
    selects_others = "experts" in case  # rounding may select another expert for a token
    assert selects_others or rounded.difference < ROUNDED * largest


EXACT = 1e-4
ROUNDED = 0.1
"""Of the largest logit. An activation is off by 1/254 of the largest of its block at most."""


def compared(family: str, folder: Path, wanted: Any) -> runner.Outcome:
    """Return how the ONNX engine answers the requests to a family."""
    return runner.outcome(family, folder, wanted, load=runner.load_onnx_engine)


REJECTED: dict[str, tuple[Make, str]] = {
    "gptq, any order": (
        partial(gptq.make, is_ordered=True),
        "layer 'model.layers.0.mlp.down_proj' has columns in any order of groups",
    ),
    "compressed, any order": (
        partial(compressed.make, is_ordered=True),
        "has columns in any order of groups",
    ),
    "groups that are no multiple": (
        partial(gptq.make, group_size=24),
        "has groups of 24 inputs, no multiple of 16",
    ),
    "groups of few": (partial(awq.make, group_size=8), "has groups of 8 inputs, no multiple of 16"),
    "nf4": (bitsandbytes.make, "has codes that stand for floats"),
    "LLM.int8": (bitsandbytes.make_eight, "has a scale of all weights"),
    "nvfp4": (partial(compressed.make, scheme="nvfp4"), "has codes that stand for floats"),
    "fp8": (partial(compressed.make, scheme="fp8"), "has codes that stand for floats"),
    "Q4_1": (partial(gguf_folders.make, kind="Q4_1"), "has offsets of groups"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_the_operator_cannot_hold_is_rejected_by_layer_before_weights_are_read(
    case: str, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, message = REJECTED[case]
    made = make(saved("llama"), tmp_path)
    monkeypatch.setattr(exporter, "load", lambda _: pytest.fail("weights were read"))

    with pytest.raises(CheckpointError) as caught:
        export(made.folder, tmp_path)
    assert "its integers cannot be used as they are: layer 'model." in str(caught.value)
    assert message in str(caught.value)
    assert "`vlmkit export --precision w8a8`" in caught.value.hint
    assert not (tmp_path / "exported" / "llama").exists()


def test_methods_of_other_packages_are_rejected_by_name(saved: Saved, tmp_path: Path) -> None:
    made = gptq.make(saved("llama"), tmp_path)
    folders.edit(made.folder, quantization_config={"quant_method": "hqq"})
    assert "they are of 'hqq'" in str(stored_form.objection(Checkpoint("m", made.folder)))


@pytest.mark.slow
def test_a_stated_precision_rounds_the_values_of_a_rejected_checkpoint(
    saved: Saved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = gptq.make(saved("llama"), tmp_path, is_ordered=True)
    onnx_engine = {"use": "onnx", "num_threads": 1}
    with pytest.raises(CheckpointError, match=r"layer 'model\.layers\.0\.mlp\.down_proj' has"):
        vlmkit.load(made.folder, engine=onnx_engine)
    assert command(["doctor", str(made.folder), "--set", "engine.use=onnx"]) != 0
    assert "has columns in any order of groups" in capsys.readouterr().out

    asked = runner.requests("llama")
    wanted = runner.expected("llama", made.plain, asked, banned=())
    with pipeline.load(made.folder, "onnx", {"precision": "fp32"}) as model:
        assert model.facts.limits.precision == "fp32"
        answers = [
            [s.token_id for s in samples] for _, samples in pipeline.stream_all(model, asked)
        ]
    assert answers == [answer.token_ids for answer in wanted]


@pytest.mark.slow
def test_a_stated_precision_rounds_the_values_of_any_quantized_checkpoint(
    saved: Saved, tmp_path: Path
) -> None:
    made = awq.make(saved("llama"), tmp_path)
    folder = export(made.folder, tmp_path, "int8")
    assert manifest.read(folder).precision == "int8"
    assert rows_of_graph(folder).keys().isdisjoint(rows_of_checkpoint(made.folder))


def test_a_model_is_served_with_its_integers_and_later_without_the_exporter(
    saved: Saved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = gptq.make(saved("llama"), tmp_path)
    sets = ["--set", "engine.use=onnx"]
    assert command(["models", "info", str(made.folder), "--json", *sets]) == 0
    shown = json.loads(capsys.readouterr().out)["precision"]["engine"]
    assert shown == "to be exported as stored integers"
    for _ in range(2):
        with vlmkit.load(made.folder, engine={"use": "onnx", "num_threads": 1}) as model:
            assert model.facts.limits.precision == "gptq-int4"
            assert model.facts.limits.is_batch_invariant
        monkeypatch.setattr(export_cache, "missing_packages", lambda: ["torch"])


@pytest.mark.slow
def test_layers_that_a_checkpoint_has_plain_get_a_stated_precision(
    saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = gptq.make(saved("llama"), tmp_path)
    target = str(tmp_path / "exported")
    assert command(["export", str(made.folder), target, "--plain-precision", "int8"]) == 0
    assert manifest.read(tmp_path / "exported").precision == "gptq-int4+int8"
    rows, stored = rows_of_graph(tmp_path / "exported"), rows_of_checkpoint(made.folder)
    assert rows > stored
    assert (rows - stored).total() == len(folders.tensors(made.folder)["lm_head.weight"])

    wrong = ["--plain-precision", "int8", "--precision", "int4"]
    assert command(["export", str(made.folder), str(tmp_path / "other"), *wrong]) == 2
    assert "is for quantized checkpoints, without --precision" in capsys.readouterr().err


PLANNED: dict[str, Make] = {
    "awq": partial(awq.make, group_size=-1),
    "awq, tied": partial(awq.make, group_size=-1, is_tied=True),
    "Q4_0": partial(gguf_folders.make, kind="Q4_0"),
    "Q8_0, tied": partial(gguf_folders.make, kind="Q8_0", is_tied=True),
}


@pytest.mark.parametrize("method", sample_of(PLANNED))
def test_the_memory_of_integers_is_planned_near_to_the_graph_before_the_export(
    method: str, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "one-llama"
    wider(saved("llama"), source)
    made = PLANNED[method](source, tmp_path)
    folder = export(made.folder, tmp_path)
    planned, exported = (
        memory_plan.plan_engine(
            BuildContext("", Checkpoint("m", each), EngineSettings()), PlannedLoad()
        ).needs[0]
        for each in (made.folder, folder)
    )
    assert planned.name == exported.name == "weights"
    assert planned.detail.startswith("stored integers")
    assert 0.95 < planned.num_bytes / exported.num_bytes < 1.3


def wider(source: Path, target: Path) -> None:
    """Save a model whose weights are larger than its graph without them."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    config |= {"hidden_size": 512, "intermediate_size": 1024, "head_dim": 128}
    config["initializer_range"] = 0.02
    made = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    model.save_pretrained(target)


@pytest.mark.slow
def test_the_command_keeps_integers_unless_a_precision_is_stated(
    saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = gptq.make(saved("llama"), tmp_path)
    assert command(["export", str(made.folder), str(tmp_path / "one")]) == 0
    assert manifest.read(tmp_path / "one").precision == "gptq-int4"
    other = str(tmp_path / "two")
    assert command(["export", str(made.folder), other, "--precision", "w8a8"]) == 0
    assert manifest.read(tmp_path / "two").precision == "w8a8"
    capsys.readouterr()


@pytest.mark.slow
def test_experts_are_expanded_with_a_warning(
    saved: Saved, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = gptq.make(saved("mixtral"), tmp_path)
    export(made.folder, tmp_path)
    assert "such as 'model.layers.0.block_sparse_moe.experts.0.w1.weight', are no" in caplog.text


def test_a_checkpoint_of_quantized_experts_alone_is_rejected(saved: Saved, tmp_path: Path) -> None:
    made = compressed.make(saved("mixtral"), tmp_path, plain="self_attn")
    with pytest.raises(CheckpointError, match="none is a linear layer of its decoder"):
        export(made.folder, tmp_path)


NUM_MUTATED = 60
NUM_LAYERS = 21
MUTATED: dict[str, Make] = {
    "gptq": gptq.make,
    "awq": awq.make,
    "compressed": compressed.make,
    "Q4_0": partial(gguf_folders.make, kind="Q4_0"),
}


@pytest.mark.parametrize("method", MUTATED)
def test_a_mutated_checkpoint_is_rejected_or_computed_as_its_values(
    method: str, saved: Saved, tmp_path: Path
) -> None:
    made = MUTATED[method](saved("llama"), tmp_path)
    (file,) = [*made.folder.glob("*.safetensors"), *made.folder.glob("*.gguf")]
    content = file.read_bytes()
    num_rejected = num_equal = 0
    for number in range(NUM_MUTATED):
        dice = random.Random(number)
        changed = bytearray(content)
        # Half of the changes are in the header.
        changed[dice.randrange(len(content) if number % 2 else 4096)] ^= 1 << dice.randrange(8)
        file.unlink()
        file.write_bytes(changed)
        try:
            num_layers = check_layers(made.folder)
        except (VlmkitError, AssertionError) as error:
            if isinstance(error, AssertionError):
                raise
            num_rejected += 1
        else:
            assert num_layers == NUM_LAYERS + (method == "Q4_0")  # whose head is stored, too
            num_equal += 1
    assert num_rejected
    assert num_equal


def check_layers(folder: Path) -> int:
    """Compare all stored layers of a checkpoint with the loaded values; return their number."""
    checkpoint = Checkpoint("m", folder)
    stored_form.refuse(checkpoint)
    model = read_model(checkpoint, read_config(checkpoint), torch.float32)
    layers = StoredLayers(checkpoint)
    num = 0
    for module in model.modules():
        if type(module) is not torch.nn.Linear:
            continue
        if (weights := layers.find(module.weight)) is not None:
            values = BlockLinear(weights, None)._weight(slice(None))
            assert torch.equal(values, module.weight)
            num += 1
    return num
