"""Weights that are rounded while they are read have the values of ``vlmkit_quantized.rounding``."""

import json
import logging
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

import msgspec  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

import vlmkit  # noqa: E402
from parity import pipeline, runner  # noqa: E402
from pretend.torch_cuda import pretended_cuda  # noqa: E402
from quantized_checkpoints import folders, gguf_folders, gptq  # noqa: E402
from vlmkit.errors import CheckpointError, ConfigError, VlmkitError  # noqa: E402
from vlmkit.interfaces.memory_plan import PlannedLoad  # noqa: E402
from vlmkit.kit.checkpoint import Checkpoint  # noqa: E402
from vlmkit.plugins.registry import BuildContext  # noqa: E402
from vlmkit_quantized.errors import FormatError  # noqa: E402
from vlmkit_quantized.rounding import rounded  # noqa: E402
from vlmkit_quantized.rounding_schemes import ROUNDING_SCHEMES, RoundingScheme  # noqa: E402
from vlmkit_quantized.weight import QuantizedLinear  # noqa: E402
from vlmkit_torch import memory_plan  # noqa: E402
from vlmkit_torch.engine import torch_engine  # noqa: E402
from vlmkit_torch.loading.operator_linear import OperatorLinear, has_operators  # noqa: E402
from vlmkit_torch.loading.weights import examine  # noqa: E402
from vlmkit_torch.settings import EngineSettings  # noqa: E402

pytestmark = pytest.mark.skipif(not has_operators(), reason="this torch has no operators")

Saved = Callable[[str], Path]
MIB = 2**20
INT8, INT4 = ROUNDING_SCHEMES["int8"], ROUNDING_SCHEMES["int4"]
TIED = "qwen3, tied"
FAMILIES = ("llama", TIED, "phi3", "mixtral", "llava", "qwen2_5_vl")
ROUTED = ("mixtral",)
"""Families whose routers have near ties in bfloat16, of a tiny model: rounding chooses experts."""
PARTS = r"vision|visual|projector|\.experts\."
"""Names of matrices that stay plain, beside those of ``folders.PLAIN``."""
TINY = {"device": "cpu", "cache_tokens": 256, "self_check": False}


def engine_of(folder: Path, **settings: Any) -> torch_engine.TorchEngine:
    chosen = EngineSettings(**{**TINY, **settings})
    return torch_engine.build(BuildContext("", Checkpoint("model", folder), chosen))


def model_of(engine: torch_engine.TorchEngine) -> Any:
    return engine._views.model


def packed_paths(engine: torch_engine.TorchEngine) -> set[str]:
    modules = model_of(engine).named_modules()
    return {name for name, module in modules if isinstance(module, OperatorLinear)}


def fits(scheme: RoundingScheme, weight: torch.Tensor) -> bool:
    """Return whether a weight is rounded: an operator for CPUs holds it."""
    rows, columns = weight.shape
    return columns % 32 == 0 and (scheme is INT8 or rows % 16 == 0)


def with_rounded_weights(
    folder: Path, place: Path, scheme: RoundingScheme, also: str = ""
) -> tuple[Path, set[str]]:
    """Return a copy of a folder that has the rounded values as plain weights, and their names."""
    changed: set[str] = set()

    def replace(stored: folders.Tensors) -> None:
        for name, weight in stored.items():
            is_plain = re.search(f"{folders.PLAIN}|{PARTS}", name)
            is_wanted = not is_plain or (also and re.search(also, name))
            if weight.ndim != 2 or not is_wanted or not fits(scheme, weight):
                continue
            values = rounded(weight.float().numpy(), scheme).dense()
            assert not np.array_equal(values, weight.float().numpy())
            stored[name] = torch.from_numpy(values)
            changed.add(name)

    copied = place / "rounded" / folder.name
    shutil.copytree(folder, copied)
    folders.change(copied, replace)
    return copied, changed


