"""Codex, OpenAI's agent for terminals, as ``codex exec`` with a provider of the Responses API."""

import json

import pytest
from conftest import environment, of_node, output_of

MODELS = ["mock"]
ENGINE = {"max_sequence_tokens": 131_072, "capacity_tokens": 262_144}  # bytes of long instructions
REPLIES = [
    {
        "to": "Which number is in the file",
        "text": "I read it.",
        "calls": [{"name": "exec_command", "arguments": {"cmd": "cat number.txt"}}],
    },
    {"to": "4711", "text": "The number is 4711."},
    {"to": "Compare", "reasoning": "One, two.", "text": "They differ."},
    {"to": "Fail", "fail_at_token": 0},
]
CONFIG = """
model = "mock"
model_provider = "vlmkit"
[analytics]
enabled = false
[model_providers.vlmkit]
name = "vlmkit"
base_url = "{url}"
env_key = "VLMKIT_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


@pytest.fixture
def codex(server, tmp_path):
    """Return a function that runs Codex in a folder and returns its events."""
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".codex").mkdir(parents=True)
    (home / ".codex/config.toml").write_text(CONFIG.format(url=server.v1))
    work.mkdir()

    def run(*words, command=("exec",), code=0):
        options = ("--skip-git-repo-check", "--json")
        env = environment(home, VLMKIT_KEY="none")
        lines = output_of(
            of_node("codex"), *command, *options, *words, cwd=work, env=env, code=code
        )
        return [json.loads(line) for line in lines.splitlines()]

    run.work = work
    return run


def items(events, kind):
    return [
        event["item"]
        for event in events
        if event["type"] == "item.completed" and event["item"]["type"] == kind
    ]


def test_a_command_runs_and_its_output_is_read(codex):
    (codex.work / "number.txt").write_text("4711\n")
    events = codex("Which number is in the file?")
    (command,) = items(events, "command_execution")
    assert (command["aggregated_output"], command["exit_code"]) == ("4711\n", 0)
    told = [item["text"] for item in items(events, "agent_message")]
    assert told == ["I read it.", "The number is 4711."]
    assert events[-1]["type"] == "turn.completed"
    assert events[-1]["usage"]["cached_input_tokens"] > 0


def test_an_image_arrives_unchanged(codex, png, described):
    (codex.work / "shapes.png").write_bytes(png)
    (answer,) = items(codex("Describe it.", "--image", "shapes.png"), "agent_message")
    assert described in answer["text"]


def test_an_error_is_shown_with_the_message_of_the_server(codex):
    events = codex("Fail now.", code=1)
    assert events[-1]["type"] == "turn.failed"
    assert events[-1]["error"]["message"].endswith("fail at token 0")


def test_reasoning_is_counted_and_sent_back(codex):
    first = codex("Compare them.")
    assert [item["text"] for item in items(first, "agent_message")] == ["They differ."]
    assert first[-1]["usage"]["reasoning_output_tokens"] > 0
    second = codex("And then?", command=("exec", "resume", "--last"))
    assert [item["text"] for item in items(second, "agent_message")] == ["And then?"]
