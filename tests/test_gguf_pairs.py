"""A model in two GGUF files answers as the plain checkpoint; contradictory files are rejected."""

import json
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
import transformers  # noqa: E402

from parity import pipeline, runner  # noqa: E402
from quantized_checkpoints import folders, gguf_folders, gguf_pairs  # noqa: E402
from quantized_checkpoints.gguf_folders import FILE, Arrays, mutated_headers  # noqa: E402
from quantized_checkpoints.gguf_pairs import PAIRS, PROJECTOR  # noqa: E402
from quantized_checkpoints.published_configs import CONFIGS  # noqa: E402
from vlmkit_quantized import formats, gguf_models  # noqa: E402
from vlmkit_quantized.gguf_file import GgufFile  # noqa: E402
from vlmkit_quantized.gguf_models import decoder_of, tower_of  # noqa: E402
from vlmkit_quantized.gguf_names import Join  # noqa: E402
from vlmkit_quantized.gguf_towers import TowerSizes  # noqa: E402
from vlmkit_torch.loading.reading import read_config, read_model  # noqa: E402
from vlmkit_torch.support import refusal, sizing  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

Source = Callable[[str], Path]


@pytest.fixture(scope="session")
def source(saved: Callable[[str], Path], made_once: Callable[..., Path]) -> Source:
    """Return a function that gives a checkpoint of a family that the converters know."""

    def made(family: str) -> Path:
        pair = PAIRS[family]
        return made_once(
            f"pair-{family}",
            lambda folder: gguf_pairs.save(saved(pair.source or family), folder, pair),
        )

    return made