def source_of(family: str, saved: Saved, place: Path) -> Path:
    """Return the folder of a family, called by its name; one with a tied head if the name says."""
    name = family.removesuffix(", tied")
    folder = place / "plain" / name
    shutil.copytree(saved(name), folder)
    if name != family:
        folders.edit(folder, tie_word_embeddings=True)
        folders.change(folder, lambda stored: stored.pop("lm_head.weight"))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_answers_are_those_of_transformers_with_the_rounded_values(
    scheme: RoundingScheme, family: str, saved: Saved, tmp_path: Path
) -> None:
    folder = source_of(family, saved, tmp_path)
    other, changed = with_rounded_weights(folder, tmp_path, scheme)
    assert len(changed) >= 4
    asked = runner.requests(folder.name)
    wanted = runner.expected(folder.name, other, asked, banned=())
    sizes = {"quantize": scheme.name, "quantized_layers": "dense", "dtype": "float32"}
    with pipeline.load(folder, sizes=sizes) as model:
        streamed = pipeline.stream_all(model, asked)
    found = [[sample.token_id for sample in samples] for _, samples in streamed]
    assert found == [answer.token_ids for answer in wanted]
    for (_, samples), answer in zip(streamed, wanted, strict=True):
        logprobs = torch.log_softmax(answer.logits.float(), -1)
        own = [float(row[token]) for row, token in zip(logprobs, answer.token_ids, strict=True)]
        assert [sample.logprob for sample in samples] == pytest.approx(own, abs=runner.TOLERANCE)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ROUTED])
@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_packed_layers_answer_as_expanded_ones(
    scheme: RoundingScheme, family: str, saved: Saved, tmp_path: Path
) -> None:
    folder = source_of(family, saved, tmp_path)
    asked = runner.requests(folder.name)
    rows = {}
    for layers in ("auto", "dense"):
        sizes = {"quantize": scheme.name, "quantized_layers": layers, "dtype": "bfloat16"}
        with pipeline.load(folder, sizes=sizes) as model:
            streamed = pipeline.stream_all(model, asked)
        rows[layers] = [[sample.logprob for sample in samples[:1]] for _, samples in streamed]
    found, wanted = (np.array(rows[layers]) for layers in ("auto", "dense"))
    assert np.abs(found - wanted).max() < 0.1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_packed_layers_have_the_rounded_values_and_others_their_own(
    scheme: RoundingScheme, family: str, saved: Saved, tmp_path: Path
) -> None:
    folder = source_of(family, saved, tmp_path)
    other, changed = with_rounded_weights(folder, tmp_path, scheme)
    packed, plain = engine_of(folder, quantize=scheme.name), engine_of(other, dtype="bfloat16")
    paths = packed_paths(packed)
    assert len(paths) == len(changed)
    for path in paths:
        layer = model_of(packed).get_submodule(path)
        found = layer(torch.eye(layer.in_features, dtype=torch.bfloat16)).T
        weight = model_of(plain).get_submodule(path).weight
        torch.testing.assert_close(found, weight, rtol=2**-6, atol=2**-7 * weight.abs().max())
    values = dict(model_of(plain).state_dict())
    for name, weight in model_of(packed).state_dict().items():
        if name.rpartition(".")[0] not in paths:
            assert torch.equal(weight, values[name]), name
    packed.close()
    plain.close()


@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_head_and_tower_are_rounded_if_they_are_named(
    scheme: RoundingScheme, saved: Saved, tmp_path: Path
) -> None:
    folder = source_of("llava", saved, tmp_path)
    default = engine_of(folder, quantize=scheme.name)
    more = engine_of(folder, quantize=scheme.name, quantize_also=("head", "tower"))
    added = packed_paths(more) - packed_paths(default)
    assert not any("vision" in path or "head" in path for path in packed_paths(default))
    assert any("vision" in path for path in added)
    assert any("projector" in path for path in added)
    assert "lm_head" in added
    assert more.limits.precision.endswith("with head and tower, packed layers")
    default.close()
    more.close()
    other, _ = with_rounded_weights(folder, tmp_path, scheme, also="vision|projector|lm_head")
    asked = runner.requests("llava")
    wanted = runner.expected("llava", other, asked, banned=())
    sizes = {"quantize": scheme.name, "quantize_also": ["head", "tower"], "dtype": "float32"}
    with pipeline.load(folder, sizes={**sizes, "quantized_layers": "dense"}) as model:
        streamed = pipeline.stream_all(model, asked)
    found = [[sample.token_id for sample in samples] for _, samples in streamed]
    assert found == [answer.token_ids for answer in wanted]


