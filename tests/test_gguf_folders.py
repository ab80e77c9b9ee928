"""A folder with a GGUF file answers as the plain checkpoint; contradictory files are rejected."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vlmkit
from vlmkit.errors import CheckpointError, PluginUnavailable, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

import gguf  # noqa: E402 - beside torch

from parity import pipeline, runner  # noqa: E402
from quantized_checkpoints import (  # noqa: E402
    contract,
    folders,
    gguf_families,
    gguf_folders,
)
from quantized_checkpoints.gguf_families import FAMILIES, RECURRENT  # noqa: E402
from quantized_checkpoints.gguf_folders import FILE, Arrays, mutated_headers  # noqa: E402
from vlmkit_quantized import formats, gguf_names, gguf_recurrent  # noqa: E402
from vlmkit_torch.loading.reading import read_config, read_model  # noqa: E402
from vlmkit_torch.support import refusal, sizing  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

Saved = Callable[[str], Path]
Source = Callable[..., Path]
TORCH = {"engine": {"use": "torch", "cache_tokens": 256}, "tokenizer": {"use": "hf"}}
Q_PROJ = "blk.0.attn_q.weight"
CASES = [
    *((family, "Q8_0", False) for family in FAMILIES),
    ("lfm2", "Q8_0", False),
    ("llama", "Q4_0", True),
    ("qwen3_moe", "Q4_0", False),
    ("llama", "F16", False),
    ("qwen3_moe", "BF16", False),
]
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "head_dim": 64,
}
"""Rows of whole blocks of 256 weights."""
K_QUANTS = [
    ("llama", "Q4_K Q6_K"),  # as Q4_K_M mixes them
    ("llama", "Q5_K"),
    ("llama", "Q2_K Q3_K"),
    ("llama", "IQ4_XS IQ4_NL"),
    ("qwen3_moe", "Q4_K Q5_K Q6_K"),
    ("olmo2", "Q3_K Q4_K"),
    ("phi3", "Q4_K Q6_K IQ4_XS"),
]


@pytest.fixture(scope="session")
def source(saved: Saved, made_once: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that gives a checkpoint of a family that the converter knows."""

    def made(family: str, *, is_wide: bool = False) -> Path:
        values = WIDE if is_wide else {}
        return made_once(
            f"{'wide-' if is_wide else ''}gguf-{family}",
            lambda folder: gguf_families.save(family, folder, saved("llama"), **values),
        )

    return made


def assert_answers_are_equal(made: folders.Quantized) -> None:
    """Compare answers of a GGUF file with those that transformers gives with dense weights."""
    asked = runner.requests("llama")
    answers = runner.expected("llama", made.plain, asked, banned=())
    with pipeline.load(made.folder) as served:
        streamed = pipeline.stream_all(served, asked)

    assert [[s.token_id for s in samples] for _, samples in streamed] == [
        answer.token_ids for answer in answers
    ]
    assert len({tuple(answer.token_ids) for answer in answers}) > 1


@pytest.mark.parametrize(("family", "kind", "is_tied"), CASES)
def test_answers_are_those_of_the_dequantized_weights(
    family: str, kind: str, is_tied: bool, source: Source, tmp_path: Path
) -> None:
    assert_answers_are_equal(gguf_folders.make(source(family), tmp_path, kind, is_tied=is_tied))


@pytest.mark.parametrize(("family", "kinds"), K_QUANTS)
def test_answers_of_super_blocks_are_those_of_the_dequantized_weights(
    family: str, kinds: str, source: Source, tmp_path: Path
) -> None:
    made = gguf_folders.make(source(family, is_wide=True), tmp_path, kinds)
    found = {tensor.tensor_type.name for tensor in gguf.GGUFReader(made.folder / FILE).tensors}
    assert found == {*kinds.split(), "F32"}

    assert_answers_are_equal(made)


def test_every_supported_family_is_compared() -> None:
    """vlmkit-llama compares answers of Mamba, which vlmkit-torch does not run."""
    assert FAMILIES.keys() == gguf_names.FAMILIES.keys()
    assert RECURRENT.keys() == gguf_recurrent.RECURRENT.keys()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", [*FAMILIES, "lfm2"])
