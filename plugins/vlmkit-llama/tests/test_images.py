"""Images: features and answers of transformers, refused files, and what a repeated image costs."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import vlmkit
import zoo
from parity import pipeline, runner
from vlmkit.assembly.load import assemble
from vlmkit.cli import run as command
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.config.renderer_plan import WorkerProcesses
from vlmkit.config.structs import Component, Config, ModelEntry
from vlmkit.errors import CheckpointError, EngineError, ImageError, RequestError, VlmkitError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit_llama.layout import PIXELS, ROW, ImageLayout, PromptImages, Run
from vlmkit_llama.projector import Projector
from vlmkit_llama.tower_types import check_types
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_file import GgufFile, GgufTensor
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_testing.contracts.pictures import picture

pytestmark = pytest.mark.torch

Folders = Callable[..., Path]
PartsOf = Callable[[str], Any]
ENGINE = {"use": "llama", "cache_tokens": 2048, "num_threads": 1, "cache_dtype": "f32"}
HERE = {"use": "none"}
FAMILIES = ("gemma3", "smolvlm", "mistral3")


def answered(model: vlmkit.Model, text: str, *images: Any, **more: Any) -> str:
    settings = {"max_tokens": 8, "temperature": 0, "ignore_eos": True} | more
    return model.generate(text, images=list(images), **settings).text


def shown(text: str, *images: Image) -> list[Message]:
    return [Message("user", (*map(ImagePart, images), TextPart(text)))]


# Against transformers


def test_answers_about_square_images_are_those_of_transformers(pair: Folders) -> None:
    folder = pair("gemma3")
    asked = [
        runner._ask("Tell me what is in there.", [zoo.picture(1, 56, 56)]),
        runner._ask("How do they differ?", [zoo.picture(2, 40, 40), zoo.picture(3, 90, 90)]),
        runner._ask("Just words, please.", []),
    ]
    with vlmkit.load(folder / "model.gguf", engine=ENGINE, runner=HERE) as model:
        banned = sorted(model.runner._tokenizer.banned_ids)
        streamed = pipeline.stream_all(model, asked)
    answers = runner.expected("gemma3", folder / "plain" / "gemma3", asked, banned)
    assert [[s.token_id for s in samples] for _, samples in streamed] == [
        answer.token_ids for answer in answers
    ]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_answers_of_models_with_positions_on_axes_are_those_of_transformers(
    family: str, pair: Folders
) -> None:
    """The images are multiples of a token, and within the library's limits of sizes."""
    folder, side = pair(family), 28
    limits = {"size": {"shortest_edge": 8 * side**2, "longest_edge": 4096 * side**2}}
    one, other, third = (
        zoo.picture(number, width * side, height * side)
        for number, (width, height) in enumerate([(4, 3), (2, 5), (3, 3)])
    )
    asked = [
        replace(runner._ask(text, images), limits=limits)
        for text, images in (
            ("Tell me what is in there.", [one]),
            ("How do they differ?", [other, third]),
            ("Just words, please.", []),
        )
    ]
    with vlmkit.load(folder, engine=ENGINE, runner=HERE) as model:
        banned = sorted(model.runner._tokenizer.banned_ids)
        plain = [replace(request, limits={}) for request in asked]
        streamed = pipeline.stream_all(model, plain)
    answers = runner.expected(family, folder / "plain" / family, asked, banned)
    assert [[s.token_id for s in samples] for _, samples in streamed] == [
        answer.token_ids for answer in answers
    ]


@pytest.mark.parametrize("is_active", [True, False])
def test_text_before_images_is_shared_where_positions_have_axes(
    is_active: bool, parts: PartsOf
) -> None:
    """Cells of an image have one position, so they are not shared, and nothing behind them is."""
    made = parts("qwen3_vl")
    engine, encoder = made.engine(cache_tokens=2048), made.encoder()
    host = EngineHost(engine, lambda prompt: dict(enumerate(encoder.encode(prompt.media))))
    words = TextPart("Look closely at what is shown, then say it: ")
    for content in ((words, ImagePart(picture(56, 56, seed=1)), words), (words, words)):
        prompt = made.tokenizer.prompt([Message("user", content)])
        most = prompt.media[0].start if prompt.media else len(prompt) - 1
        first, second = (host.sequence(prompt, scope=str(len(content)).encode()) for _ in "ab")
        assert host.admit(first) == 0
        row = host.prefill(first)
        if not is_active:
            engine.release(first)
        assert host.admit(second) == most // 4 * 4 > 16
        np.testing.assert_allclose(host.prefill(second), row, atol=2e-4, rtol=0)
        engine.release(second)
        if is_active:
            engine.release(first)
    engine.close()
    encoder.close()