def test_a_head_that_is_the_embedding_is_not_rounded(saved: Saved, tmp_path: Path) -> None:
    folder = source_of(TIED, saved, tmp_path)
    with pytest.raises(ConfigError, match="its embedding, which stays plain"):
        engine_of(folder, quantize="int4", quantize_also=("head",))


def test_a_part_in_which_nothing_is_rounded_is_refused(saved: Saved, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'tower'.*no linear layer there.*it has none"):
        engine_of(saved("llama"), quantize="int8", quantize_also=("tower",))
    folder = source_of("llama", saved, tmp_path)
    folders.edit(folder, vocab_size=391)  # which is no multiple of 16

    def enlarge(stored: folders.Tensors) -> None:
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            stored[name] = torch.ones(391, stored[name].shape[1])

    folders.change(folder, enlarge)
    engine_of(folder, quantize="int8", quantize_also=("head",)).close()
    with pytest.raises(ConfigError, match=r"'head'.*int4 can round .1 of sizes that no kernel"):
        engine_of(folder, quantize="int4", quantize_also=("head",))


def test_a_tower_of_the_encoders_own_copy_is_not_named(saved: Saved) -> None:
    folder = saved("llava")
    engine = {**pipeline.ENGINES["torch"], "quantize": "int8", "quantize_also": ["tower"]}
    with pytest.raises(ConfigError, match=r"'tower'.*sets media_encoder\.dtype"):
        vlmkit.load(folder, engine=engine, media_encoder={"dtype": "float32"})
    vlmkit.load(folder, engine=engine, media_encoder={"max_batch_images": 2}).close()
    settings = EngineSettings(**TINY, quantize="int8", quantize_also=("tower",))
    other = {"media_encoder": ("onnx", {})}
    with pytest.raises(ConfigError, match=r"'tower'.*media_encoder\.use = 'onnx'"):
        examine(BuildContext("", Checkpoint("model", folder), settings, components=other))


def test_reports_name_the_scheme_and_the_reasons_of_plain_matrices(
    saved: Saved, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = source_of("mixtral", saved, tmp_path)
    settings = EngineSettings(**TINY, quantize="int4")
    context = BuildContext("", Checkpoint("model", folder), settings)
    text = "matrices rounded to int4 in groups of 64"
    reasons = ("embedding", "head", "of experts", "router")
    described = examine(context)
    (weights, *_) = memory_plan.plan_engine(context, PlannedLoad(context_tokens=64)).needs
    with caplog.at_level(logging.INFO):
        engine = torch_engine.build(context)
    for found in (described, weights.detail, caplog.text):
        assert text in found
        assert all(f" {reason}" in found for reason in reasons)
        assert "while they are read" in found
    assert engine.limits.precision == "bfloat16, int4 in groups of 64, packed layers"
    engine.close()
    dense = engine_of(folder, quantize="int8", quantized_layers="dense", dtype="float32")
    assert dense.limits.precision == "float32, int8 with a scale for each output"
    dense.close()


def test_a_layer_that_does_not_fit_stays_plain_with_the_reason(
    saved: Saved, tmp_path: Path
) -> None:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=80,  # of inputs that no group size divides
        num_hidden_layers=1,
        num_attention_heads=1,
        head_dim=24,  # of outputs that are no multiple of 16
        dtype=torch.bfloat16,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    settings = EngineSettings(**TINY, quantize="int4")
    described = examine(BuildContext("", Checkpoint("model", tmp_path), settings))
    assert "2 of 9 matrices rounded to int4 in groups of 64" in described
    assert "2 of inputs that no group size divides" in described
    assert "3 of sizes that no kernel holds" in described


@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "mixtral", "llava"])
def test_the_plan_counts_the_bytes_of_rounded_layers(
    family: str, scheme: RoundingScheme, saved: Saved, tmp_path: Path
) -> None:
    folder = source_of(family, saved, tmp_path)
    settings = EngineSettings(device="cpu", cache_tokens=256, quantize=scheme.name)
    context = BuildContext("", Checkpoint("model", folder), settings)
    plan = memory_plan.plan_engine(context, PlannedLoad(context_tokens=100))
    (planned,) = [need.num_bytes for need in plan.needs if need.name == "weights"]
    engine = engine_of(folder, quantize=scheme.name)
    model = model_of(engine)
    found = sum(each.nbytes for each in [*model.parameters(), *model.buffers()])
    assert planned == pytest.approx(found, rel=0.05)
    engine.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantize": "int4", "dtype": "float32"}, "no kernel computes with rounded layers"),
        ({"quantize": "int8", "dtype": "float16"}, "no kernel computes with rounded layers"),
        ({"quantize_also": ("head",)}, "has no meaning without engine.quantize"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], message: str, saved: Saved
) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_of(saved("llama"), **settings)


