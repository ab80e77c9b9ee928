"""``vlmkit verify`` finds differences between encoders and between answers, and their size."""

import dataclasses
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from vlmkit.cli import run
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.step import StepOutput
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_testing.verify.answers import agreements
from vlmkit_testing.verify.features import Difference, differences, levels_of

ENCODERS = """
import dataclasses
from pathlib import Path
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit_mock.vision_encoder import MockVisionEncoder

VLMKIT_API = 1
LOG = Path(__file__).with_suffix(".log")


class Other(MockVisionEncoder):
    def __init__(self, name, change):
        super().__init__()
        self.name, self.change = name, change
        self.note("opened")

    def note(self, what):
        with LOG.open("a") as log:
            log.write(f"{self.name} {what}\\n")

    def encode(self, slots):
        self.note(f"encodes {len(slots)}")
        return [self.change(features) for features in super().encode(slots)]

    def close(self):
        self.note("closed")
        super().close()


def scaled(by):
    return lambda f: dataclasses.replace(f, embeddings=f.embeddings * by)


def without_extra(f):
    return dataclasses.replace(f, extra={})


def longer(f):
    return dataclasses.replace(f, embeddings=f.embeddings[:-1])


def poisoned(f):
    return dataclasses.replace(f, embeddings=f.embeddings * float("nan"))


def broken(f):
    raise RuntimeError("the words of a library")


CHANGES = {
    "same": scaled(1.0), "near": scaled(1.003), "far": scaled(-1.0), "bare": without_extra,
    "short": longer, "poisoned": poisoned, "broken": broken,
}


@hookimpl
def vlmkit_register_media_encoders(registry):
    for name, change in CHANGES.items():
        registry.add(
            name,
            lambda context, name=name, change=change: Other(name, change),
            cannot_serve=lambda checkpoint: None,
            why_not=lambda name=name: None if name in OFFERED else "it was not offered",
            priority=-1,
        )
"""

Shown = pytest.CaptureFixture[str]
OptionsFor = Callable[..., list[str]]


@pytest.fixture
def options_for(tmp_path: Path) -> OptionsFor:
    """Return a function that makes the options to add the named encoders to the mock's."""

    def options_for(*names: str) -> list[str]:
        file = tmp_path / "others.py"
        file.write_text(f"OFFERED = {names!r}\n{ENCODERS}")
        return ["--set", f"plugins=['{file}']"]

    return options_for


