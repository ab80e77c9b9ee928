"""Further vision families, with mechanisms that the zoo lacks, answer as ``generate`` does."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from parity import arrays, runner
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.export import exporter
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.vision import encoder

pytestmark = pytest.mark.torch


def expected(name: str, folder: Path) -> list[runner.Answer]:
    auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    answers = []
    for prompt in arrays.prompts(name):
        made = model.generate(
            **arrays.inputs(name, prompt),
            max_new_tokens=runner.NUM_NEW,
            do_sample=False,
            suppress_tokens=arrays.banned(name),
            output_logits=True,
            return_dict_in_generate=True,
        )
        token_ids = made.sequences[0, len(prompt) :].tolist()
        answers.append(runner.Answer(token_ids, torch.cat(made.logits).float()))
    return answers


class Blind:
    """An encoder that sees nothing."""

    def __init__(self, seeing: MediaEncoder) -> None:
        self.seeing = seeing

    def encode(self, slots: Seq[MediaSlot]) -> list[MediaFeatures]:
        return [
            replace(
                features,
                embeddings=torch.zeros_like(features.embeddings),
                extra={key: torch.zeros_like(rows) for key, rows in features.extra.items()},
            )
            for features in self.seeing.encode(slots)
        ]


@pytest.mark.parametrize("name", arrays.FAMILIES)
def test_a_family_with_array_images_is_answered_as_by_generate(name: str, tmp_path: Path) -> None:
    checkpoint, shared = Checkpoint(name, arrays.save(name, tmp_path)), {}
    settings = EngineSettings(cache_tokens=400, block_tokens=4)
    made = torch_engine.build(BuildContext("", checkpoint, settings, shared))
    seeing = encoder.build(BuildContext("", checkpoint, EncoderSettings(), shared))
    prompts, wanted = arrays.prompts(name), expected(name, tmp_path)
    blind_engine = torch_engine.build(BuildContext("", checkpoint, settings, {}))
    banned = arrays.banned(name)

    outcome = runner.compare(runner.run(made, seeing, prompts, banned), wanted)
    blind = runner.compare(runner.run(blind_engine, Blind(seeing), prompts, banned), wanted)

    assert outcome.is_parity, outcome
    assert not blind.is_parity, "the images do not matter, so this shows nothing"


@pytest.mark.slow
def test_an_exported_model_limits_a_large_image_to_its_window(tmp_path: Path) -> None:
    name = "gemma3_large_image"
    folder, wanted = tmp_path / "onnx", expected(name, arrays.save(name, tmp_path / "model"))
    exporter.export(Checkpoint(name, tmp_path / "model"), folder, "fp32", lambda _: None)
    made, seeing, _ = runner.load_onnx_engine(name, folder)
    answers = runner.run(made, seeing, arrays.prompts(name), [arrays.IMAGE])
    outcome = runner.compare(answers, wanted)

    assert outcome.is_parity, outcome