# Layouts


def test_markers_that_the_template_wrote_are_not_repeated(parts: PartsOf) -> None:
    start, end = (
        next(
            each["id"]
            for each in json.loads(
                (parts("gemma3").checkpoint.path / "tokenizer.json").read_text()
            )["added_tokens"]
            if each["content"] == text
        )
        for text in ("<start_of_image>", "<end_of_image>")
    )
    prompt = parts("gemma3").tokenizer.prompt(shown("What?", picture()))
    assert prompt.token_ids.count(start) == prompt.token_ids.count(end) == 1
    layout = ImageLayout(
        np.array([7, ROW, ROW, 8], np.int32), np.zeros((5, 3), np.int32), np.zeros((0, 2), np.int32)
    )
    assert layout.between([1, 7], [8, 2]).token_ids.tolist() == [ROW, ROW]
    assert layout.between([1, 2], [8]).token_ids.tolist() == [7, ROW, ROW]
    assert layout.between([], []).token_ids.tolist() == [7, ROW, ROW, 8]


def test_tiles_have_a_slot_together_and_rows_of_their_own(parts: PartsOf) -> None:
    made = parts("smolvlm")
    prompt = made.tokenizer.prompt(shown("What?", picture(64, 64), picture(20, 60)))
    first, second = prompt.media
    assert first.stop - first.start > first.num_features > second.num_features
    encoder = made.encoder()
    features = encoder.encode(prompt.media)
    encoder.close()
    assert [each.num_tokens for each in features] == [first.num_features, second.num_features]
    plan = made_plan(made, prompt)
    assert len([run for run in plan.runs if run.slot == 0]) == 5, "four tiles and the whole"


def made_plan(made: Any, prompt: Prompt) -> PromptImages:
    engine = made.engine()
    plan: PromptImages = engine.read(prompt).state
    engine.close()
    return plan


def test_an_image_that_is_cut_is_computed_from_its_first_token_on() -> None:
    """All its tokens have one position in time, so its cells are removed together."""
    positions = np.array([[0] * 3, [1] * 3, [1, 1, 2], [1, 2, 1], [3] * 3, [4] * 3], np.int32)
    images = PromptImages((Run(1, 4, 0, 0, is_whole=False),), positions)
    assert [images.begin(index) for index in range(6)] == [0, 1, 1, 1, 4, 5]
    assert [images.position(index) for index in range(7)] == [0, 1, 1, 1, 3, 4, 5]
    assert list(images.parts(0, 6)) == [(0, 1, None), (1, 4, images.runs[0]), (4, 6, None)]
    assert list(images.parts(2, 3)) == [(2, 3, images.runs[0])]


# Requests


SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("internvl", "llava")]


@pytest.mark.parametrize("family", [*FAMILIES, "qwen2_5_vl", *SLOW])
def test_a_model_with_images_answers_about_them(family: str, pair: Folders) -> None:
    one, other = zoo.picture(1, 60, 60), zoo.picture(2, 84, 40)
    model_file = pair(family) / "model.gguf" if family in FAMILIES else pair(family)
    with vlmkit.load(model_file, engine=ENGINE, runner=HERE) as model:
        assert type(model.runner._tokenizer).__name__ == "LlamaTokenizer"
        answers = [answered(model, "What?", image) for image in (one, other, one)]
        text = answered(model, "What?")
    assert answers[0] == answers[2]
    assert text not in answers