def verified(capsys: Shown, *arguments: str, code: int = 0) -> Any:
    assert run(["verify", "mock", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


# Encoders.


def test_encoders_that_agree_pass_with_every_level_compared(
    options_for: OptionsFor, capsys: Shown
) -> None:
    report = verified(capsys, *options_for("same"))
    (pair,) = report["encoders"]["pairs"]
    assert (pair["one"], pair["other"]) == ("mock", "same")
    assert [level["level"] for level in pair["levels"]] == ["embeddings", "digest", "size"]
    for level in pair["levels"]:
        assert level["largest_absolute"] == level["largest_relative"] == 0
        assert level["least_cosine"] == pytest.approx(1.0)
    assert report["encoders_agree"]


def test_all_encoders_that_can_serve_are_compared_in_pairs(
    options_for: OptionsFor, capsys: Shown
) -> None:
    report = verified(capsys, *options_for("same", "near"))
    pairs = [(pair["one"], pair["other"]) for pair in report["encoders"]["pairs"]]
    assert pairs == [("mock", "near"), ("mock", "same"), ("near", "same")]


def test_differences_are_reported_and_compared_with_the_tolerance(
    options_for: OptionsFor, capsys: Shown
) -> None:
    report = verified(capsys, *options_for("near"))
    level = report["encoders"]["pairs"][0]["levels"][0]
    assert level["largest_relative"] == pytest.approx(0.003 / 1.003, rel=1e-3)
    assert level["least_cosine"] == pytest.approx(1.0)
    report = verified(capsys, *options_for("near"), "--tolerance", "0.001", code=1)
    assert not report["encoders_agree"]


def test_differing_encoders_give_an_exit_code_and_a_row(
    options_for: OptionsFor, capsys: Shown
) -> None:
    assert run(["verify", "mock", *options_for("far")]) == 1
    shown = capsys.readouterr().out
    assert re.search(
        r"mock - far +embeddings +\d\.\d\de[+-]\d\d +2\.00e\+00 +-1\.0+ +differ", shown
    )
    assert re.search(r"mock - far +digest .* agree", shown)
    assert "quantised encoders differ more than others: see --tolerance" in shown


@pytest.mark.parametrize(
    ("name", "level", "problem"),
    [
        ("bare", "digest", "only one of the two has it"),
        ("poisoned", "embeddings", "some values are not finite"),
        ("short", "embeddings", "the shapes differ: [4, 8] and [3, 8]"),
    ],
)
def test_features_that_cannot_be_compared_are_reported(
    name: str, level: str, problem: str, options_for: OptionsFor, capsys: Shown
) -> None:
    report = verified(capsys, *options_for(name), code=1)
    problems = {d["level"]: d["problem"] for d in report["encoders"]["pairs"][0]["levels"]}
    assert problems[level] == problem
    assert run(["verify", "mock", *options_for(name)]) == 1
    assert problem in capsys.readouterr().out


def test_a_failing_encoder_is_reported_and_the_others_are_compared(
    options_for: OptionsFor, capsys: Shown
) -> None:
    options = options_for("broken", "same")
    report = verified(capsys, *options, code=1)
    assert report["encoders"]["names"] == ["mock", "same"]
    assert list(report["encoders"]["failures"]) == ["broken"]
    assert run(["verify", "mock", *options]) == 1
    shown = capsys.readouterr().out
    assert "encoder broken: media encoder 'broken' failed on these images" in shown
    assert "words of a library" not in shown


def test_encoders_are_loaded_one_at_a_time_and_get_all_images(
    options_for: OptionsFor, capsys: Shown, tmp_path: Path
) -> None:
    images = []
    for width in (20, 30):
        Image.new("RGB", (width, 20), "red").save(tmp_path / f"{width}.png")
        images += ["--image", str(tmp_path / f"{width}.png")]
    verified(capsys, *options_for("same", "broken", "near"), *images, code=1)
    lines = (tmp_path / "others.log").read_text().splitlines()
    each = ("opened", "encodes 2", "closed")
    names = ("broken", "near", "same")
    assert lines == [f"{name} {what}" for name in names for what in each]


def test_only_the_named_encoders_are_compared(options_for: OptionsFor, capsys: Shown) -> None:
    options = [*options_for("same", "near", "far"), "--encoder", "same", "--encoder", "near"]
    report = verified(capsys, *options)
    assert report["encoders"]["names"] == ["same", "near"]


@pytest.mark.parametrize(
    ("names", "code", "error"),
    [
        (["same"], 2, "one encoder has nothing to agree with"),
        (["same", "same"], 2, "one encoder has nothing to agree with"),
        (["same", "sam"], 2, "no installed plugin provides media encoder 'sam'"),
        (["same", "far"], 1, "media encoder 'far' from"),
    ],
)
def test_invalid_encoder_options_give_an_error(
    names: list[str], code: int, error: str, options_for: OptionsFor, capsys: Shown, tmp_path: Path
) -> None:
    chosen = [word for name in names for word in ("--encoder", name)]
    assert run(["verify", "mock", *options_for("same"), *chosen]) == code
    assert error in capsys.readouterr().err
    assert not (tmp_path / "others.log").exists()


def test_a_single_encoder_is_reported_without_a_comparison(capsys: Shown) -> None:
    assert run(["verify", "mock"]) == 0
    assert "encoder mock: nothing else to compare it with" in capsys.readouterr().out


# Answers.


def test_agreeing_answers_are_reported(capsys: Shown) -> None:
    report = verified(capsys, "--prompt", "what is in this picture?")
    cached, batch = report["answers"]
    assert (cached["way"], batch["way"]) == ("cached", "batch")
    assert cached["agrees"]
    assert batch["agrees"]
    assert cached["num_cached_tokens"] > 0
    assert (batch["num_cached_tokens"], batch["num_answers"]) == (0, 3)


STEP_S = 0.01
"""Long enough for requests that are submitted together to run in one batch."""


class DependsOnCacheOrBatch(MockEngine):
    """Answers differently from a cached prefix, or in a batch."""

    def __init__(self, *, when: str, claims: bool) -> None:
        super().__init__()
        self.when = when
        self._limits = dataclasses.replace(self._limits, is_batch_invariant=claims)

    def forward(self, items: Any) -> StepOutput:
        time.sleep(STEP_S)
        output = super().forward(items)
        rows: Any = output.logits
        wanted = [item for item in items if item.num_rows]
        if not wanted:
            return output
        for row, item in zip(rows, wanted, strict=True):
            is_cached = self.when == "cached" and item.sequence.num_cached_tokens
            is_in_batch = self.when == "batch" and len(self._states) > 1
            if (is_cached or is_in_batch) and len(item.sequence.output_ids) == 2:
                row[:] = 0.0
                row[65] = 9.0
        return output


@pytest.mark.parametrize("claims", [True, False])
@pytest.mark.parametrize("way", ["cached", "batch"])
def test_the_first_difference_of_answers_is_found(way: str, claims: bool) -> None:
    engine = DependsOnCacheOrBatch(when=way, claims=claims)
    with Model(Pipeline(tokenizer=MockTokenizer(), engine=engine)) as model:
        found = {a.way: a for a in agreements(model.runner, "what is this? " * 4, [], max_tokens=8)}
    other = {"cached": "batch", "batch": "cached"}[way]
    assert set(found[way].first_differences) == {2}
    assert not found[way].agrees
    assert found[way].is_sound is not claims
    assert found[other].agrees


def test_a_text_model_is_verified_without_images(
    capsys: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "blind.py"
    file.write_text(
        "from vlmkit.plugins.hookspecs import hookimpl\nfrom vlmkit_mock.engine import MockEngine\n"
        "from vlmkit_mock.tokenizer import MockTokenizer\nVLMKIT_API = 1\n"
        "@hookimpl\ndef vlmkit_register_tokenizers(registry):\n"
        "    registry.add('t', lambda c: MockTokenizer())\n"
        "@hookimpl\ndef vlmkit_register_engines(registry):\n"
        "    registry.add('e', lambda c: MockEngine())\n"
    )
    (tmp_path / "config.json").write_text("{}")
    sets = [f"plugins=['{file}']", "tokenizer.use=t", "engine.use=e"]
    arguments = [word for one in sets for word in ("--set", one)]
    assert run(["verify", str(tmp_path), *arguments]) == 0
    shown = capsys.readouterr().out
    assert "encoders: this model takes no images" in shown
    assert shown.count("the same tokens") == 2


# Measures of difference.

ROWS = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-1e3, 1e3)
)


@given(rows=ROWS)
def test_equal_rows_have_no_difference(rows: Any) -> None:
    (found,) = differences([{"embeddings": rows}], [{"embeddings": rows.copy()}])
    assert (found.largest_absolute, found.largest_relative) == (0.0, 0.0)
    assert found.least_cosine == pytest.approx(1.0)
    assert found.is_within(0.0)


@given(rows=ROWS, row=st.integers(0, 4), column=st.integers(0, 5), by=st.floats(0.1, 10))
def test_a_changed_value_is_found_on_either_side(
    rows: Any, row: int, column: int, by: float
) -> None:
    other = rows.copy()
    place = (row % rows.shape[0], column % rows.shape[1])
    other[place] += by
    (one,) = differences([{"x": rows}], [{"x": other}])
    (back,) = differences([{"x": other}], [{"x": rows}])
    assert one.largest_absolute == pytest.approx(by, rel=1e-6)
    longest = max(np.linalg.norm(rows[place[0]]), np.linalg.norm(other[place[0]]))
    assert one.largest_relative == pytest.approx(by / longest, rel=1e-6)
    assert back.largest_relative == pytest.approx(one.largest_relative)


def test_the_largest_difference_of_all_images_counts() -> None:
    good, bad = np.ones((2, 3)), np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 2.0]])
    (found,) = differences([{"x": good}, {"x": good}], [{"x": good}, {"x": bad}])
    assert found.largest_absolute == 1.0
    assert not found.is_within(0.1)