def test_weights_are_exact_and_rounded_once(
    family: str, dtype: str, source: Source, tmp_path: Path
) -> None:
    made = gguf_folders.make(source(family), tmp_path)
    found = {
        name: torch.from_numpy(weight.dense())
        for name, weight in formats.weights(Checkpoint("m", made.folder)).items()
    }
    assert found.keys() == made.values.keys()
    for name, wanted in made.values.items():
        assert torch.equal(found[name], wanted), name
    one, other = (
        read_model(Checkpoint("m", folder), read_config(Checkpoint("m", folder)), kind)
        for folder, kind in ((made.folder, getattr(torch, dtype)), (made.plain, torch.float32))
    )
    for name, weight in other.named_parameters():
        assert torch.equal(one.get_parameter(name), weight.to(getattr(torch, dtype))), name


def test_the_memory_is_known_before_weights_are_read(saved: Saved, tmp_path: Path) -> None:
    made = gguf_folders.make(saved("qwen3_moe"), tmp_path)
    num = sum(weight.numel() for weight in folders.tensors(made.plain).values())

    assert sizing.weight_bytes(Checkpoint("m", made.folder), "float32") == 4 * num


@pytest.mark.parametrize("test", contract.CONTRACT)
def test_it_keeps_the_contract_of_readers(test: str, saved: Saved, tmp_path: Path) -> None:
    made = gguf_folders.make(saved("qwen3_moe"), tmp_path)
    contract.check(test, made)


# Bad input.


