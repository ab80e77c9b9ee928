"""A GGUF file with its vision tower beside it answers as the folder that it was made from."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

import vlmkit
from vlmkit.cli import run as command
from vlmkit.errors import CheckpointError, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

import gguf  # noqa: E402 - beside torch
import transformers  # noqa: E402

import zoo  # noqa: E402
from parity import pipeline, runner  # noqa: E402
from quantized_checkpoints import gguf_alone as fields, gguf_pairs  # noqa: E402
from quantized_checkpoints.gguf_folders import FILE, mutated_headers  # noqa: E402
from quantized_checkpoints.gguf_pairs import PAIRS, PROJECTOR  # noqa: E402
from stub_hub import stub_hub  # noqa: E402
from vlmkit_quantized import formats, gguf_alone, gguf_models, gguf_pair  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread", "_cache")]

Source = Callable[[str], Path]
FAMILIES = ("gemma3", "idefics3", "smolvlm", "mistral3")
VALUES = {
    "gemma3": {
        "text_config": {
            "num_hidden_layers": 6,
            "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        }
    }
}
"""Values of configurations that files do not state, as llama.cpp assumes them."""


@pytest.fixture
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def source(saved: Callable[[str], Path], made_once: Callable[..., Path]) -> Source:
    """Return a function that gives a checkpoint of which two files can be made."""

    def made(family: str) -> Path:
        return made_once(
            f"pair-alone-{family}",
            lambda folder: gguf_pairs.save(
                saved(family), folder, PAIRS[family], VALUES.get(family)
            ),
        )

    return made


def alone(source: Path, place: Path, family: str, **how: Any) -> tuple[Path, Path]:
    """Return a file with its tower beside it, and the plain checkpoint with the same values."""
    pre = "" if family == "gemma3" else "gpt-2"
    writer = fields.fields_of(source, PAIRS[family].text, pre)
    arch = gguf.MODEL_ARCH.LLAMA if family == "mistral3" else None
    made = gguf_pairs.make(source, place, family, more=writer, arch=arch, **how)
    folder = place / "alone"
    folder.mkdir()
    for name in (FILE, PROJECTOR):
        shutil.move(made.folder / name, folder)
    return folder / FILE, made.plain


@pytest.mark.parametrize("family", FAMILIES)
def test_two_files_alone_answer_as_the_dense_model(
    family: str, source: Source, tmp_path: Path
) -> None:
    file, plain = alone(source(family), tmp_path, family)
    asked = runner.requests(family)
    with pipeline.load(file, sizes={"dtype": "float32"}) as served:
        banned = sorted(served.runner._tokenizer.banned_ids)
        answers = pipeline.stream_all(served, asked)
    wanted = runner.expected(family, plain, asked, banned)
    for (_, samples), reference in zip(answers, wanted, strict=True):
        assert [sample.token_id for sample in samples] == reference.token_ids
        rows = torch.log_softmax(reference.logits, -1)
        for sample, row in zip(samples, rows, strict=True):
            assert sample.logprob == pytest.approx(row[sample.token_id].item(), abs=1e-4)


def test_a_pair_with_pixtral_in_llava_answers_as_its_folder(source: Source, tmp_path: Path) -> None:
    place = tmp_path / "source" / "mistral3"
    shutil.copytree(source("mistral3"), place)
    config = transformers.AutoConfig.from_pretrained(place)
    llava = transformers.LlavaConfig(
        vision_config=config.vision_config,
        text_config=config.text_config,
        image_token_index=config.image_token_index,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=1,
    )
    torch.manual_seed(0)
    transformers.LlavaForConditionalGeneration(llava).save_pretrained(place)
    processor = json.loads((place / "processor_config.json").read_text())
    (place / "processor_config.json").write_text(json.dumps(processor | {"spatial_merge_size": 1}))
    file, plain = alone(place, tmp_path, "mistral3")
    asked, answers = runner.requests("mistral3"), []
    for model in (file, plain):
        with pipeline.load(model, sizes={"dtype": "float32"}) as served:
            streamed = pipeline.stream_all(served, asked)
        answers.append([[sample.token_id for sample in samples] for _, samples in streamed])
    assert answers[0] == answers[1]
    assert len(set(map(tuple, answers[0]))) > 1


def test_every_kind_is_compared() -> None:
    models = (gguf_models.VISION_MODELS[family] for family in FAMILIES)
    compared = {tower.projector for model in models for tower in model.towers.values()}
    assert compared == gguf_pair.KINDS.keys()


@pytest.mark.slow
def test_doctor_and_plan_name_both_files(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    for name in ("doctor", "plan"):
        assert command([name, str(file)]) == 0
        assert f"vision tower in '{PROJECTOR}'" in capsys.readouterr().out


@pytest.mark.posix
def test_links_of_a_hubs_cache_are_read_with_the_tower_beside_them(
    source: Source, tmp_path: Path
) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    snapshot = tmp_path / "snapshots" / "commit"
    snapshot.mkdir(parents=True)
    for number, name in enumerate((FILE, PROJECTOR)):
        shutil.move(file.parent / name, tmp_path / f"blob{number}")
        (snapshot / name).symlink_to(tmp_path / f"blob{number}")
    with pipeline.load(snapshot / FILE) as served:
        ((_, samples),) = pipeline.stream_all(served, runner.requests("smolvlm")[:1])
    assert samples


@pytest.mark.slow
@pytest.mark.posix
def test_a_tag_of_a_hub_answers_about_a_picture_with_the_preferred_tower(
    source: Source, tmp_path: Path
) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    tower, picture = (file.parent / PROJECTOR).read_bytes(), tmp_path / "picture.png"
    zoo.picture(1).save(picture)
    options = ["--image", str(picture), "--temperature", "0", "--max-tokens", "3"]
    options += ["--set", "engine.use=torch", "--set", "engine.cache_tokens=1200"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with stub_hub() as hub:
        towers = {f"mmproj-{kind}.gguf": tower for kind in ("F32", "F16")}
        hub.add("org/name", main={"TINY-Q8_0.gguf": file.read_bytes(), **towers})
        environ = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}

        def run(*arguments: str) -> str:
            made = [sys.executable, "-m", "vlmkit", *arguments]
            done = subprocess.run(
                made, env=environ, capture_output=True, timeout=600, check=False, stdin=DEVNULL
            )
            shown = (done.stdout + done.stderr).decode(errors="replace")
            assert done.returncode == 0, shown
            return shown

        assert "[stopped at the limit of 3 tokens]" in run(
            "ask", "org/name:q8_0", "What?", *options
        )
        assert hub.downloaded() == {"TINY-Q8_0.gguf", "mmproj-F16.gguf"}
        for command_name in ("doctor", "plan"):
            assert "vision tower in 'mmproj-F16.gguf'" in run(command_name, "org/name:Q8_0")


def test_names_in_capital_letters_are_read(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    (file.parent / PROJECTOR).rename(file.parent / PROJECTOR.upper())
    file = file.rename(file.parent / FILE.upper())
    assert command(["doctor", str(file)]) == 0
    assert f"vision tower in '{PROJECTOR.upper()}'" in capsys.readouterr().out


def test_hidden_files_of_a_mac_are_no_towers(source: Source, tmp_path: Path) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    (file.parent / f"._{PROJECTOR}").write_bytes(b"\0\5\26\7")
    found = gguf_alone.derived(Checkpoint("m", file.parent, file=file))
    assert "vision_config" in found.config


def test_doctor_says_which_file_is_absent_for_images(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    (file.parent / PROJECTOR).rename(file.parent / "vision.gguf")
    assert command(["doctor", str(file)]) == 0
    shown = capsys.readouterr().out
    assert f"no file with a vision tower is beside '{FILE}'" in shown
    assert "under a name with the part 'mmproj'" in shown


def test_a_folder_of_two_files_hints_at_the_one_with_the_language_model(
    source: Source, tmp_path: Path
) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    file = file.rename(file.parent / "zephyr.gguf")
    with pytest.raises(CheckpointError, match=r"it has GGUF \('zephyr\.gguf'\)") as caught:
        vlmkit.load(file.parent)
    assert caught.value.hint == f"name one file: {file}"


@pytest.mark.posix
def test_a_pipe_in_place_of_a_tower_is_rejected_without_waiting(
    source: Source, tmp_path: Path
) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    (file.parent / PROJECTOR).unlink()
    os.mkfifo(file.parent / PROJECTOR)
    with pytest.raises(CheckpointError, match=f"'{PROJECTOR}' is a pipe"):
        vlmkit.load(file, engine={"use": "torch"})


def test_pixels_beyond_the_last_patch_are_allowed_as_smolvlm_has_them(
    source: Source, tmp_path: Path
) -> None:
    vision = json.loads((source("smolvlm") / "config.json").read_text())["vision_config"]
    size = vision["image_size"] + vision["patch_size"] // 2
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm", **stating("vision.image_size", size))
    found = gguf_alone.derived(Checkpoint("m", file.parent, file=file))
    assert found.config["vision_config"]["image_size"] == size
    assert formats.weights(found)


def test_the_tower_is_part_of_the_content_of_a_model(source: Source, tmp_path: Path) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    before = gguf_alone.derived(Checkpoint("m", file.parent, file=file)).fingerprint
    content = bytearray((file.parent / PROJECTOR).read_bytes())
    content[-1] ^= 1
    (file.parent / PROJECTOR).write_bytes(content)
    assert gguf_alone.derived(Checkpoint("m", file.parent, file=file)).fingerprint != before


def test_without_its_tower_a_file_is_a_text_model(source: Source, tmp_path: Path) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    (file.parent / PROJECTOR).unlink()
    with pipeline.load(file) as served:
        asked = runner.requests("smolvlm")
        ((_, samples),) = pipeline.stream_all(served, asked[1:2])
        assert samples
        with pytest.raises(VlmkitError, match="takes no images"):
            pipeline.stream_all(served, asked[:1])


# Bad input.


def stating(name: str, value: Any) -> dict[str, Any]:
    return {"fields": {f"clip.{name}": value}}


FLAWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a kind that files do not determine": (
        "smolvlm",
        stating("projector_type", "qwen2.5vl_merger"),
        "whose files do not determine how images are prepared; without a folder, gemma3, idefics3",
    ),
    "the tower of another model": (
        "smolvlm",
        stating("projector_type", "gemma3"),
        "is of another model than 'model.gguf' (architecture 'llama', 64)",
    ),
    "another width": (
        "gemma3",
        stating("vision.projection_dim", 2560),
        "(kind 'gemma3', 2560 numbers for a token) is of another model than",
    ),
    "no kind": ("gemma3", stating("projector_type", None), "states no 'clip.projector_type'"),
    "no size of whole images": (
        "smolvlm",
        stating("vision.preproc_image_size", None),
        "does not state the size of whole images ('clip.vision.preproc_image_size')",
    ),
    "no layers": (
        "mistral3",
        stating("vision.block_count", 0),
        "needs a number above zero in 'clip.vision.block_count'",
    ),
    "an architecture that is no text": (
        "smolvlm",
        {"fields": {"general.architecture": [1, 2]}},
        "should have a vision tower ('clip'), and has the architecture None",
    ),
    "images of no whole tokens": (
        "gemma3",
        stating("vision.image_size", 42),
        "has images of 3 patches on a side ('clip.vision.image_size'), which are no whole tokens",
    ),
    "images that are far too large": (
        "smolvlm",
        stating("vision.preproc_image_size", 2**24),
        "makes images of 16777216 pixels ('clip.vision.preproc_image_size'); 8192 are supported",
    ),
    "images smaller than a patch": (
        "mistral3",
        stating("vision.image_size", 1),
        "has images that are smaller than a patch ('clip.vision.image_size')",
    ),
    "heads that do not divide": (
        "mistral3",
        stating("vision.attention.head_count", 3),
        "in 'clip.vision.embedding_length', which is no multiple of 3 in 'clip.vision.attention",
    ),
    "two colours": (
        "smolvlm",
        stating("vision.image_mean", [0.5, 0.5]),
        "needs an array of 3 numbers in 'clip.vision.image_mean'",
    ),
    "a deviation of zero": (
        "smolvlm",
        stating("vision.image_std", [0.5, 0.0, 0.5]),
        "needs numbers above zero in 'clip.vision.image_std'",
    ),
    "no merging": (
        "mistral3",
        stating("vision.spatial_merge_size", None),
        "merges patches, and states no 'clip.vision.spatial_merge_size'",
    ),
    "other norms": (
        "mistral3",
        stating("vision.attention.layer_norm_epsilon", 1e-6),
        "has norms with 1e-06 in place of 1e-05",
    ),
    "another activation": (
        "gemma3",
        stating("use_gelu", False),
        "has another activation than 'clip.use_gelu'",
    ),
}


@pytest.mark.parametrize(("family", "how", "message"), FLAWS.values(), ids=FLAWS)
def test_a_pair_that_does_not_determine_a_model_is_rejected_by_name(
    family: str, how: dict[str, Any], message: str, source: Source, tmp_path: Path
) -> None:
    file, _ = alone(source(family), tmp_path, family, **how)
    with pytest.raises(CheckpointError) as caught:
        vlmkit.load(file, engine={"use": "torch"})
    assert message in str(caught.value)


def test_two_towers_beside_a_file_are_rejected_with_both_names(
    source: Source, tmp_path: Path
) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    shutil.copy(file.parent / PROJECTOR, file.parent / "mmproj-tiny-F32.gguf")
    names = rf"'{PROJECTOR}' and 'mmproj-tiny-F32\.gguf'"
    with pytest.raises(CheckpointError, match=names) as caught:
        vlmkit.load(file, engine={"use": "torch"})
    assert caught.value.hint == f'name one: projector = "{PROJECTOR}"'
    file.with_name(PROJECTOR).rename(file.with_name("mmproj-tiny.gguf"))
    own = {"engine": {"use": "torch", "cache_tokens": 1024}, "projector": "mmproj-tiny.gguf"}
    with vlmkit.load(file, **own) as model:
        picture = zoo.picture(1)
        assert model.generate("What?", images=[picture], max_tokens=2).usage.completion_tokens == 2


def test_the_file_of_a_tower_is_no_model(source: Source, tmp_path: Path) -> None:
    file, _ = alone(source("smolvlm"), tmp_path, "smolvlm")
    with pytest.raises(CheckpointError, match="tower and no language model") as caught:
        vlmkit.load(file.parent / PROJECTOR, engine={"use": "torch"})
    assert caught.value.hint.startswith("name the file of the language model")


NUM_MUTATED = 60


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mutated_header_is_rejected_or_read_without_another_error(
    family: str, source: Source, tmp_path: Path
) -> None:
    file, _ = alone(source(family), tmp_path, family)
    tower = file.parent / PROJECTOR
    num_rejected = 0
    for _ in mutated_headers(tower, NUM_MUTATED):
        try:
            found = gguf_alone.derived(Checkpoint("m", file.parent, file=file))
            for weight in formats.weights(found).values():
                weight.dense()
        except VlmkitError:
            num_rejected += 1
    assert num_rejected > NUM_MUTATED // 3
