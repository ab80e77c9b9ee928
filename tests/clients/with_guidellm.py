"""guidellm, which measures servers, as ``guidellm run``; of what it reports, what is no time."""

import json
import sys
from pathlib import Path

import pytest
from conftest import PICTURE, environment, output_of

TOKENIZER = PICTURE.parents[1] / "checkpoint"
TEXTS = ["one", "two words", "three", "four"]


@pytest.fixture
def measured(server, tmp_path):
    """Return a function that measures something and returns the requests of the report."""

    def run(data, request_format, *, model="mock", **more):
        (tmp_path / "data.json").write_text(json.dumps(data))
        backend = {"kind": "openai_http", "target": server.url, "model": model}
        backend |= {"request_format": request_format} | more
        words = {
            "--backend": backend,
            "--data": {"kind": "json_file", "path": "data.json"},
            "--tokenizer": {"kind": "huggingface_auto", "model": TOKENIZER},
            "--profile": {"kind": "synchronous"},
            "--constraint": {"kind": "max_requests", "count": len(data)},
            "--output": {"kind": "json", "path": "told.json"},
        }
        said = [each for name, fields in words.items() for each in (name, joined(fields))]
        env = environment(tmp_path, HF_HUB_OFFLINE="1")
        command = str(Path(sys.executable).with_name("guidellm"))
        output_of(command, "run", *said, "--disable-console", cwd=tmp_path, env=env)
        (benchmark,) = json.loads((tmp_path / "told.json").read_text())["benchmarks"]
        requests = benchmark["requests"]
        assert (requests["errored"], requests["incomplete"]) == ([], [])
        return requests["successful"]

    return run


def joined(fields):
    return ",".join(f"{name}={value}" for name, value in fields.items())


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_answers_arrive_with_their_token_counts(measured, path, stream):
    found = measured([{"prompt": text} for text in TEXTS], path, stream=stream)
    assert sorted(each["output"] for each in found) == sorted(TEXTS)
    for each in found:  # a token of the mock is a byte, and one ends the answer
        assert each["output_metrics"]["text_tokens"] == len(each["output"]) + 1
        assert each["input_metrics"]["text_tokens"] >= len(each["output"])


def test_embedding_requests_are_measured(measured):
    found = measured([{"text": text} for text in TEXTS], "/v1/embeddings")
    assert len(found) == len(TEXTS)


def test_image_requests_are_measured(measured, data_url):
    data = [{"prompt": "What is in this picture?", "image": data_url}] * 2
    found = measured(data, "/v1/chat/completions", model="demo", max_tokens=60)
    assert len(found) == 2
    for each in found:
        assert "circle" in each["output"]
        assert each["input_metrics"]["image_tokens"] == 64
