"""aider, an agent that edits files, as ``aider --message`` with a model of OpenAI's API."""

import json
import sys
from pathlib import Path

import pytest
from conftest import environment, output_of

MODELS = ["mock"]
REPLIES = [
    {"to": "Write hello", "text": "new.txt\n```\nhello\n```\n"},
    {
        "to": "Say bye",
        "text": "old.txt\n```text\n<<<<<<< SEARCH\nhello\n=======\nbye\n>>>>>>> REPLACE\n```\n",
    },
]
METADATA = {
    "openai/mock": {
        "max_input_tokens": 30_000,
        "max_output_tokens": 2_000,
        "litellm_provider": "openai",
        "mode": "chat",
        "supports_vision": True,
    }
}


@pytest.fixture
def aider(server, tmp_path):
    """Return a function that has aider work in a folder and returns what it prints."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (home / "metadata.json").write_text(json.dumps(METADATA))
    fixed = [
        *("--model", "openai/mock", "--openai-api-base", server.v1, "--openai-api-key", "none"),
        *("--model-metadata-file", str(home / "metadata.json"), "--map-tokens", "0"),
        *("--no-analytics", "--no-check-update", "--no-show-model-warnings", "--no-git"),
        *("--no-show-release-notes", "--no-gitignore", "--yes-always", "--no-pretty"),
    ]
    command = str(Path(sys.executable).with_name("aider"))
    env = environment(home, LITELLM_LOCAL_MODEL_COST_MAP="True")

    def run(message, *words):
        return output_of(command, *fixed, "--message", message, *words, cwd=work, env=env)

    run.work = work
    return run


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_file_is_written(aider, stream):
    told = aider("Write hello into new.txt.", "--edit-format", "whole", stream)
    assert "Applied edit to new.txt" in told
    assert (aider.work / "new.txt").read_text() == "hello\n"


def test_a_file_is_changed_as_the_answer_states(aider):
    (aider.work / "old.txt").write_text("one\nhello\ntwo\n")
    told = aider("Say bye.", "--edit-format", "diff", "old.txt")
    assert "Applied edit to old.txt" in told
    assert (aider.work / "old.txt").read_text() == "one\nbye\ntwo\n"


def test_an_image_arrives_unchanged(aider, png, described):
    (aider.work / "shapes.png").write_bytes(png)
    assert described in aider("Describe it.", "--edit-format", "ask", "shapes.png")