@pytest.mark.parametrize("tower", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("family", PAIRS)
def test_weights_are_exact(family: str, tower: str, source: Source, tmp_path: Path) -> None:
    made = gguf_pairs.make(source(family), tmp_path, family, tower=tower)
    one, other = (
        read_model(Checkpoint("m", folder), read_config(Checkpoint("m", folder)), torch.float32)
        for folder in (made.folder, made.plain)
    )
    found = dict(one.named_parameters())
    assert found.keys() == dict(other.named_parameters()).keys()
    for name, weight in other.named_parameters():
        assert torch.equal(found[name], weight), name


@pytest.mark.parametrize("family", PAIRS)
def test_answers_are_those_of_the_dense_weights(
    family: str, source: Source, tmp_path: Path
) -> None:
    made = gguf_pairs.make(source(family), tmp_path, family)
    assert_answers_are_equal(family, made.folder, made.plain)


def assert_answers_are_equal(family: str, model: Path, plain: Path) -> None:
    """Compare answers, with those that transformers gives with dense weights."""
    asked = runner.requests(family)
    with pipeline.load(model) as served:
        banned = sorted(served.runner._tokenizer.banned_ids)
        answers = pipeline.stream_all(served, asked)
    wanted = runner.expected(family, plain, asked, banned)
    for (_, samples), reference in zip(answers, wanted, strict=True):
        assert [sample.token_id for sample in samples] == reference.token_ids
        rows = torch.log_softmax(reference.logits, -1)
        for sample, row in zip(samples, rows, strict=True):
            assert sample.logprob == pytest.approx(row[sample.token_id].item(), abs=1e-4)
    assert len({tuple(reference.token_ids) for reference in wanted}) > 1


def test_every_family_is_compared() -> None:
    assert PAIRS.keys() == gguf_models.VISION_MODELS.keys()


@pytest.mark.parametrize("family", PAIRS)
def test_the_memory_is_known_before_weights_are_read(
    family: str, source: Source, tmp_path: Path
) -> None:
    made = gguf_pairs.make(source(family), tmp_path, family)
    used = {name for name, weight in made.values.items() if weight.any()}
    num = sum(made.values[name].numel() for name in used)

    assert sizing.weight_bytes(Checkpoint("m", made.folder), "float32") == 4 * num


def test_old_names_of_an_mlp_are_recognized_by_their_shapes(source: Source, tmp_path: Path) -> None:
    def exchange(arrays: Arrays) -> None:
        for name in [name for name in arrays if ".ffn_up." in name]:
            other = name.replace("ffn_up", "ffn_down")
            arrays[name], arrays[other] = arrays[other], arrays[name]

    made = gguf_pairs.make(source("gemma3"), tmp_path, "gemma3", change=exchange)
    assert_answers_are_equal("gemma3", made.folder, made.plain)


def test_an_inner_size_of_zero_is_that_of_the_shapes(source: Source, tmp_path: Path) -> None:
    zero = {"clip.vision.feed_forward_length": 0}
    made = gguf_pairs.make(source("qwen2_5_vl"), tmp_path, "qwen2_5_vl", fields=zero)
    assert formats.weights(Checkpoint("m", made.folder)).keys() == made.values.keys()


def test_a_tower_of_pixtral_in_llava_is_exact(source: Source, tmp_path: Path) -> None:
    place = tmp_path / "pixtral"
    config = transformers.AutoConfig.from_pretrained(source("mistral3"))
    shutil.copytree(source("mistral3"), place)
    llava = transformers.LlavaConfig(
        vision_config=config.vision_config,
        text_config=config.text_config,
        image_token_index=config.image_token_index,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    torch.manual_seed(0)
    transformers.LlavaForConditionalGeneration(llava).save_pretrained(place)
    made = gguf_pairs.make(place, tmp_path, "mistral3", arch=gguf.MODEL_ARCH.LLAMA)
    found = formats.weights(Checkpoint("m", made.folder))
    assert found.keys() == made.values.keys()
    for name, wanted in made.values.items():
        assert torch.equal(torch.from_numpy(found[name].dense()), wanted), name


def test_the_embedding_of_a_token_beside_a_tower_is_not_read(
    source: Source, tmp_path: Path
) -> None:
    def add(arrays: Arrays) -> None:
        arrays["v.token_embd.img_break"] = arrays["v.pre_ln.weight"]

    made = gguf_pairs.make(source("mistral3"), tmp_path, "mistral3", change=add)
    assert formats.weights(Checkpoint("m", made.folder)).keys() == made.values.keys()


CLASSES = {
    "qwen2_vl": "Qwen2VLConfig",
    "qwen2_5_vl": "Qwen2_5_VLConfig",
    "qwen3_vl": "Qwen3VLConfig",
    "gemma3": "Gemma3Config",
    "idefics3": "Idefics3Config",
    "smolvlm": "SmolVLMConfig",
    "llava": "LlavaConfig",
    "llava_next": "LlavaNextConfig",
    "mistral3": "Mistral3Config",
    "internvl": "InternVLConfig",
}


@pytest.mark.parametrize("family", PAIRS)
def test_absent_fields_of_a_config_are_what_transformers_takes_for_them(family: str) -> None:
    model = gguf_models.VISION_MODELS[family]
    config_class = getattr(transformers, CLASSES[family])
    for kind, text in model.texts.items():
        for tower_kind, tower in model.towers.items():
            parts: dict[str, Any] = {
                "text_config": {"model_type": kind} if kind else {},
                "vision_config": {"model_type": tower_kind} if tower_kind else {},
            }
            config = config_class(**parts)
            assert config.tie_word_embeddings == model.is_tied
            for name, value in model.defaults.items():
                assert getattr(config, name) == value, name
            for name, value in text.defaults.items():
                rope = config.text_config.rope_parameters
                found = getattr(config.text_config, name, rope.get(name))
                assert found == value, (kind, name)
            for name, value in tower.defaults.items():
                found = getattr(config.vision_config, name)
                found = list(found) if isinstance(found, tuple) else found
                is_pair = isinstance(found, list) and name.endswith("_size")
                assert (found[0] if is_pair else found) == value, (tower_kind, name)


@pytest.mark.parametrize("name", CONFIGS)
def test_files_of_published_models_have_all_of_their_weights(name: str, tmp_path: Path) -> None:
    stated = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(stated))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    shapes = sorted(tuple(weight.shape) for weight in model.parameters())
    decoder, (tower, own) = decoder_of(stated), tower_of(stated) or pytest.fail("no tower")
    sizes = TowerSizes(own, GgufFile({}, {}), decoder.width)
    tensors = decoder.tensors(has_head=not config.tie_word_embeddings).values()
    parts = [*tensors, *dict(tower.tensors(sizes)).values(), *dict(tower.absent(sizes)).values()]
    single = [part.shape for part in parts if part.join is None]
    for (_, join), shape in {(part.name, part.join): part.shape for part in parts}.items():
        if join is Join.ROWS:
            single.append((3 * shape[0], *shape[1:]))
        if join is Join.FRAMES:
            single.append((*shape[:2], 2, *shape[2:]))
    assert sorted(single) == shapes


def test_a_head_is_read_where_a_config_leaves_open_whether_it_is_the_embedding(
    source: Source, tmp_path: Path
) -> None:
    own = torch.from_numpy(np.random.default_rng(0).normal(0, 0.1, (384, 64)).astype(np.float32))
    place = tmp_path / "mistral3"
    shutil.copytree(source("mistral3"), place)
    folders.change(place, lambda weights: weights.update({"language_model.lm_head.weight": own}))
    folders.edit(place, tie_word_embeddings=False)
    made = gguf_pairs.make(place, tmp_path, "mistral3", kind="F32")
    folders.edit(made.folder, tie_word_embeddings=None)
    assert_answers_are_equal("mistral3", made.folder, made.plain)


# Bad input.


def without(name: str) -> dict[str, Any]:
    return {"change": lambda arrays: arrays.pop(name)}


def with_rows(name: str, num: int) -> dict[str, Any]:
    return {
        "change": lambda arrays: arrays.update({name: (arrays[name][0][:num], arrays[name][1])})
    }


def stating(name: str, value: Any) -> dict[str, Any]:
    return {"fields": {f"clip.{name}": value}}


Q, V = "qwen2_vl", "clip.vision"
FLAWS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "the file of a text model": (
        Q,
        {"fields": {"general.architecture": "llama"}},
        {},
        "should have a vision tower ('clip'), and has the architecture 'llama'",
    ),
    "no tower": (Q, stating("has_vision_encoder", False), {}, "has no vision tower"),
    "an ear": (Q, stating("has_audio_encoder", True), {}, "has an audio encoder, too"),
    "no kind": (Q, stating("projector_type", None), {}, "states no 'clip.projector_type'"),
    "an unknown kind": (
        Q,
        stating("projector_type", "ldpv2"),
        {},
        "has a projector of the kind 'ldpv2', and its config.json (model_type 'qwen2_vl') needs",
    ),
    "the kind of another model": ("gemma3", stating("projector_type", "idefics3"), {}, "'gemma3'"),
    "another width": (
        Q,
        stating("vision.projection_dim", 3584),
        {},
        f"'{PROJECTOR}' has projection_dim 3584, and its config.json has 64 in 'hidden_size'",
    ),
    "other heads": (
        Q,
        stating("vision.attention.head_count", 4),
        {},
        "attention.head_count 4, and",
    ),
    "other patches": ("gemma3", stating("vision.patch_size", 16), {}, "patch_size 16, and its"),
    "another pooling": (
        "gemma3",
        stating("vision.projector.scale_factor", 4),
        {},
        "projector.scale_factor 4, and its config.json has 2 in 'mm_tokens_per_image'",
    ),
    "another epsilon": (
        "internvl",
        stating("vision.attention.layer_norm_epsilon", 1e-5),
        {},
        "attention.layer_norm_epsilon 1e-05, and its config.json has 1e-06 in 'layer_norm_eps'",
    ),
    "another activation": (
        "gemma3",
        {"fields": {"clip.use_gelu": False, "clip.use_silu": True}},
        {},
        "has use_silu of an activation, and its config.json has 'gelu_pytorch_tanh'",
    ),
    "other windows": (
        "qwen2_5_vl",
        stating("vision.n_wa_pattern", 1),
        {},
        "has n_wa_pattern 1, and its config.json has 2 in 'fullatt_block_indexes'",
    ),
    "other deep layers": (
        "qwen3_vl",
        stating("vision.is_deepstack_layers", [True, False, True, True]),
        {},
        "in 'deepstack_visual_indexes'",
    ),
    "another layer of features": (
        "llava",
        {},
        {"vision_feature_layer": -1},
        "block_count 1, and its config.json has 2 in 'num_hidden_layers'",
    ),
    "other colours": (
        Q,
        stating("vision.image_mean", [0.5, 0.5, 0.5]),
        {},
        "has image_mean [0.5, 0.5, 0.5], and its preprocessor_config.json has [0.48145466",
    ),
    "other rotations": (
        Q,
        {"more": lambda writer: writer.add_rope_dimension_sections([4, 2, 2, 0])},
        {},
        "has rope.dimension_sections [4, 2, 2, 0], and its config.json has mrope_section [2, 3, 3]",
    ),
    "an absent tensor": (
        Q,
        without("v.blk.1.ln2.bias"),
        {},
        f"'{PROJECTOR}' has no tensor 'v.blk.1.ln2.bias', which its config.json calls for",
    ),
    "one frame": (Q, without("v.patch_embd.weight.1"), {}, "no tensor 'v.patch_embd.weight.1'"),
    "another shape": (
        Q,
        with_rows("mm.2.bias", 32),
        {},
        "has a tensor 'mm.2.bias' of shape [32], and its config.json calls for [64]",
    ),
    "an unknown tensor": (
        Q,
        {"change": lambda arrays: arrays.update({"mm.9.bias": arrays["mm.2.bias"]})},
        {},
        "has a tensor 'mm.9.bias', which is unknown",
    ),
    "another decoder": (
        Q,
        {"arch": gguf.MODEL_ARCH.QWEN2},
        {},
        "has the architecture 'qwen2', and its config.json the model_type 'qwen2_vl'",
    ),
    "deep layers without end": (
        "qwen3_vl",
        {},
        {"deepstack_visual_indexes": [0] * 10**5},
        "needs layers in 'vision_config.deepstack_visual_indexes'",
    ),
    "layers without end": ("gemma3", {}, {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    "a list of lists": ("gemma3", {}, {"patch_size": [[14], [14]]}, "vision_config.patch_size"),
    "an array of kinds": (
        "llava",
        {"fields": {"clip.projector_type": [1, 2]}},
        {},
        "states no 'clip.projector_type'",
    ),
    "a tower of another kind": (
        "gemma3",
        {},
        {"model_type": "clip_vision_model"},
        "has the model_type 'clip_vision_model' in 'vision_config', which is not supported",
    ),
}


@pytest.mark.parametrize(("family", "how", "config", "message"), FLAWS.values(), ids=FLAWS)
def test_a_contradictory_file_is_rejected_by_name_before_weights_are_read(
    family: str,
    how: dict[str, Any],
    config: dict[str, Any],
    message: str,
    source: Source,
    tmp_path: Path,
) -> None:
    made = gguf_pairs.make(source(family), tmp_path, family, **how)
    stated = Checkpoint("m", made.folder).config["vision_config"]
    own = {name: value for name, value in config.items() if name.startswith("vision_")}
    inner = {name: value for name, value in config.items() if name not in own}
    folders.edit(made.folder, **own, vision_config={**stated, **inner})

    assert message in str(refusal.engine_cannot_serve(Checkpoint("m", made.folder)))
    with pytest.raises((CheckpointError, PluginUnavailable)) as caught:
        vlmkit.load(made.folder, engine={"use": "torch"})
    assert message in str(caught.value)


def assert_is_rejected(folder: Path, message: str) -> None:
    with pytest.raises(VlmkitError) as caught:
        vlmkit.load(folder, engine={"use": "torch"})
    assert message in f"{caught.value}"


def test_a_model_with_images_needs_the_file_of_its_tower(source: Source, tmp_path: Path) -> None:
    made = gguf_pairs.make(source(Q), tmp_path, Q)
    (made.folder / PROJECTOR).unlink()
    assert_is_rejected(
        made.folder, f"has a vision tower, and no GGUF file with it is beside '{FILE}'"
    )


def test_a_tower_without_a_decoder_is_rejected_by_name(source: Source, tmp_path: Path) -> None:
    made = gguf_pairs.make(source(Q), tmp_path, Q)
    (made.folder / FILE).unlink()
    assert_is_rejected(made.folder, f"its only GGUF file has a vision tower ('{PROJECTOR}')")


def test_two_towers_are_rejected_with_both_names(source: Source, tmp_path: Path) -> None:
    made = gguf_pairs.make(source(Q), tmp_path, Q)
    shutil.copy(made.folder / PROJECTOR, made.folder / "tiny.mmproj-BF16.gguf")
    assert_is_rejected(
        made.folder, f"2 files with vision towers, '{PROJECTOR}' and 'tiny.mmproj-BF16.gguf'"
    )


def test_a_tower_beside_a_text_model_is_rejected_by_name(
    source: Source, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    made = gguf_pairs.make(source(Q), tmp_path / "pair", Q)
    text = gguf_folders.make(saved("llama"), tmp_path)
    shutil.copy(made.folder / PROJECTOR, text.folder)
    assert_is_rejected(
        text.folder, f"a file with a vision tower, '{PROJECTOR}', and is a text model"
    )


def test_a_tower_that_was_cut_off_is_rejected(source: Source, tmp_path: Path) -> None:
    made = gguf_pairs.make(source(Q), tmp_path, Q)
    content = (made.folder / PROJECTOR).read_bytes()
    for size in (0, 3, 100, len(content) // 2, len(content) - 1):
        (made.folder / PROJECTOR).write_bytes(content[:size])
        assert refusal.engine_cannot_serve(Checkpoint("m", made.folder)) is not None, size


NUM_MUTATED = 40


@pytest.mark.parametrize("family", PAIRS)
def test_a_mutated_header_is_rejected_or_has_the_same_weights(
    family: str, source: Source, tmp_path: Path
) -> None:
    made = gguf_pairs.make(source(family), tmp_path, family, tower="Q8_0")
    file = made.folder / PROJECTOR
    num_rejected = 0
    for number in mutated_headers(file, NUM_MUTATED):
        try:
            checkpoint = Checkpoint("m", made.folder)
            if reason := refusal.engine_cannot_serve(checkpoint):
                raise PluginUnavailable(reason)
            found = formats.weights(checkpoint)
            dense = {name: torch.from_numpy(weight.dense()) for name, weight in found.items()}
        except VlmkitError:
            num_rejected += 1
            continue
        plain = {name.replace("vision_model.", "") for name in dense}
        assert plain == {name.replace("vision_model.", "") for name in made.values}, number
        for name, wanted in made.values.items():
            own = name if name in dense else name.replace("tower.", "tower.vision_model.")
            assert torch.equal(dense[own], wanted), (number, name)
    assert num_rejected > NUM_MUTATED // 2


def test_a_scale_of_a_tower_that_is_not_finite_is_rejected_with_the_tensor(
    source: Source, tmp_path: Path
) -> None:
    def spoil(arrays: Arrays) -> None:
        arrays["v.blk.0.attn_k.weight"][0][3, :2] = np.frombuffer(
            np.float16("inf").tobytes(), np.uint8
        )

    made = gguf_pairs.make(source(Q), tmp_path, Q, tower="Q8_0", change=spoil)
    assert_is_rejected(made.folder, "'v.blk.0.attn_k' has scales that are not finite")