@pytest.mark.parametrize(
    ("field", "value"),
    [("quantize", "int3"), ("quantize", 4), ("quantize", True), ("quantize_also", ["experts"])],
)
def test_an_unknown_value_is_refused_by_the_name_of_its_field(
    field: str, value: object, saved: Saved
) -> None:
    with pytest.raises(ConfigError, match=field):
        pipeline.load(saved("llama"), sizes={field: value})
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert({field: value}, EngineSettings)


@pytest.mark.parametrize(("engine", "model"), [("onnx", "demo"), ("mock", "mock")])
def test_an_engine_that_cannot_round_refuses_the_setting(engine: str, model: str) -> None:
    pytest.importorskip(f"vlmkit_{engine}")
    with pytest.raises(VlmkitError, match="quantize"):
        vlmkit.load(model, engine={"use": engine, "quantize": "int4"})


@pytest.mark.parametrize("make", [gptq.make, gguf_folders.make])
def test_a_quantized_checkpoint_is_not_rounded_again(
    make: Any, saved: Saved, tmp_path: Path
) -> None:
    folder = make(saved("llama"), tmp_path).folder
    for layers in ("auto", "dense"):
        with pytest.raises(ConfigError, match="quantized already"):
            engine_of(folder, quantize="int4", quantized_layers=layers)


def test_a_weight_that_is_not_finite_is_refused_by_its_name(saved: Saved, tmp_path: Path) -> None:
    folder = source_of("llama", saved, tmp_path)
    name = next(name for name in folders.tensors(folder) if name.endswith("down_proj.weight"))
    folders.change(folder, lambda stored: stored[name][0, 0].fill_(float("nan")))
    for scheme in ("int8", "int4"):
        with pytest.raises(CheckpointError, match=f"{name}.*not finite"):
            engine_of(folder, quantize=scheme)


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0)])
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_tensor_without_numbers_is_no_layer(
    scheme: str, shape: tuple[int, int], saved: Saved, tmp_path: Path
) -> None:
    folder = source_of("llama", saved, tmp_path)
    folders.change(folder, lambda stored: stored.update({"model.extra.weight": torch.ones(shape)}))
    plain = engine_of(saved("llama"), quantize=scheme)
    engine = engine_of(folder, quantize=scheme)  # unused, as transformers leaves it unused
    assert packed_paths(engine) == packed_paths(plain)
    plain.close()
    engine.close()
    name = next(name for name in folders.tensors(folder) if name.endswith("q_proj.weight"))
    folders.change(folder, lambda stored: stored.update({name: torch.ones(shape)}))
    with pytest.raises(CheckpointError, match=f"the wrong shape for 1 weights.*{name}"):
        engine_of(folder, quantize=scheme)
    with pytest.raises(FormatError, match="without numbers"):
        rounded(np.ones(shape, np.float32), ROUNDING_SCHEMES[scheme])


