"""The engine beyond the contract: isolation, memory, arrays of other libraries, layouts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, strategies as st

import zoo
from parity import runner
from vlmkit.errors import EngineError, ImageError, OutOfMemory, RequestError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot, Prompt, Span
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch.attention.layer_kind import LayerKind, Visibility
from vlmkit_torch.devices import hardware
from vlmkit_torch.engine.torch_engine import build as build_engine
from vlmkit_torch.loading import reading, weights
from vlmkit_torch.prompts.layout import Layout
from vlmkit_torch.settings import ComputeSettings, EncoderSettings, EngineSettings
from vlmkit_torch.vision.encoder import build as build_encoder

pytestmark = pytest.mark.torch

Load = Callable[..., Any]
TEXT = Prompt(tuple(range(40, 70)))
CPU = torch.device("cpu")


def first_prompt(name: str) -> Prompt:
    tokenizer = zoo.processor(name).tokenizer
    image_token = {"llava": "<image>", "qwen3_vl": "<|image_pad|>", "gemma3": "<image_soft_token>"}
    token_id = tokenizer.convert_tokens_to_ids(image_token[name])
    return runner.prompt(name, runner.requests(name)[0], token_id)


def host_of(engine: Any, encoder: Any) -> EngineHost:
    def features(prompt: Prompt) -> dict[int, MediaFeatures]:
        return dict(enumerate(encoder.encode(prompt.media))) if prompt.media else {}

    return EngineHost(engine, features)


def test_a_sequence_with_non_finite_values_shares_no_prefix(load: Load) -> None:
    engine, encoder = load("llava", cache_tokens=64, block_tokens=16)
    host, prompt = host_of(engine, encoder), first_prompt("llava")
    expected = host.last_logits(TEXT)
    sick = host.sequence(prompt)
    good = sick.features[0]
    sick.features[0] = replace(good, embeddings=torch.full_like(good.embeddings, torch.nan))
    host.admit(sick)
    assert not np.isfinite(host.prefill(sick)).all()
    beside = host.sequence(Prompt(TEXT.token_ids[:7]))
    assert host.admit(beside) == 0
    assert np.isfinite(host.prefill(beside)).all()
    engine.release(sick)
    engine.release(beside)

    np.testing.assert_allclose(host.last_logits(TEXT), expected, atol=1e-5)
    assert host.admit(host.sequence(prompt, scope=sick.scope)) == 0, "nothing of it is shared"


def test_non_finite_values_do_not_stop_other_sequences_from_sharing(load: Load) -> None:
    engine, encoder = load("llava", max_sequences=2)
    host, prompt = host_of(engine, encoder), first_prompt("llava")
    sick, sound = host.sequence(prompt, scope=b"a"), host.sequence(TEXT, scope=b"a")
    good = sick.features[0]
    sick.features[0] = replace(good, embeddings=torch.full_like(good.embeddings, torch.nan))
    for sequence in (sick, sound):
        assert host.admit(sequence) == 0
    host.step(
        [host.chunk(sick, len(prompt) - 1), host.chunk(sound)]
    )  # only a row of the other sequence
    engine.release(sick)
    again = host.sequence(TEXT, scope=b"a")
    assert host.admit(again) == 28, "all blocks of the neighbour that are full"
    engine.release(again)

    cured = host.sequence(prompt, scope=b"a")
    assert host.admit(cured) == 0, "nothing of it is shared, not even before a row is asked for"
    assert np.isfinite(host.prefill(cured)).all()
    engine.release(cured)
    assert host.admit(host.sequence(prompt, scope=b"a")), "its place was sick only while it was"


def test_features_from_another_library_are_used_unchanged(load: Load) -> None:
    engine, encoder = load("qwen3_vl")
    host, prompt = host_of(engine, encoder), first_prompt("qwen3_vl")
    expected = host.last_logits(prompt)
    sequence = host.sequence(prompt)
    made = sequence.features[0]
    sequence.features[0] = replace(
        made,
        embeddings=made.embeddings.numpy(),
        extra={name: rows.numpy() for name, rows in made.extra.items()},
    )
    host.admit(sequence)

    np.testing.assert_allclose(host.prefill(sequence), expected, atol=1e-5)


def test_an_image_without_features_is_reported_by_its_index(load: Load) -> None:
    engine, _ = load("llava")
    host = EngineHost(engine)
    sequence = host.sequence(first_prompt("llava"))
    host.admit(sequence)

    with pytest.raises(EngineError, match="features of image 0 of a prompt are not there"):
        host.prefill(sequence)


def test_features_of_the_wrong_number_are_an_error(load: Load) -> None:
    engine, encoder = load("llava")
    host = host_of(engine, encoder)
    sequence = host.sequence(first_prompt("llava"))
    made = sequence.features[0]
    sequence.features[0] = replace(made, embeddings=made.embeddings[:-1])
    host.admit(sequence)

    with pytest.raises(EngineError, match="image features do not fit the prompt"):
        host.prefill(sequence)


def test_features_may_be_dropped_after_their_image_was_computed(load: Load) -> None:
    engine, encoder = load("qwen3_vl")
    host, prompt = host_of(engine, encoder), first_prompt("qwen3_vl")
    expected = host.last_logits(prompt)
    sequence = host.sequence(prompt)
    host.admit(sequence)
    host.step([host.chunk(sequence, prompt.media[0].stop)])
    sequence.features.clear()

    np.testing.assert_allclose(host.prefill(sequence), expected, atol=1e-5)


def test_a_block_of_image_tokens_longer_than_a_chunk_is_refused(load: Load) -> None:
    engine, _ = load("gemma3", max_chunk_tokens=3)

    with pytest.raises(RequestError, match="a part of 4 tokens that must be computed at once"):
        engine.read(first_prompt("gemma3"))


def test_only_image_blocks_of_gemma3_are_atomic(load: Load) -> None:
    engine, _ = load("gemma3")
    prompt = first_prompt("gemma3")

    slots = [Span(slot.start, slot.stop) for slot in prompt.media]
    assert engine.read(prompt).spans == tuple(slots)
    assert engine.read(TEXT).spans == ()


def test_two_engines_in_one_process_do_not_touch_each_other(load: Load) -> None:
    (one, _), (other, _) = load("llama"), load("gpt_oss")
    hosts = EngineHost(one), EngineHost(other)
    alone = [host.last_logits(TEXT) for host in hosts]
    sequences = [host.sequence(TEXT) for host in hosts]
    for host, sequence in zip(hosts, sequences, strict=True):
        host.admit(sequence)
    rows = []
    for host, sequence in zip(hosts, sequences, strict=True):
        host.step([host.chunk(sequence, 11)])
    for host, sequence in zip(hosts, sequences, strict=True):
        rows.append(host.prefill(sequence))

    for row, expected in zip(rows, alone, strict=True):
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_a_released_sequence_leaves_no_state(load: Load) -> None:
    engine, encoder = load("llava")
    host_of(engine, encoder).last_logits(first_prompt("llava"))

    assert engine._runner.states == {}
    assert engine._cache.pool.num_sequences == 0
    engine._cache.pool.check_integrity()


def test_the_encoder_and_the_engine_share_one_copy_of_the_weights(load: Load) -> None:
    engine, encoder = load("llava")

    assert encoder._loaded.model is engine._views.model


def test_an_encoder_that_was_built_first_moves_with_the_engine(saved: Callable[[str], Any]) -> None:
    checkpoint, shared = Checkpoint("llava", saved("llava")), {}
    seeing = build_encoder(BuildContext("", checkpoint, EncoderSettings(), shared))
    before = seeing.identity
    settings = EngineSettings(dtype="bfloat16", cache_tokens=64)
    engine = build_engine(BuildContext("", checkpoint, settings, shared))

    assert seeing._loaded.model is engine._views.model
    assert (seeing._loaded.dtype, before != seeing.identity) == (torch.bfloat16, True)
    slots = first_prompt("llava").media
    assert seeing.encode(slots)[0].embeddings.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["llama4", "kimi_k25"])
def test_a_converted_model_equals_one_read_in_that_precision(
    name: str, saved: Callable[[str], Any]
) -> None:
    checkpoint, shared = Checkpoint(name, saved(name)), {}
    build_encoder(BuildContext("", checkpoint, EncoderSettings(), shared))
    settings = EngineSettings(dtype="bfloat16", cache_tokens=64)
    moved = weights.shared_model(
        BuildContext("", checkpoint, settings, shared), for_engine=True
    ).model
    read = reading.read_model(checkpoint, reading.read_config(checkpoint), torch.bfloat16)
    kept = {**dict(read.named_parameters()), **dict(read.named_buffers())}

    assert any(t.is_complex() for t in read.buffers()) is (name == "llama4")
    for own, tensor in [*moved.named_parameters(), *moved.named_buffers()]:
        assert (tensor.dtype, torch.equal(tensor, kept[own])) == (kept[own].dtype, True), own


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("shape '[1, 2]' is invalid for input of size 3"), ImageError),
        (IndexError("list index out of range"), ImageError),
        (RuntimeError("CUDA error: device-side assert triggered"), RuntimeError),
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
    ],
)
def test_a_tower_failure_at_one_image_refuses_only_that_image(
    load: Load, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    _, encoder = load("llava")
    slot = MediaSlot(0, 4, b"x", {"pixel_values": np.zeros((1, 3, 28, 28), np.float32)}, 4)

    def fail(**_: Any) -> Any:
        raise error

    monkeypatch.setattr(encoder, "_tower", fail)
    with pytest.raises(raised) as caught:
        encoder.encode([slot])
    assert "shape" not in str(caught.value)


def test_the_encoders_identity_states_what_computes_its_features(load: Load) -> None:
    one, other = load("llava")[1], load("llava_next")[1]

    assert one.identity != other.identity
    assert transformers.__version__ in one.identity
    assert "float32" in one.identity


def test_too_little_device_memory_for_an_image_is_reported(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, slots = load("llava")[1], first_prompt("llava").media
    monkeypatch.setattr(encoder, "_tower", lambda **_: torch.empty(2**60))
    with pytest.raises(OutOfMemory, match="not enough memory for the images of this request"):
        encoder.encode(slots)
    monkeypatch.setattr(encoder, "_tower", lambda **_: torch.empty(2, 3) @ torch.empty(2, 3))
    with pytest.raises(ImageError, match="image tower cannot take this image"):
        encoder.encode(slots)


def test_the_engine_answers_in_half_precision(load: Load) -> None:
    engine, encoder = load("qwen3_vl", dtype="bfloat16")
    row = host_of(engine, encoder).last_logits(first_prompt("qwen3_vl"))

    assert np.isfinite(row).all()


@pytest.mark.parametrize(
    ("own", "asked", "used"),
    [
        (torch.bfloat16, "auto", torch.bfloat16),
        (torch.float16, "auto", torch.float16),
        (None, "auto", torch.float32),
        (torch.float64, "auto", torch.float32),
        (torch.float32, "bfloat16", torch.bfloat16),
    ],
)
def test_the_precision_on_a_device_follows_checkpoint_and_settings(
    own: Any, asked: Any, used: torch.dtype
) -> None:
    assert hardware.choose_dtype(ComputeSettings(dtype=asked), own) == used


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.lists(st.booleans(), min_size=9))
def test_spans_are_the_blocks_with_bidirectional_attention(
    sizes: list[int], is_block: list[bool]
) -> None:
    stops, spans, end = [], [], 0
    for size, both_ways in zip(sizes, is_block, strict=False):
        if both_ways and size > 1:
            spans.append(Span(end, end + size))
            stops += [end + size] * size
        else:
            stops += range(end + 1, end + size + 1)
        end += size
    stop = np.array(stops)
    layout = Layout(None, 0, {"full_attention": Visibility(np.zeros_like(stop), stop)})

    assert layout.spans() == tuple(spans)


@given(
    index=st.integers(0, 200),
    window=st.none() | st.integers(1, 50),
    section=st.none() | st.integers(1, 50),
)
def test_one_token_and_many_have_the_same_first_visible_token(
    index: int, window: int | None, section: int | None
) -> None:
    kind = LayerKind("any", window, section)

    many = kind.first_visible_each(np.arange(index + 1))
    assert many.tolist() == [kind.first_visible(i) for i in range(index + 1)]
