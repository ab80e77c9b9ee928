"""The page of families states what the code does, as far as a configuration can show it."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

import torch
import transformers
from safetensors.torch import save_file

import zoo
from census import families, folder, page
from census.record import Finding
from census.trial import refused_by_config, tried
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from vlmkit_torch.support import refusal

pytestmark = pytest.mark.torch

NO_DEFAULT = {"gemma4_assistant"}  # transformers itself refuses its default configuration


@pytest.fixture(scope="module")
def lines() -> dict[str, tuple[str, page.Line]]:
    return page.read()


def test_each_family_of_transformers_has_one_line_in_its_section(
    lines: dict[str, tuple[str, page.Line]],
) -> None:
    assert f"transformers {transformers.__version__}" in page.PAGE.read_text()
    assert list(lines) == [
        name
        for title in page.SECTIONS
        for name in families.all_types()
        if page.section_of(name) == title
    ]
    assert all(section == page.section_of(name) for name, (section, _) in lines.items())


def test_families_compared_with_a_reference_other_than_generate_are_named() -> None:
    chosen = {zoo.model_type(name) for name in zoo.NAMES if zoo.family(name).attention}

    assert chosen | {"mllama"} == set(page.DEVIATIONS)  # of which parity.authors has the way
    assert page.deviations() in page.PAGE.read_text()


def test_every_family_of_the_zoo_is_listed_as_supported(
    lines: dict[str, tuple[str, page.Line]],
) -> None:
    for name in zoo.NAMES:
        _, line = lines[zoo.model_type(name)]
        assert line.runs["torch"] != page.NOTHING, (name, line)


def test_the_page_quotes_the_refusal_of_each_config_and_supported_ones_have_none(
    lines: dict[str, tuple[str, page.Line]], tmp_path: Path
) -> None:
    refused = 0
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model.safetensors")
    for name, (_, line) in lines.items():
        if name in NO_DEFAULT:
            continue
        stated = transformers.CONFIG_MAPPING[name]().to_dict()
        (tmp_path / "config.json").write_text(json.dumps({**stated, "model_type": name}))
        if line.runs["torch"] != page.NOTHING:
            assert refusal.engine_cannot_serve(Checkpoint(name, tmp_path)) is None, name
            continue
        reason = refused_by_config(Checkpoint(name, tmp_path))
        if reason is not None:
            assert page.escaped(reason) in line.why, (name, line)
            refused += 1

    assert refused > 70, "the page has hardly a line that this could hold"


@pytest.mark.parametrize(
    ("name", "small", "large"),
    [
        ("granite_docling", ((512, 512), 1), ((1024, 512), 3)),
        ("hunyuan_vl", ((512, 512), 1), ((1024, 512), 1)),
        ("qianfan_ocr", ((448, 448), 1), ((896, 448), 3)),
    ],
)
def test_processors_with_their_own_image_placeholders_pass_the_check_at_load(
    name: str, small: tuple[object, ...], large: tuple[object, ...], tmp_path: Path
) -> None:
    folder.save_outline(name, tmp_path)
    tokenizer = HfTokenizer(Checkpoint(name, tmp_path), HfTokenizerSettings())  # checks itself

    for size, expected in (((512, 512), small), ((512, 1024), large)):
        picture = Image.open(zoo.picture(1, *size))
        (slot,) = tokenizer.prompt([Message.of("user", "What?", [picture])]).media
        assert slot.transform is not None
        assert (slot.transform.used_size, slot.transform.num_tiles) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["granite_docling", "hunyuan_vl", "qwen3_vl_moe"])
def test_a_small_model_of_a_vision_family_answers_as_transformers(
    name: str, tmp_path: Path
) -> None:
    found = tried(name, ["torch"], tmp_path, exports=False)

    assert found == dict.fromkeys(("torch text", "torch pictures"), Finding("equal"))
