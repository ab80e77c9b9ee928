"""The command ``llm``, with the server as one of its models for OpenAI's API."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPLIES = [
    {"to": "which version", "calls": [{"name": "llm_version", "arguments": {}}]},
    {"to": "0.", "text": "That is the version."},
    {"to": "as JSON", "text": '{"colour": "red", "count": 3}'},
]
CONFIG = """
- model_id: demo
  model_name: demo
  api_base: {url}
  vision: true
- model_id: mock
  model_name: mock
  api_base: {url}
  vision: true
  supports_schema: true
  supports_tools: true
"""


@pytest.fixture(scope="module")
def llm(server, tmp_path_factory):
    """Return a function that runs the command and returns what it prints."""
    folder = tmp_path_factory.mktemp("llm")
    (folder / "extra-openai-models.yaml").write_text(CONFIG.format(url=server.v1))

    def run(*words, said=""):
        command = [str(Path(sys.executable).with_name("llm")), *words]
        own = {"LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"}
        done = subprocess.run(
            command, input=said, env=os.environ | own, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    return run


@pytest.mark.parametrize("options", [(), ("--no-stream",)])
def test_an_image_is_answered(llm, png, tmp_path, options):
    (tmp_path / "shapes.png").write_bytes(png)
    words = ("What is in this picture?", "-m", "demo", "-a", str(tmp_path / "shapes.png"))
    assert "circle" in llm(*words, *options, "-o", "temperature", "0")


def test_a_conversation_continues(llm):
    assert llm("one", "-m", "mock", "-s", "Be brief.") == "one"
    assert llm("two", "-c") == "two"


@pytest.mark.parametrize("options", [(), ("--no-stream",)])
def test_an_answer_matches_a_schema(llm, options):
    answer = llm("Tell it as JSON.", "-m", "mock", "--schema", "colour, count int", *options)
    assert answer == '{"colour": "red", "count": 3}'


@pytest.mark.parametrize("options", [(), ("--no-stream",)])
def test_the_client_runs_a_tool_and_reads_its_result(llm, options):
    words = ("Say which version it is.", "-m", "mock", "-T", "llm_version")
    assert llm(*words, *options) == "That is the version."
