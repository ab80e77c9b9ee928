"""opencode, an agent for terminals, as ``opencode run`` with a provider for OpenAI's API."""

import json

import pytest
from conftest import environment, of_node, output_of

MODELS = ["mock"]
ENGINE = {"max_sequence_tokens": 131_072, "capacity_tokens": 262_144}  # bytes of long instructions
REPLIES = [
    {
        "to": "Which number is in the file",
        "text": "I read it.",
        "calls": [{"name": "read", "arguments": {"filePath": "number.txt"}}],
    },
    {"to": "4711", "text": "The number is 4711."},
    {  # in the order of the schema
        "to": "Write a file",
        "calls": [{"name": "write", "arguments": {"content": "hello", "filePath": "new.txt"}}],
    },
    {"to": "Wrote file", "text": "It is written."},
    {"to": "Compare", "reasoning": "One, two.", "text": "They differ."},
]
SHOWN = {
    "attachment": True,
    "tool_call": True,
    "reasoning": True,
    "modalities": {"input": ["text", "image"], "output": ["text"]},
    "limit": {"context": 131_072, "output": 32_000},
}


@pytest.fixture
def opencode(server, tmp_path):
    """Return a function that runs opencode in a folder and returns its events."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "vlmkit",
        "options": {"baseURL": server.v1, "apiKey": "none"},
        "models": {"mock": SHOWN},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": "vlmkit/mock",
        "small_model": "vlmkit/mock",
        "provider": {"vlmkit": provider},
    }
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".config/opencode").mkdir(parents=True)
    (home / ".config/opencode/opencode.json").write_text(json.dumps(config))
    work.mkdir()
    env = environment(home, OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_AUTOUPDATE="1")

    def run(*words):
        lines = output_of(of_node("opencode"), "run", "--format", "json", *words, cwd=work, env=env)
        return [json.loads(line) for line in lines.splitlines()]

    run.work = work
    return run


def texts(events):
    return [event["part"]["text"] for event in events if event["type"] == "text"]


def test_a_file_is_read_and_its_content_is_answered(opencode):
    (opencode.work / "number.txt").write_text("4711\n")
    events = opencode("Which number is in the file?")
    (used,) = [event["part"] for event in events if event["type"] == "tool_use"]
    assert (used["tool"], used["state"]["status"]) == ("read", "completed")
    assert texts(events) == ["I read it.", "The number is 4711."]
    ends = [event["part"] for event in events if event["type"] == "step_finish"]
    assert [end["reason"] for end in ends] == ["tool-calls", "stop"]
    assert ends[1]["tokens"]["cache"]["read"] > 0


def test_a_file_is_written(opencode):
    events = opencode("Write a file.", "--auto")
    assert (opencode.work / "new.txt").read_text() == "hello"
    assert texts(events) == ["It is written."]


def test_an_image_arrives_unchanged(opencode, png, described):
    (opencode.work / "shapes.png").write_bytes(png)
    (answer,) = texts(opencode("Describe it.", "--file", "shapes.png"))
    assert described in answer


def test_thinking_is_shown_and_sent_back(opencode):
    events = opencode("Compare them.", "--thinking")
    (thought,) = [event["part"]["text"] for event in events if event["type"] == "reasoning"]
    assert (thought, texts(events)) == ("One, two.", ["They differ."])
    assert len(texts(opencode("And then?", "--continue"))) == 1
