"""A saved text side equals the resolved one and needs no transformers."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import zoo
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import hint_of
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message
from vlmkit_hf import plugin
from vlmkit_hf.images.pillow import pixels
from vlmkit_hf.images.standalone import families
from vlmkit_hf.saved import comparison, file
from vlmkit_hf.saved.reading import cached_folder, find_saved, read
from vlmkit_hf.saved.writing import save
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side import files
from vlmkit_hf.text_side.tokenizer import HfTokenizer

PLAIN = HfTokenizerSettings()
UNKNOWN = "Lfm2VlProcessor with Lfm2VlImageProcessor is not supported"
COVERED = (*zoo.NAMES_VISION, "cohere2_vision", "granite4_vision")
Load = Callable[[str], HfTokenizer]


@pytest.fixture
def folder_of(checkpoint_of: Callable[[str], Checkpoint], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a family's folder."""
    return lambda name: Path(shutil.copytree(checkpoint_of(name).path, tmp_path / name))


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def light(folder: Path, settings: HfTokenizerSettings = PLAIN) -> HfTokenizer | None:
    checkpoint = Checkpoint(folder.name, folder)
    parts = read(checkpoint, settings)
    return None if parts is None else HfTokenizer(checkpoint, settings, parts)


@pytest.mark.parametrize("name", COVERED)
def test_a_saved_text_side_equals_transformers_for_texts_and_images(
    name: str,
    folder_of: Callable[[str], Path],
    tokenizer_of: Load,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = folder_of(name)
    monkeypatch.setattr(comparison, "SIZES", ((33, 90), (260, 71), (150, 151)))
    save(Checkpoint(name, folder), folder)
    made = light(folder)
    assert made is not None, file.read(folder).refusal
    monkeypatch.setattr(
        comparison, "SIZES", ((8, 8), (61, 300), (29, 28))
    )  # other sizes than those of the comparison

    assert comparison.difference(tokenizer_of(name), made) == ""


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral", "phi3", "gpt_oss"])
def test_a_saved_text_side_equals_transformers_for_texts(
    name: str, folder_of: Callable[[str], Path], tokenizer_of: Load
) -> None:
    folder = folder_of(name)
    save(Checkpoint(name, folder), folder)
    made = light(folder)
    assert made is not None, file.read(folder).refusal

    assert comparison.difference(tokenizer_of(name), made) == ""
    calls = (
        [
            it.prompt([Message.of("user", "Hi.")], tools=[comparison.TOOL]).calling
            for it in (tokenizer_of(name), made)
        ]
        if name == "gpt_oss"
        else [None, None]
    )
    assert calls[0] == calls[1]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llava", {"do_pad": True, "image_processor_type": "LlavaImageProcessor"}),
        ("llava", {"do_center_crop": False, "size": {"height": 28, "width": 42}}),
        ("idefics3", {"do_image_splitting": False}),
        ("qwen2_vl", {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 6}),
        ("internvl", {"crop_to_patches": True, "min_patches": 2, "max_patches": 7}),
    ],
)
def test_a_saved_text_side_follows_the_settings_of_a_folder(
    name: str, settings: Mapping[str, Any], folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(name)
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        path = folder / "processor_config.json"
    stated = json.loads(path.read_text())
    (stated if path.name.startswith("pre") else stated["image_processor"]).update(settings)
    path.write_text(json.dumps(stated))
    checkpoint = Checkpoint(name, folder)
    save(checkpoint, folder)
    made = light(folder)
    assert made is not None, file.read(folder).refusal

    assert comparison.difference(HfTokenizer(checkpoint, PLAIN), made) == ""


def test_a_difference_in_images_is_detected_and_reported(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = folder_of("llava"), "CLIPImageProcessor"
    other = replace(families.IMAGES[name], scaling=pixels.fused)  # the last bit of some values
    monkeypatch.setattr(families, "IMAGES", families.IMAGES)
    monkeypatch.setitem(families.IMAGES, name, other)  # type: ignore[arg-type]
    reason = save(Checkpoint("llava", folder), folder)

    assert light(folder) is None
    assert file.read(folder).refusal.startswith("a picture of ")
    assert "made by transformers, which costs each start seconds" in str(reason)


def test_an_unsupported_family_is_reported_each_time_and_tried_once(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint("lfm2_vl", folder_of("lfm2_vl"))
    assert UNKNOWN in str(save(checkpoint))
    monkeypatch.setattr(
        "vlmkit_hf.saved.writing.resolve_parts", lambda *_: pytest.fail("asked again")
    )

    assert UNKNOWN in str(save(checkpoint))
    assert read(checkpoint, PLAIN) is None


def test_other_files_in_a_cache_folder_stay(folder_of: Callable[[str], Path]) -> None:
    checkpoint = Checkpoint("llava", folder_of("llava"))
    place = cached_folder(checkpoint)
    place.mkdir(parents=True)
    (place / file.FILE).write_text("broken")
    (place / "notes.txt").write_text("another's")
    assert save(checkpoint) is None

    assert read(checkpoint, PLAIN) is not None
    assert (place / "notes.txt").read_text() == "another's"
    assert [path for path in place.parent.iterdir() if path != place] == []


def test_another_version_tries_an_unsupported_family_again(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llava")
    checkpoint = Checkpoint("llava", folder)
    with monkeypatch.context() as before:
        before.setattr(families, "WRITERS", {})
        before.setattr("vlmkit_hf.images.standalone.describing.WRITERS", {})
        before.setattr("vlmkit_hf.saved.writing.versions", lambda: {"vlmkit-hf": "0.0.1"})
        assert "LlavaProcessor with" in str(save(checkpoint, folder))

    assert save(checkpoint) is None
    assert light(folder) is not None


def test_without_transformers_a_folder_reports_what_its_text_side_needs(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "is_installed", lambda name: name != "transformers")
    registry: Registry[Any] = Registry("tokenizer", "vlmkit-hf")
    plugin.vlmkit_register_tokenizers(registry)
    objection = registry.get("hf").objection
    checkpoint = Checkpoint("llava", folder_of("llava"))
    assert objection(checkpoint) == "it needs transformers, which is not installed"
    save(checkpoint, checkpoint.path)
    assert objection(checkpoint) is None

    (checkpoint.path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    changed = objection(checkpoint)
    assert "'vlmkit_text.json' does not match the files in the folder" in str(changed)
    assert hint_of(changed).startswith("export the model again")

    other = Checkpoint("lfm2_vl", folder_of("lfm2_vl"))
    save(other, other.path)
    assert UNKNOWN in str(objection(other))
    assert hint_of(objection(other)) == install_command("vlmkit-hf")


def test_a_tokenizer_changed_by_transformers_is_saved_with_the_change(
    folder_of: Callable[[str], Path], tokenizer_of: Load
) -> None:
    folder = folder_of("llama")
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    stated["additional_special_tokens"] = ["<|new|>"]
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    save(Checkpoint("llama", folder), folder)
    made = light(folder)

    assert (folder / file.OWN_TOKENIZER).is_file()
    assert made is not None
    assert made.vocab_size == tokenizer_of("llama").vocab_size + 1


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "chat_template.jinja").write_text("{{ messages[0].content }}"),
        lambda folder: (folder / "added_tokens.json").write_text("{}"),
        lambda folder: (folder / file.FILE).write_bytes((folder / file.FILE).read_bytes()[:-20]),
        lambda folder: (folder / file.FILE).write_text("[]"),
        lambda folder: (folder / file.FILE).write_text(
            (folder / file.FILE).read_text().replace('"eos_ids": [', '"eos_ids": [-1,')
        ),
        lambda folder: (folder / file.FILE).write_text(
            (folder / file.FILE).read_text().replace('"CLIPImageProcessor"', '"OtherProcessor"')
        ),
        lambda folder: (folder / file.FILE).write_bytes(b" " * (file.MAX_BYTES + 1)),
    ],
    ids=["changed", "added", "torn", "no object", "out of bounds", "unknown", "too large"],
)
def test_truncated_invalid_and_outdated_files_are_ignored(
    harm: Callable[[Path], Any], folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of("llava")
    save(Checkpoint("llava", folder), folder)
    assert light(folder) is not None
    harm(folder)

    assert light(folder) is None


def test_a_modified_saved_tokenizer_is_ignored(
    folder_of: Callable[[str], Path],
) -> None:
    folder = folder_of("llama")
    (folder / "tokenizer_config.json").write_text('{"additional_special_tokens": ["<|new|>"]}')
    save(Checkpoint("llama", folder), folder)
    path = folder / file.OWN_TOKENIZER
    path.write_text(path.read_text().replace("<|new|>", "<|old|>"))

    assert light(folder) is None


def test_the_operator_template_takes_precedence_over_the_saved_one(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = folder_of("llama")
    save(Checkpoint("llama", folder), folder)
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}?")
    made = light(folder, HfTokenizerSettings(chat_template=str(tmp_path / "own.jinja")))

    assert made is not None
    assert made.decode(made.prompt([Message.of("user", "So")]).token_ids).endswith("So?")


def test_the_cached_text_side_is_used_until_a_file_of_the_model_changes(
    folder_of: Callable[[str], Path],
) -> None:
    folder = folder_of("qwen2")
    checkpoint = Checkpoint("qwen2", folder)
    save(checkpoint)
    assert not (folder / file.FILE).exists()
    assert light(folder) is not None
    (folder / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert find_saved(checkpoint) is None

    save(checkpoint)
    made = light(folder)
    assert made is not None
    assert 3 in made.eos_ids


def test_the_plugin_reads_a_saved_text_side_and_saves_it_once(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry: Registry[Any] = Registry("tokenizer", "vlmkit-hf")
    plugin.vlmkit_register_tokenizers(registry)
    provider = registry.get("hf")
    context = BuildContext("m", Checkpoint("m", folder_of("llava")))
    assert provider.keep is not None
    provider.keep(context, None)
    monkeypatch.setattr(
        "vlmkit_hf.text_side.parts.resolve_parts", lambda *_: pytest.fail("transformers")
    )
    monkeypatch.setattr(
        "vlmkit_hf.text_side.tokenizer.resolve_parts", lambda *_: pytest.fail("transformers")
    )
    monkeypatch.setattr("vlmkit_hf.saved.writing.save", lambda *_: pytest.fail("kept again"))
    made = provider.build(context)
    provider.keep(context, None)
    part = ImagePart(Image.open(zoo.picture(1, 60, 44)), ImageOptions())

    assert made.prompt([Message.of("user", "What?", [part])]).media[0].num_features > 0