def test_files_that_contradict_each_other_are_refused(saved: Saved, tmp_path: Path) -> None:
    folder = source_of("llama", saved, tmp_path)
    stored = folders.tensors(folder)
    name = next(name for name in stored if name.endswith("q_proj.weight"))
    save_file(
        {name: torch.zeros_like(stored[name]), "other": torch.ones(1)}, folder / "b.safetensors"
    )
    listed = {**dict.fromkeys(stored, "model.safetensors"), "other": "b.safetensors"}
    index = {"metadata": {}, "weight_map": listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    context = BuildContext("", Checkpoint("model", folder), EngineSettings(**TINY, quantize="int8"))
    for load in (examine, torch_engine.build):
        with pytest.raises(CheckpointError, match=f"two of its files have a tensor '{name}'"):
            load(context)


def test_a_cuda_device_needs_a_choice_between_its_kernel_and_expanded_layers(saved: Saved) -> None:
    folder = saved("llama")
    load = PlannedLoad(context_tokens=64, num_sequences=1)

    def planned(**more: Any) -> int:
        settings = EngineSettings(device="cuda", **more)
        context = BuildContext("", Checkpoint("model", folder), settings)
        return memory_plan.plan_engine(context, load).needs[0].num_bytes

    with pretended_cuda():
        with pytest.raises(ConfigError, match="needs a choice"):
            planned(quantize="int4")
        packed = planned(quantize="int4", quantized_layers="packed")
        assert packed < planned(quantize="int4", quantized_layers="dense") == planned()


def test_an_encoder_of_its_own_and_the_engine_do_not_share_rounded_weights(
    saved: Saved,
) -> None:
    sizes = {"quantize": "int8", "quantized_layers": "dense", "dtype": "float32"}
    folder = saved("llava")
    engine = {**pipeline.ENGINES["torch"], **sizes}
    with vlmkit.load(folder, engine=engine, media_encoder={"dtype": "float32"}) as model:
        assert "int8" in model.facts.limits.precision


def groups_of(kind: str, num: int, size: int) -> np.ndarray[Any, Any]:
    numbers = np.random.default_rng(0)
    return {
        "normal": numbers.standard_normal((num, size)),
        "heavy tails": numbers.standard_t(3, (num, size)),
        "positive": numbers.uniform(1, 2, (num, size)),
        "tiny": numbers.standard_normal((num, size)) * 1e-30,
        "outlier": np.where(np.arange(size) == 3, 100, numbers.standard_normal((num, size))),
    }[kind].astype(np.float32)


def by_reference(group: np.ndarray[Any, Any], scheme: RoundingScheme) -> float:
    """Return the least squared error of a group among all that the scheme allows for it.

    Computed in float64 from the definition, code by code.
    """
    values = group.astype(np.float64)
    if scheme.is_symmetric:
        scale = float(torch.tensor(np.abs(group).max() / np.float32(127)).bfloat16())
        levels = np.arange(-127, 128) * scale
        return float((np.abs(values[:, None] - levels).min(1) ** 2).sum())
    errors = []
    low, high = min(group.min(), 0), max(group.max(), 0)
    for part in np.float32([1.0, 0.94, 0.88, 0.82, 0.76]):
        scale = float(torch.tensor((high * part - low * part) / np.float32(15)).bfloat16())
        zero = min(max(round(float(-low * part) / scale), 0), 15)
        levels = (np.arange(16) - zero) * scale
        errors.append((np.abs(values[:, None] - levels).min(1) ** 2).sum())
    return float(min(errors))


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "positive", "tiny", "outlier"])
@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_each_group_has_the_least_error_of_the_ranges_that_are_tried(
    scheme: RoundingScheme, kind: str
) -> None:
    weight = groups_of(kind, 24, 128)
    found = rounded(weight, scheme, num_threads=2)
    assert found.scales.shape == (24, 1)
    errors = ((found.dense().astype(np.float64) - weight) ** 2).sum(-1)
    wanted = [by_reference(row, scheme) for row in weight]
    assert errors == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("size", [1e19, 1e25, 1e30, 3e37])