def without(name: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.pop(name)


def with_rows(name: str, num: int) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update({name: (arrays[name][0][:num], arrays[name][1])})


def renamed(name: str, new: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update({new: arrays[name]})


FLAWS = {
    "another architecture": ({"architecture": "qwen2"}, {}, "has the architecture 'qwen2', and"),
    "an unknown architecture": ({"architecture": "mamba"}, {}, "has the architecture 'mamba', and"),
    "an unknown family": ({}, {"model_type": "opt"}, "not supported for the model_type 'opt'"),
    "an absent tensor": ({"change": without(Q_PROJ)}, {}, f"has no tensor '{Q_PROJ}', which"),
    "no head": ({"change": without("output.weight")}, {}, "has no tensor 'output.weight', which"),
    "a second head": ({}, {"tie_word_embeddings": True}, "has a tensor 'output.weight', which is"),
    "an unknown tensor": (
        {"change": renamed(Q_PROJ, "blk.0.attn_sinks.weight")},
        {},
        "has a tensor 'blk.0.attn_sinks.weight', which is unknown",
    ),
    "another shape": (
        {"change": with_rows(Q_PROJ, 32)},
        {},
        f"has a tensor '{Q_PROJ}' of shape [32, 64], and its config.json calls for [64, 64]",
    ),
    "a wider model": ({}, {"hidden_size": 128}, "embedding_length 64, and its config.json has"),
    "other heads": ({}, {"num_attention_heads": 2}, "attention.head_count 4, and its config.json"),
    "another rotation": (
        {"rope.freq_base": 1e6},
        {},
        "rope.freq_base 1e+06, and its config.json has rope_theta 10000",
    ),
    "another scaling of rotations": (
        {"rope.scaling.factor": 4.0},
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 256,
            }
        },
        "rope.scaling.factor 4, and its config.json has factor 8",
    ),
    "no number": ({}, {"hidden_size": None}, "needs a number of 1 to 16777216 in 'hidden_size'"),
    "layers without end": ({}, {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    "a second quantization": (
        {},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        "has a 'quantization_config', and its weights are GGUF ('model.gguf')",
    ),
}


@pytest.mark.parametrize(("how", "config", "message"), FLAWS.values(), ids=FLAWS)
def test_a_contradictory_file_is_rejected_by_name_before_weights_are_read(
    how: dict[str, Any], config: dict[str, Any], message: str, saved: Saved, tmp_path: Path
) -> None:
    made = gguf_folders.make(saved("llama"), tmp_path, **how)
    folders.edit(made.folder, **config)

    assert message in str(refusal.engine_cannot_serve(Checkpoint("m", made.folder)))
    with pytest.raises((CheckpointError, PluginUnavailable)) as caught:
        vlmkit.load(made.folder, **TORCH)
    assert message in str(caught.value)


def test_a_scale_that_is_not_finite_is_rejected_with_the_tensor(
    saved: Saved, tmp_path: Path
) -> None:
    def spoil(arrays: Arrays) -> None:
        octets, _ = arrays[Q_PROJ]
        octets[3, :2] = np.frombuffer(np.float16("inf").tobytes(), np.uint8)

    made = gguf_folders.make(saved("llama"), tmp_path, change=spoil)
    with pytest.raises(CheckpointError, match=r"'blk\.0\.attn_q' has scales that are not finite"):
        vlmkit.load(made.folder, **TORCH)


def test_experts_behind_an_axis_of_one_number_are_the_same(source: Source, tmp_path: Path) -> None:
    def wrap(arrays: Arrays) -> None:
        for name, (array, type_) in arrays.items():
            if "_exps." in name:
                arrays[name] = (array[None], type_)

    made = gguf_folders.make(source("qwen3_moe"), tmp_path, change=wrap)
    found = formats.weights(Checkpoint("m", made.folder))
    for name, wanted in made.values.items():
        assert torch.equal(torch.from_numpy(found[name].dense()), wanted), name


def test_a_second_gguf_file_is_rejected_by_name(saved: Saved, tmp_path: Path) -> None:
    made = gguf_folders.make(saved("llama"), tmp_path)
    shutil.copy(made.folder / FILE, made.folder / "another.gguf")
    with pytest.raises(
        CheckpointError, match=r"its weights are GGUF in 2 files \('another\.gguf'\)"
    ):
        vlmkit.load(made.folder, **TORCH)


def test_names_in_capital_letters_and_hidden_files_do_not_matter(
    saved: Saved, tmp_path: Path
) -> None:
    made = gguf_folders.make(saved("llama"), tmp_path)
    (made.folder / FILE).rename(made.folder / FILE.upper())
    (made.folder / f"._{FILE}").write_bytes(b"\0\5\26\7")
    found = formats.weights(Checkpoint("m", made.folder))
    assert found.keys() == made.values.keys()


def test_a_file_that_changes_before_its_weights_are_read_is_rejected_by_name(
    saved: Saved, tmp_path: Path
) -> None:
    made = gguf_folders.make(saved("llama"), tmp_path)
    weight = next(iter(formats.weights(Checkpoint("m", made.folder)).values()))
    content = (made.folder / FILE).read_bytes()
    (made.folder / FILE).write_bytes(content[: len(content) // 4])
    with pytest.raises(CheckpointError, match=rf"the file '{FILE}' changed meanwhile"):
        weight.dense()


def test_safetensors_beside_a_gguf_file_are_read(saved: Saved, tmp_path: Path) -> None:
    made = gguf_folders.make(saved("llama"), tmp_path)
    (made.folder / FILE).rename(made.plain / FILE)
    assert not formats.is_gguf(Checkpoint("m", made.plain))
    with vlmkit.load(made.plain, **TORCH):
        pass


NUM_MUTATED = 60


@pytest.mark.parametrize("family", [*FAMILIES, "lfm2"])
def test_a_mutated_header_is_rejected_or_has_the_same_weights(
    family: str, source: Source, tmp_path: Path
) -> None:
    made = gguf_folders.make(source(family), tmp_path / "original")
    original = made.values
    num_rejected = 0
    for number in mutated_headers(made.folder / FILE, NUM_MUTATED):
        try:
            checkpoint = Checkpoint("m", made.folder)
            if reason := refusal.engine_cannot_serve(checkpoint):
                raise PluginUnavailable(reason)
            found = formats.weights(checkpoint)
            dense = {name: torch.from_numpy(weight.dense()) for name, weight in found.items()}
        except VlmkitError:
            num_rejected += 1
            continue
        assert dense.keys() == original.keys(), number
        assert all(torch.equal(dense[name], original[name]) for name in original), number
    assert num_rejected > NUM_MUTATED // 2
