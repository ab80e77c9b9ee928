"""``vlmkit ask --schema`` constrains answers to a JSON schema from a file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlmkit.cli import run

RECEIPT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Receipt",
    "type": "object",
    "properties": {
        "total_cents": {"description": "the sum", "type": "integer", "minimum": 0, "maximum": 999},
        "shop": {"type": "string", "maxLength": 9},
        "date": {"type": "string", "format": "date"},
        "is_paid": {"type": "boolean"},
    },
    "required": ["total_cents", "shop", "date", "is_paid"],
    "additionalProperties": False,
}

Write = Callable[[Any], str]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "red.png"
    Image.new("RGB", (40, 30), "red").save(file)
    return file


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a schema to a file as other programs do, with a mark and with white space."""

    def write(schema: Any) -> str:
        file = tmp_path / "schema.json"
        file.write_text(json.dumps(schema, indent=8), encoding="utf-8-sig")
        return str(file)

    return write


def is_receipt(text: str) -> bool:
    found = json.loads(text)
    return list(found) == list(RECEIPT["properties"]) and 0 <= found["total_cents"] <= 999


def test_the_answer_is_json_of_the_schema(
    write: Write, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["ask", "mock", "What?", "--image", str(image), "--schema", write(RECEIPT)]
    assert run(arguments) == 0
    shown = capsys.readouterr()
    assert is_receipt(shown.out)
    assert shown.err == ""
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert is_receipt(report["text"])
    assert report["finish_reason"] == "stop"


def test_a_question_without_an_image_takes_a_schema(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ask", "mock", "blue", "--schema", write({"enum": ["red", "blue"]})]) == 0
    assert capsys.readouterr().out in ('"red"\n', '"blue"\n')


def test_each_line_has_json_of_the_schema_and_broken_images_are_errors(
    write: Write, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (broken := tmp_path / "broken.png").write_text("no image")
    images = ["--image", str(broken), str(image), str(image)]
    assert run(["ask", "mock", "What?", *images, "--jsonl", "--schema", write(RECEIPT)]) == 1
    shown = capsys.readouterr()
    first, *lines = [json.loads(line) for line in shown.out.splitlines()]
    assert first["error"]["code"] == "invalid_image"
    assert len(lines) == 2
    assert all(is_receipt(line["text"]) for line in lines)
    assert shown.err == "3 images, 1 failed\n"


@pytest.mark.parametrize("lines", [[], ["--jsonl"]])
@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"type": "strin"}, "the constraint cannot be compiled"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"$ref": "https://example.com/schema.json"}, "the constraint cannot be compiled"),
    ],
)
def test_a_schema_that_cannot_be_enforced_in_full_is_one_error(
    schema: Any,
    error: str,
    lines: list[str],
    write: Write,
    image: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    images = ["--image", str(image), "--image", str(image)]
    assert run(["ask", "mock", "What?", *images, "--schema", write(schema), *lines]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [line.partition(": ")[0] for line in shown.err.splitlines()][:1] == ["error"]
    assert shown.err.count("error: ") == 1
    assert error in shown.err


def test_an_answer_cut_off_within_its_schema_says_so(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ask", "mock", "What?", "-m", "5", "--schema", write(RECEIPT)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("{")
    assert "stopped at the limit of 5 tokens" in shown.err
