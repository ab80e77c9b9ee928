"""The pooling of hidden states that a checkpoint's files state."""

import json

import numpy as np
import pytest

from vlmkit.checkpoints.pooling import Pooled, Pooling, read_pooling
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint

MODULES = ["Transformer", "Pooling", "Normalize"]


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint("some", tmp_path)


def write(checkpoint, file, content):
    path = checkpoint.path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def write_modules(checkpoint, kinds):
    folders = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    pairs = zip(types, folders, strict=True)
    write(checkpoint, "modules.json", [{"type": t, "path": p} for t, p in pairs])


def flags(**chosen):
    names = ("cls_token", "mean_tokens", "max_tokens", "lasttoken", "weightedmean_tokens")
    return {f"pooling_mode_{name}": chosen.get(name, False) for name in names}


def test_a_model_without_a_pooling_config_uses_the_normalised_last_state(checkpoint):
    assert read_pooling(checkpoint) == Pooling("last", normalises=True)


@pytest.mark.parametrize(
    ("stated", "mode"),
    [
        (flags(cls_token=True), "cls"),
        (flags(mean_tokens=True), "mean"),
        (flags(lasttoken=True), "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
    ],
)
def test_the_folder_of_the_pooling_module_states_the_rows(checkpoint, stated, mode):
    write(checkpoint, "1_Pooling/config.json", stated)
    assert read_pooling(checkpoint).mode == mode
    write_modules(checkpoint, MODULES)
    assert read_pooling(checkpoint) == Pooling(mode, normalises=True)
    write_modules(checkpoint, MODULES[:2])
    assert read_pooling(checkpoint) == Pooling(mode, normalises=False)


@pytest.mark.parametrize(
    "stated",
    [
        flags(max_tokens=True),
        flags(mean_tokens=True, cls_token=True),
        flags(),
        {"pooling_mode": "weightedmean"},
        {"pooling_mode": ["mean", "cls"]},
    ],
)
def test_an_unsupported_pooling_mode_is_refused(checkpoint, stated):
    write(checkpoint, "1_Pooling/config.json", stated)
    with pytest.raises(CheckpointError, match="model 'some' pools by"):
        read_pooling(checkpoint)


@pytest.mark.parametrize("kinds", [[*MODULES[:2], "Dense"], ["Transformer"]])
def test_a_module_that_changes_the_vector_is_refused(checkpoint, kinds):
    write_modules(checkpoint, kinds)
    with pytest.raises(CheckpointError, match=r"modules\.json of model 'some' has"):
        read_pooling(checkpoint)


def test_a_pooling_module_without_its_file_is_refused(checkpoint):
    write_modules(checkpoint, MODULES)
    with pytest.raises(CheckpointError, match="says nothing in"):
        read_pooling(checkpoint)


def test_a_default_prompt_is_put_before_a_text(checkpoint):
    prompts = {"query": "Find: ", "document": ""}
    write(checkpoint, "config_sentence_transformers.json", {"prompts": prompts})
    assert read_pooling(checkpoint).prefix == ""
    stated = {"prompts": prompts, "default_prompt_name": "query"}
    write(checkpoint, "config_sentence_transformers.json", stated)
    assert read_pooling(checkpoint).prefix == "Find: "
    write(checkpoint, "1_Pooling/config.json", flags(mean_tokens=True) | {"include_prompt": False})
    with pytest.raises(CheckpointError, match="leaves its prompt 'query' out"):
        read_pooling(checkpoint)


@pytest.mark.parametrize("content", [{"a": 1}, "text"])
def test_modules_that_are_no_list_are_refused(checkpoint, content):
    write(checkpoint, "modules.json", content)
    with pytest.raises(CheckpointError, match="is not a JSON array"):
        read_pooling(checkpoint)


@pytest.mark.parametrize("mode", ["last", "mean", "cls"])
@pytest.mark.parametrize("cuts", [[7], [1, 1, 5], [3, 4]])
def test_rows_pooled_in_pieces_give_the_same_vector(mode, cuts):
    states = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    expected = {"last": states[-1], "mean": states.astype(np.float64).mean(0), "cls": states[0]}
    pooling = Pooling(mode, normalises=False)
    wanted, pooled, start = pooling.rows(len(states)), Pooled(pooling), 0
    for stop in np.cumsum(cuts):
        if stop > wanted.start and start < wanted.stop:
            pooled.add(states[max(start, wanted.start) : stop])
        start = stop
    np.testing.assert_allclose(pooled.vector(), expected[mode], atol=1e-6)


def test_a_zero_vector_is_not_normalised():
    pooled = Pooled(Pooling())
    pooled.add(np.zeros((1, 3), np.float32))
    assert pooled.vector().tolist() == [0, 0, 0]
