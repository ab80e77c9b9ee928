"""LangChain's client and standard tests on a tiny Qwen 3, which vlmkit-torch runs.

Its weights are random, and its answers are noise. Tests whose answers must fit the question ask a
copy that is fine-tuned to repeat what the mock answers to them.
"""

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest
from conftest import serving
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from with_langchain import REPLIES

TESTS = Path(__file__).parents[1]
SAVE = "import sys, pathlib, zoo; zoo.save('qwen3', pathlib.Path(sys.argv[1]))"
TOKENS = """
import sys, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
print(*tokenizer.convert_tokens_to_ids(['"', "<think>"]))
"""
RECORDED = (
    "test_tool_calling",
    "test_tool_calling_with_no_arguments",
    "test_json_mode",
    "test_agent_loop",
)
UNICODE = "test_unicode_tool_call_integration"
FINE_TUNED = {*RECORDED, UNICODE, "test_tool_calling_async"}
"""Tests whose answers must fit the question."""


def run_in_server(*arguments):
    """Run Python in the server's environment, where models are made; return what it prints."""
    command = [os.environ["SERVER_PYTHON"], *map(str, arguments)]
    return subprocess.run(command, cwd=TESTS, check=True, stdout=subprocess.PIPE, text=True).stdout


class OnMock(ChatModelIntegrationTests):
    chat_model_class = ChatOpenAI
    chat_model_params = {}  # noqa: RUF012 - as it is there
    supports_json_mode = True


class RecordingTransport(httpx.HTTPTransport):
    """Records requests that are not streamed, with the messages that answer them."""

    def __init__(self):
        super().__init__()
        self.examples = []

    def handle_request(self, request):
        response = super().handle_request(request)
        body = json.loads(request.content)
        if not body.get("stream"):
            message = json.loads(response.read())["choices"][0]["message"]
            example = {"messages": body["messages"], "tools": body.get("tools"), "message": message}
            if example not in self.examples:
                self.examples.append(example)
        return response


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """What the mock answers to the tests."""
    transport, tests = RecordingTransport(), OnMock()
    with (
        serving(tmp_path_factory.mktemp("mock"), REPLIES, models=["mock"]) as server,
        httpx.Client(transport=transport) as client,
    ):
        model = ChatOpenAI(model="mock", base_url=server.v1, api_key="none", http_client=client)
        for name in RECORDED:
            getattr(tests, name)(model)
        getattr(tests, UNICODE)(model, tool_choice=None, force_tool_call=True)
    return transport.examples


@pytest.fixture(scope="module")
def folders(tmp_path_factory, examples):
    """The folders of the random model and of its fine-tuned copy."""
    parent = tmp_path_factory.mktemp("models")
    folder, tuned, recorded = parent / "qwen3", parent / "tuned", parent / "examples.json"
    recorded.write_text(json.dumps(examples))
    run_in_server("-c", SAVE, folder)
    run_in_server(TESTS / "clients/finetune.py", folder, recorded, tuned)
    return folder, tuned


@pytest.fixture(scope="module")
def server(folders, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), models=[*map(str, folders)]) as server:
        yield server


@pytest.fixture(scope="module")
def bias(folders):
    """What lets strings end within the limit, and never begins a thought."""
    quote, think = run_in_server("-c", TOKENS, folders[0]).split()
    return {quote: 4, think: -100}


class TestChatModel(ChatModelIntegrationTests):
    chat_model_class = ChatOpenAI
    own_params = {"stream_usage": True}  # noqa: RUF012 - as it is there
    supports_json_mode = True

    @pytest.fixture(autouse=True)
    def _ask_server(self, server, bias, monkeypatch, request):
        monkeypatch.setenv("OPENAI_BASE_URL", server.v1)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        noise = {"logit_bias": bias, "parallel_tool_calls": False, "seed": 1}
        self._own = {"model": "qwen3", "temperature": 1, "extra_body": noise}
        if request.node.originalname in FINE_TUNED:
            self._own = {"model": "tuned", "temperature": 0}

    @property
    def chat_model_params(self):
        return self._own | {"max_tokens": 150} | self.own_params


class TestResponses(TestChatModel):
    own_params = {"use_responses_api": True}  # noqa: RUF012
