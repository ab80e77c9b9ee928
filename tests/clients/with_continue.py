"""Continue's agent for terminals, as ``cn --print`` with a model of OpenAI's API.

It has no option for pictures; only its editor extensions send them.
"""

import json

import pytest
from conftest import environment, of_node, output_of

MODELS = ["mock"]
REPLIES = [
    {
        "to": "Which number is in the file",
        "text": "I read it.",
        "calls": [{"name": "Read", "arguments": {"filepath": "number.txt"}}],
    },
    {"to": "4711", "text": "The number is 4711."},
    {
        "to": "Write a file",
        "calls": [{"name": "Write", "arguments": {"filepath": "new.txt", "content": "hello"}}],
    },
    {"to": "Successfully created", "text": "It is written."},
]


@pytest.fixture
def cn(server, tmp_path):
    """Return a function that runs the agent in a folder and returns what it prints."""
    model = {
        "name": "mock",
        "provider": "openai",
        "model": "mock",
        "apiBase": server.v1,
        "apiKey": "none",
        "roles": ["chat"],
        "capabilities": ["tool_use"],
    }
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    config = {"name": "local", "version": "1.0.0", "schema": "v1", "models": [model]}
    (home / "config.yaml").write_text(json.dumps(config))  # which is YAML, too
    env = environment(home, CONTINUE_TELEMETRY_ENABLED="0", CONTINUE_CLI_ENABLE_TELEMETRY="0")

    def run(*words):
        options = ("--config", str(home / "config.yaml"), "--auto", "--print")
        return output_of(of_node("cn"), *options, *words, cwd=work, env=env).strip()

    run.work = work
    return run


def test_a_file_is_read_and_its_content_is_answered(cn):
    (cn.work / "number.txt").write_text("4711\n")
    assert cn("Which number is in the file?") == "The number is 4711."


def test_a_file_is_written(cn):
    assert cn("Write a file.") == "It is written."
    assert (cn.work / "new.txt").read_text() == "hello"


def test_a_conversation_continues(cn):
    assert cn("One.") == "One."
    assert cn("--resume", "Two.") == "Two."
