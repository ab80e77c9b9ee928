"""The engine follows ``generation_config.json`` as ``generate`` does, token for token."""

import json
import shutil
from collections.abc import Callable, Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from parity import runner
from parity.pipeline import conversation, load

pytest.importorskip("vlmkit_hf")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

Saved = Callable[[str], Path]
NAME, NUM_NEW = "llama", 16


def written(folder: Path, values: dict[str, Any]) -> None:
    """Let a folder's ``generation_config.json`` say these values, and nothing else."""
    (folder / "generation_config.json").write_text(json.dumps(values))


def ours(folder: Path, **settings: Any) -> list[int]:
    with load(folder) as model:
        messages = conversation(runner.requests(NAME)[0])
        answer = model.generate(messages, max_tokens=NUM_NEW, logprobs=True, **settings)
    return [sample.token_id for sample in answer.choices[0].samples]


def theirs(folder: Path, banned: Seq[int], ends: Seq[int] | None = None) -> list[int]:
    """Return what ``generate`` answers by the folder's own file.

    Args:
        folder: of the model.
        banned: tokens that vlmkit never chooses, such as placeholders.
        ends: tokens that end the answer; None goes on.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = model.generation_config
    config.suppress_tokens = [*(config.suppress_tokens or []), *banned] or None
    config.eos_token_id = None if ends is None else list(ends)
    config.pad_token_id = 0
    inputs = runner.reference_inputs(NAME, runner.requests(NAME)[0])
    made = model.generate(**inputs, max_new_tokens=NUM_NEW)
    found: list[int] = made[0, inputs["input_ids"].shape[1] :].tolist()
    return found


@pytest.fixture(scope="module")
def plain(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], Any]:
    """Return a folder, how it answers by itself, and its tokenizer."""
    folder = tmp_path_factory.mktemp("authors") / NAME
    shutil.copytree(saved(NAME), folder)
    written(folder, {})
    with load(folder) as model:
        tokenizer = model.runner._tokenizer
    return folder, ours(folder, ignore_eos=True), tokenizer


CASES: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "suppress_tokens": lambda ids: {"suppress_tokens": [ids[0], ids[2]]},
    "begin_suppress_tokens": lambda ids: {"begin_suppress_tokens": [ids[0], ids[1]]},
    "bad_words_ids": lambda ids: {"bad_words_ids": [[ids[0], ids[1]], [ids[2]], [7, 8, 9]]},
    "sequence_bias": lambda ids: {"sequence_bias": [[[ids[0]], -2.5], [[ids[1], 5], 9.0]]},
    "sequence_bias and a penalty": lambda ids: {
        "sequence_bias": [[[ids[0]], 0.5], [[11], 0.25], [[ids[0], ids[1]], -1.0]],
        "repetition_penalty": 1.4,
    },
    "runs of 1": lambda ids: {"no_repeat_ngram_size": 1},
    "runs of 2": lambda ids: {"no_repeat_ngram_size": 2, "sequence_bias": [[[ids[0]], 3.0]]},
    "everything": lambda ids: {
        "suppress_tokens": [ids[0]],
        "begin_suppress_tokens": [ids[1]],
        "bad_words_ids": [[ids[2]], [ids[3], ids[4]]],
        "sequence_bias": [[[ids[5]], 1.0]],
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.1,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_equal_those_of_generate(case: str, plain: Any) -> None:
    folder, ids, tokenizer = plain
    written(folder, CASES[case](ids))
    found = ours(folder, ignore_eos=True)
    assert found == theirs(folder, sorted(tokenizer.banned_ids))
    assert found != ids, "the file changes something"


@pytest.mark.parametrize("field", ["min_new_tokens", "min_length"])
def test_the_length_of_an_answer_equals_that_of_generate(field: str, plain: Any) -> None:
    folder, ids, tokenizer = plain
    end = ids[3]
    num_prompt = runner.reference_inputs(NAME, runner.requests(NAME)[0])["input_ids"].shape[1]
    lengths = []
    for least in (0, 9):
        value = least + num_prompt if field == "min_length" else least
        written(folder, {"eos_token_id": end, field: value})
        with load(folder) as model:
            ends = sorted(model.runner._tokenizer.eos_ids)
        found = ours(folder)
        expected = theirs(folder, sorted(tokenizer.banned_ids), ends)
        assert found == expected
        lengths.append(len(found))
    assert lengths[0] < 9 < lengths[1] + 1