def test_a_repeated_image_is_not_encoded_again(
    pair: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, encode = [], Projector.encode
    monkeypatch.setattr(
        Projector, "encode", lambda self, pixels: calls.append(1) or encode(self, pixels)
    )
    image = zoo.picture(1, 60, 60)
    with vlmkit.load(pair("smolvlm") / "model.gguf", engine=ENGINE, runner=HERE) as model:
        first = answered(model, "What is it?", image)
        assert answered(model, "Which?", image) != first
        assert answered(model, "What is it?", image) == first
        assert len(calls) == 1
        answered(model, "What is it?", zoo.picture(2, 60, 60))
    assert len(calls) == 2


def test_an_image_that_the_library_rejects_fails_its_request_alone(
    pair: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = zoo.picture(1, 60, 60)
    with vlmkit.load(pair("smolvlm") / "model.gguf", engine=ENGINE, runner=HERE) as model:
        before = answered(model, "What is it?", image)
        media = model.runner._tokenizer._projector._media
        monkeypatch.setattr(media, "mtmd_encode_chunk", lambda *_: 1)
        with pytest.raises(ImageError, match="cannot take an image of 61x61"):
            answered(model, "What is it?", zoo.picture(2, 61, 61))
        monkeypatch.undo()
        assert answered(model, "What is it?", image) == before


def test_features_that_are_not_finite_fail_their_request_alone(
    pair: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged weight of a tower makes such features, and logits of them would end the engine."""
    encode = Projector.encode
    monkeypatch.setattr(Projector, "encode", lambda self, pixels: encode(self, pixels) * np.nan)
    with vlmkit.load(pair("smolvlm") / "model.gguf", engine=ENGINE, runner=HERE) as model:
        with pytest.raises(EngineError, match=r"not finite|media encoder"):
            answered(model, "What is it?", zoo.picture(1, 60, 60))
        assert answered(model, "What?")
        monkeypatch.undo()
        assert answered(model, "What is it?", zoo.picture(1, 60, 60))


def test_an_image_beyond_its_budget_is_refused_with_its_tokens(parts: PartsOf) -> None:
    part = ImagePart(picture(56, 56), ImageOptions(max_tokens=3))
    with pytest.raises(ImageError, match="max_image_tokens is 3, and this model needs") as refused:
        parts("mistral3").tokenizer.prompt([Message("user", (part,))])
    assert refused.value.code == "image_over_budget"


def test_an_image_that_must_be_whole_needs_a_chunk_for_it(parts: PartsOf) -> None:
    made = parts("gemma3")
    engine = made.engine(max_chunk_tokens=3)
    with pytest.raises(RequestError, match="takes 4 tokens, which are computed together"):
        engine.read(made.tokenizer.prompt(shown("What?", picture())))
    engine.close()


def test_images_of_another_tokenizer_are_refused(pair: Folders) -> None:
    with (
        vlmkit.load(
            pair("gemma3") / "model.gguf", engine=ENGINE, runner=HERE, tokenizer={"use": "hf"}
        ) as model,
        pytest.raises(RequestError, match="images that its own tokenizer has prepared"),
    ):
        answered(model, "What?", zoo.picture(1))


def test_a_closed_projector_raises_an_error(parts: PartsOf) -> None:
    made = parts("gemma3")
    prompt = made.tokenizer.prompt(shown("What?", picture()))
    encoder = made.encoder()
    encoder.close()
    with pytest.raises(EngineError, match="was closed"):
        encoder.encode(prompt.media)
    assert prompt.media[0].inputs[PIXELS].shape == (48, 64, 3)


# Files


def copied(folder: Path, place: Path) -> Path:
    for name in ("model.gguf", "mmproj.gguf"):
        shutil.copy(folder / name, place)
    return place / "model.gguf"


def refusal(file: Path) -> str:
    with pytest.raises(VlmkitError) as refused:
        vlmkit.load(file, engine=ENGINE, runner=HERE)
    assert isinstance(refused.value, CheckpointError), refused.value
    return str(refused.value)


def test_two_projectors_are_refused_by_their_names(pair: Folders, tmp_path: Path) -> None:
    file = copied(pair("gemma3"), tmp_path)
    shutil.copy(tmp_path / "mmproj.gguf", tmp_path / "mmproj-other.gguf")
    assert "2 files with vision towers, 'mmproj-other.gguf' and 'mmproj.gguf'" in refusal(file)


@pytest.mark.posix
@pytest.mark.parametrize("family", ["smolvlm", pytest.param("qwen2_5_vl", marks=pytest.mark.slow)])
def test_the_projector_that_the_user_names_is_used(
    family: str, pair: Folders, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a file alone and with a folder, through the subprocess, beside that of another model."""
    folder = tmp_path / "model"
    shutil.copytree(pair(family), folder, ignore=shutil.ignore_patterns("plain", "source"))
    shutil.copy(pair("gemma3") / "mmproj.gguf", folder / "mmproj-other.gguf")
    zoo.picture(1).save(tmp_path / "picture.png")
    is_folder = (folder / "config.json").exists()
    arguments = ["ask", str(folder if is_folder else folder / "model.gguf"), "What?"]
    arguments += ["--image", str(tmp_path / "picture.png"), "--max-tokens", "3"]
    for setting in ("engine.use=llama", "engine.cache_tokens=1200", "engine.num_threads=1"):
        arguments += ["--set", setting]

    def ask(*more: str) -> tuple[int, str]:
        code = command([*arguments, *more])
        written = capfd.readouterr()
        return code, written.out + written.err

    code, written = ask("--set", "projector=mmproj.gguf")
    assert (code, "[stopped at the limit of 3 tokens]" in written) == (0, True), written
    for more, problem in (
        ((), "2 files with vision towers"),
        (("--set", "projector=mmproj-other.gguf"), "'mmproj-other.gguf'"),
        (("--set", "projector=mmproj-F16.gguf"), "'mmproj-F16.gguf' is not beside 'model.gguf'"),
        (("--set", "projector=../mmproj.gguf"), "'../mmproj.gguf' is not in the folder of"),
    ):
        code, written = ask(*more)
        assert code != 0
        assert problem in " ".join(written.split())


def test_a_projector_of_another_model_is_refused(pair: Folders, tmp_path: Path) -> None:
    file = copied(pair("gemma3"), tmp_path)
    shutil.copy(pair("smolvlm") / "mmproj.gguf", tmp_path)
    assert "is of another model than 'model.gguf'" in refusal(file)


@pytest.mark.parametrize(
    ("family", "written", "changed", "problem"),
    [
        ("qwen2_5_vl", b"rope.dimension_sections", b"rope.dimension_sectionz", "does not state"),
        ("qwen3_vl", b"n_deepstack_layers", b"n_deepstack_layerz", "features of 0 inner layers"),
    ],
)
def test_fields_without_which_the_library_would_end_the_process_must_be_there(
    family: str, written: bytes, changed: bytes, problem: str, pair: Folders, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(pair(family), folder, ignore=shutil.ignore_patterns("plain", "source"))
    content = (folder / "model.gguf").read_bytes()
    assert content.count(written) == 1
    (folder / "model.gguf").write_bytes(content.replace(written, changed))
    assert problem in refusal(folder)


@pytest.mark.parametrize("field", ["clip.vision.projection_dim", "clip.vision.image_size"])
def test_a_field_of_a_type_for_which_the_library_would_end_the_process_is_refused(
    field: str, pair: Folders, tmp_path: Path
) -> None:
    file = copied(pair("mistral3"), tmp_path)
    content = (tmp_path / "mmproj.gguf").read_bytes()
    place = content.index(field.encode()) + len(field)
    (tmp_path / "mmproj.gguf").write_bytes(content[:place] + b"\5" + content[place + 1 :])
    assert f"{field!r} in the type INT32, and llama.cpp reads UINT32" in refusal(file)


@pytest.mark.parametrize(
    ("field", "dtype", "problem"),
    [
        ("image_mean", np.float64, "ARRAY of FLOAT64, and llama.cpp reads ARRAY of FLOAT32"),
        ("feature_layer", np.uint8, "ARRAY of UINT8, and llama.cpp reads ARRAY of INT32"),
        ("feature_layer", np.uint32, None),
    ],
)
def test_arrays_that_the_library_would_misread_are_refused(
    field: str, dtype: Any, problem: str | None
) -> None:
    name = f"clip.vision.{field}"
    file = GgufFile({name: np.ones(3, dtype)}, {}, {name: "ARRAY"})
    if problem is None:
        check_types(file, "mmproj.gguf")
        return
    with pytest.raises(FormatError, match=problem):
        check_types(file, "mmproj.gguf")


@pytest.mark.parametrize(
    ("name", "shape", "kind", "is_refused"),
    [
        ("v.position_embd.weight", (4, 64), "gemma3", True),
        ("v.position_embd.weight", (4, 64), "mlp", False),
        ("v.blk.0.ln1.bias", (64,), "mlp", True),
        ("v.blk.0.attn_q.weight", (64, 64), "gemma3", False),
    ],
)
def test_tensors_for_whose_types_an_image_would_end_the_process_are_refused(
    name: str, shape: tuple[int, ...], kind: str, *, is_refused: bool
) -> None:
    tensor = GgufTensor(Path("mmproj.gguf"), (0, 0, 0), 0, "F16", shape)
    file = GgufFile({"clip.projector_type": kind}, {name: tensor})
    if not is_refused:
        check_types(file, "mmproj.gguf")
        return
    with pytest.raises(FormatError, match=f"{name!r} in F16, and llama.cpp computes with it in"):
        check_types(file, "mmproj.gguf")


def test_a_tower_with_other_windows_than_the_librarys_is_refused(
    pair: Folders, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(pair("qwen2_5_vl"), folder, ignore=shutil.ignore_patterns("plain", "source"))
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["window_size"] = 56
    (folder / "config.json").write_text(json.dumps(config))
    assert "windows of 56 pixels, and llama.cpp computes with 112" in refusal(folder)


def test_a_projector_without_its_model_is_refused(pair: Folders, tmp_path: Path) -> None:
    shutil.copy(pair("gemma3") / "mmproj.gguf", tmp_path / "model.gguf")
    assert "has a vision tower and no language model" in refusal(tmp_path / "model.gguf")


def test_a_model_without_its_projector_takes_text_alone(pair: Folders, tmp_path: Path) -> None:
    file = copied(pair("gemma3"), tmp_path)
    (tmp_path / "mmproj.gguf").unlink()
    with vlmkit.load(file, engine=ENGINE, runner=HERE) as model:
        assert answered(model, "What?")
        with pytest.raises(RequestError, match="takes no images") as refused:
            answered(model, "What?", zoo.picture(1))
    assert refused.value.code == "media_not_supported"


def test_a_projector_that_the_library_cannot_read_is_refused(pair: Folders, tmp_path: Path) -> None:
    """It lacks a tensor that the library needs and our reader does not."""
    content = bytearray((pair("mistral3") / "mmproj.gguf").read_bytes())
    place = content.index(b"img_break")
    content[place : place + 9] = b"other_one"
    copied(pair("mistral3"), tmp_path)
    (tmp_path / "mmproj.gguf").write_bytes(content)
    found = refusal(tmp_path / "model.gguf")
    assert "other_one" in found


@pytest.mark.slow
@pytest.mark.posix
def test_a_renderer_prepares_images_as_the_server_does(pair: Folders) -> None:
    """It has the library and the projector, and no engine; known images are prepared once."""
    file = pair("gemma3") / "model.gguf"
    own = {name: value for name, value in ENGINE.items() if name != "use"}
    config = Config(
        engine=Component(use="llama", settings=own), runner=Component(use="none", settings={})
    )
    processes = WorkerProcesses(
        num_renderers=1,
        needs_renderers=True,
        renderer_memory_bytes=2**31,
        compiles_constraints=False,
    )
    colors = ("red",), ("red", "blue"), ("blue", "red")
    with vlmkit.load(file, engine=ENGINE, runner=HERE, pipeline={"image_cache_bytes": 0}) as here:
        wanted = [answer(here, *each) for each in colors]
    runner = assemble(
        ModelEntry(model=str(file)), config, load_plugins(config.plugins), workers=processes
    )
    with vlmkit.Model(runner) as model:
        assert [answer(model, *each) for each in colors] == wanted
        counters = model.stats().counters
        assert (counters["num_image_hits"], counters["num_image_misses"]) == (3, 2)


def answer(model: vlmkit.Model, *colors: str) -> list[int]:
    content = []
    for color in colors:
        file = io.BytesIO()
        PIL.Image.new("RGB", (48, 48), color).save(file, "PNG")
        content.append(file.getvalue())
    done = model.generate("What?", images=content, max_tokens=6)
    return [sample.token_id for sample in done.choices[0].samples]
