"""Planned memory equals what engine and encoder allocate after the weights were loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from vlmkit_torch import memory_plan
from vlmkit_torch.devices.uploads import BUFFER_NUMBERS
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.support.peak_memory import META, PeakMemory, peak_memory

pytestmark = pytest.mark.torch

TINY = {"cache_tokens": 800, "block_tokens": 4, "max_chunk_tokens": 64}
TEN = (
    *("llava", "llava_next", "idefics3", "qwen2_vl", "qwen2_5_vl"),
    *("qwen3_vl", "gemma3", "mistral3", "internvl", "paligemma"),
)
Saved = Callable[[str], Path]


def planned(saved: Saved, name: str, **load: Any) -> MemoryPlan:
    context = BuildContext("", Checkpoint(name, saved(name)), EngineSettings(**TINY))
    return memory_plan.plan_engine(context, PlannedLoad(**load))


def need(plan: MemoryPlan, name: str) -> int:
    return sum(each.num_bytes for each in plan.needs if each.name == name)


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "gemma3", "mistral3", "mllama", "qwen3"])
def test_the_plan_has_the_sizes_of_the_loaded_engine(
    saved: Saved, load: Callable[..., Any], name: str
) -> None:
    plan = planned(saved, name, context_tokens=100, num_sequences=3)
    engine, _ = load(name)
    assert plan.limits == engine.limits
    shapes = engine._context.cache.shapes.values()
    token_bytes = sum(shape.token_bytes for shape in shapes)
    assert need(plan, "KV cache") == 300 * token_bytes
    model = engine._views.model
    tensors = [*model.parameters(), *model.buffers()]
    distinct = {each.untyped_storage().data_ptr(): each.nbytes for each in tensors}
    assert need(plan, "weights") == sum(distinct.values())
    engine.close()


@pytest.mark.parametrize("name", [*TEN, "glm4v", "qwen3"])
def test_the_planned_step_takes_what_the_loaded_engine_allocates(
    saved: Saved, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    planned_load = PlannedLoad(context_tokens=100, num_sequences=3, max_step_tokens=128)
    context = BuildContext("", Checkpoint(name, saved(name)), EngineSettings(**TINY))
    plan = memory_plan.plan_engine(context, planned_load)
    monkeypatch.setattr(memory_plan, "peak_memory", PeakMemory)  # with the kernel of attention
    engine, _ = load(name)
    with torch.no_grad():
        step, _ = memory_plan._step(engine, planned_load, torch.float32)
    uploads = 8 * BUFFER_NUMBERS  # a CPU reads the arrays of a step where they are
    assert need(plan, "largest step") - uploads == pytest.approx(step.num_bytes, rel=0.05)
    engine.close()


@pytest.mark.parametrize("name", [*TEN, "glm4v"])
def test_the_planned_image_batch_takes_what_the_loaded_tower_allocates(
    saved: Saved, load: Callable[..., Any], name: str
) -> None:
    checkpoint = Checkpoint(name, saved(name))
    image = Image.open(np.zeros((56, 84, 3), np.uint8))
    message = Message.of("user", "?", [ImagePart(image)])
    slots = HfTokenizer(checkpoint, HfTokenizerSettings()).prompt([message]).media
    context = BuildContext(
        "", checkpoint, EncoderSettings(), components={"engine": ("torch", TINY)}
    )
    plan = memory_plan.plan_encoder(context, PlannedLoad(num_sequences=3, slots=slots))
    engine, encoder = load(name)
    with PeakMemory() as memory:
        features = encoder.encode([*slots, *slots])
    assert need(plan, "largest image batch") == pytest.approx(memory.peak_bytes, rel=0.05)
    assert need(plan, "image features") == 3 * sum(each.num_bytes for each in features) // 2
    engine.close()


def test_the_cache_never_takes_more_than_its_capacity(saved: Saved) -> None:
    few, many = (planned(saved, "llava", context_tokens=100, num_sequences=n) for n in (8, 800))
    assert need(few, "KV cache") == need(many, "KV cache")


def test_recurrent_states_are_counted_for_each_sequence(saved: Saved) -> None:
    one, four = (
        planned(saved, "minicpmv4_6", context_tokens=64, num_sequences=num) for num in (1, 4)
    )
    assert 0 < need(one, "recurrent state") == need(four, "recurrent state") / 4


def test_a_longer_step_takes_more(saved: Saved) -> None:
    short, long = (
        planned(saved, "llava", context_tokens=70, max_step_tokens=num) for num in (4, 64)
    )
    assert 0 < need(short, "largest step") < need(long, "largest step")


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_an_encoder_counts_the_weights_that_it_does_not_share(saved: Saved, engine: str) -> None:
    slot = MediaSlot(0, 4, b"", {"pixel_values": np.zeros((1, 3, 28, 28), np.float32)}, 4)
    context = BuildContext(
        "",
        Checkpoint("llava", saved("llava")),
        EncoderSettings(),
        components={"engine": (engine, {})},
    )
    plan = memory_plan.plan_encoder(context, PlannedLoad(num_sequences=3, slots=(slot,)))
    assert plan.is_shared == (engine == "torch") == (not need(plan, "weights"))
    assert need(plan, "largest image batch") >= 2 * slot.inputs["pixel_values"].nbytes


def test_a_model_that_is_refused_at_load_is_refused_alike(saved: Saved) -> None:
    context = BuildContext("", Checkpoint("x", saved("llava")), EngineSettings(device="cuda:9"))
    with pytest.raises(VlmkitError, match="'cuda:9' is requested, but"):
        memory_plan.plan_engine(context, PlannedLoad())


def test_the_peak_counts_what_is_alive_at_once() -> None:
    given = torch.empty(1000, device=META)
    with PeakMemory() as memory:
        first = given + 1
        second = first + 1
        del first
        third = second.view(10, 100) + 1
        del second
    assert memory.peak_bytes == 2 * given.nbytes
    assert third.shape == (10, 100)


def test_attention_takes_no_matrix_of_all_scores() -> None:
    heads = torch.empty(1, 2, 512, 8, device=META)
    with peak_memory() as memory:
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
    assert memory.peak_bytes == heads.nbytes


def test_products_with_experts_are_planned_in_every_precision() -> None:
    rows, weights = torch.empty(6, 16, device=META), torch.empty(4, 16, 32, device=META)
    ends = torch.empty(4, dtype=torch.int32, device=META)
    with peak_memory() as memory:
        made = torch._grouped_mm(rows, weights, offs=ends)
    assert made.shape == (6, 32)
    assert memory.peak_bytes == made.nbytes