@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_large_numbers_do_not_become_zero(scheme: RoundingScheme, size: float) -> None:
    """Squares of them are infinite in float32."""
    weight = groups_of("normal", 8, 128) * np.float32(size)
    weight[4:, 1:] /= np.float32(size)  # one number is large
    error = np.linalg.norm(rounded(weight, scheme).dense().astype(np.float64) - weight)
    assert error < 0.15 * np.linalg.norm(weight.astype(np.float64))


def test_numbers_whose_range_float32_does_not_hold_are_refused() -> None:
    weight = groups_of("normal", 2, 128)
    weight[0, :2] = 3e38, -3e38
    with pytest.raises(FormatError, match="not finite"):
        rounded(weight, INT4)


def test_the_search_loses_less_than_the_whole_range() -> None:
    weight = groups_of("normal", 200, 128)
    top = (weight.max(-1, keepdims=True) - weight.min(-1, keepdims=True)) / 15
    error = np.linalg.norm(rounded(weight, INT4).dense() - weight)
    assert error < 0.97 * math.sqrt(float((top**2).sum()) * 128 / 12)


@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_scales_are_those_of_bfloat16_and_zero_stays_zero(scheme: RoundingScheme) -> None:
    weight = groups_of("heavy tails", 64, 256)
    weight[:, ::5] = 0
    weight[3] = 0
    found = rounded(weight, scheme)
    scales = torch.from_numpy(found.scales)
    assert torch.equal(scales.bfloat16().float(), scales)
    assert (found.dense()[:, ::5] == 0).all()
    assert (found.dense()[3] == 0).all()


def test_groups_are_the_largest_that_divide_the_inputs() -> None:
    sizes = {columns: INT4.group_size(columns) for columns in (1536, 960, 96, 80)}
    assert sizes == {1536: 128, 960: 64, 96: 32, 80: None}
    assert INT8.group_size(80) == 80
    with pytest.raises(FormatError, match="80 inputs"):
        rounded(np.ones((4, 80), np.float32), INT4)


def test_threads_change_no_value() -> None:
    weight = groups_of("normal", 3000, 128)
    one, three = (rounded(weight, INT4, num_threads=num) for num in (1, 3))
    assert isinstance(one, QuantizedLinear)
    assert np.array_equal(one.codes, three.codes)
    assert np.array_equal(one.scales, three.scales)
    assert np.array_equal(one.zero_points, three.zero_points)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("scheme", ["int8", pytest.param("int4", marks=pytest.mark.slow)])
def test_the_planned_peak_of_reading_is_the_measured_one(scheme: str, tmp_path: Path) -> None:
    """A process reads layers that take 432 MiB in bfloat16; another model was read before."""
    for name, width, layers in (("first", 64, 1), ("model", 1024, 8)):
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=width,
            intermediate_size=7 * width,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=8,
            dtype=torch.bfloat16,
        )
        LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path / name)
    script = """if True:
        import sys, torch
        from pathlib import Path
        from vlmkit.kit import heap
        from vlmkit.kit.checkpoint import Checkpoint
        from vlmkit.plugins.registry import BuildContext
        from vlmkit_torch.loading.weights import reading_plan, shared_model
        from vlmkit_torch.settings import EngineSettings
        from vlmkit_torch.support import sizing
        torch.set_num_threads(1)

        def resident(what):
            lines = Path("/proc/self/status").read_text().splitlines()
            return 1024 * int(next(line for line in lines if line.startswith(what)).split()[1])

        settings = EngineSettings(device="cpu", quantize=sys.argv[2])
        def context(name):
            return BuildContext("", Checkpoint(name, Path(sys.argv[1]) / name), settings)
        shared_model(context("first"), for_engine=True)
        own = context("model")
        plan = reading_plan(own)
        layers = plan.rounding.layers.values()
        planned = sizing.loading_bytes(own.files, plan.precision, plan.packing, layers)
        heap.trim()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = resident("VmRSS")
        model = shared_model(own, for_engine=True)
        print(planned, resident("VmHWM") - before)
        """
    command = [sys.executable, "-c", script, str(tmp_path), scheme]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    planned, found = map(int, ended.stdout.split()[-2:])
    assert found < 400 * MIB
    assert planned == pytest.approx(found, rel=0.1)