def test_a_row_of_zeros_agrees_with_zeros_only() -> None:
    zeros, ones = np.zeros((1, 3)), np.ones((1, 3))
    assert differences([{"x": zeros}], [{"x": zeros}]) == [Difference("x")]
    (found,) = differences([{"x": zeros}], [{"x": ones}])
    assert (found.largest_relative, found.least_cosine) == (1.0, 0.0)


class OnlyDlpack:
    """An array of an unknown library."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self.shape = rows.shape

    def __dlpack__(self, **options: Any) -> Any:
        return self._rows.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._rows.__dlpack_device__()


def test_arrays_of_any_library_become_rows() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    extra = {"flat": np.arange(3, dtype=np.uint8), "deep": rows[:, None, :]}
    levels = levels_of(MediaFeatures(2, OnlyDlpack(rows), extra))
    assert [levels[name].shape for name in ("embeddings", "flat", "deep")] == [
        (2, 3),
        (1, 3),
        (2, 3),
    ]
    assert all(level.dtype == np.float64 for level in levels.values())


@pytest.mark.torch
def test_tensors_in_half_precision_become_rows() -> None:
    torch = pytest.importorskip("torch")
    rows = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    levels = levels_of(MediaFeatures(1, rows))
    assert levels["embeddings"].tolist() == [[1.5, -2.0]]


# The how-to page.


def test_commands_of_the_how_to_page_run_on_the_mock(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/verify.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if "verify mock" in line]
    assert lines
    for line in lines:
        words = line.removeprefix("$ ").split()[1:]
        command = [sys.executable, "-m", "vlmkit", *words]
        subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
