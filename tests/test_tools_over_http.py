"""Tools over HTTP: server processes, the real compiler, the official clients, text and images."""

import base64
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import anthropic
import openai
import pytest

pytest.importorskip("llguidance")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.posix

DEMO = Path(__file__).parents[1] / "plugins/vlmkit-demo/src/vlmkit_demo"
SHAPES = (DEMO / "pictures/shapes.png").read_bytes()
# The demo's own way to write a conversation, and a common one to write tools and calls.
TEMPLATE = """{% macro say(content) %}{% if content is string %}{{ content }}{% else %}
{%- for part in content %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}
{%- endif %}{% endmacro -%}
{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for message in messages %}<|{{ 'user' if message.role == 'tool' else message.role }}|>
{{- say(message.content) }}
{%- for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
SCHEMA = {
    "type": "object",
    "properties": {
        "shape": {"enum": ["circle", "square"]},
        "note": {"type": "string", "maxLength": 8},
    },
    "required": ["shape", "note"],
    "additionalProperties": False,
}
TOOL = {"name": "mark", "description": "Marks.", "input_schema": SCHEMA}
IMAGE = {
    "type": "image",
    "source": {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(SHAPES).decode(),
    },
}


@pytest.fixture(scope="module", params=["mock", "demo"])
def served(request, tmp_path_factory):
    """A model's name, and the address of a process that serves it."""
    folder = tmp_path_factory.mktemp("server")
    log, template = folder / "log", folder / "template.jinja"
    template.write_text(TEMPLATE)
    command = [sys.executable, "-m", "vlmkit", "serve", request.param, "--port", "0"]
    if request.param == "demo":
        command += ["--set", "engine.use=onnx", "--set", f"tokenizer.chat_template={template}"]
    with log.open("wb") as log_file, subprocess.Popen(command, stderr=log_file) as process:
        try:
            deadline = time.monotonic() + 600
            while f"'{request.param}' is ready\n" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield request.param, re.search(r"listening on (\S+)", log.read_text())[1]
        finally:
            process.kill()


@pytest.fixture
def client(served):
    with anthropic.Anthropic(base_url=served[1], api_key="none", max_retries=0) as client:
        yield client


def options(served, **more):
    never = {"265": -100.0} if served[0] == "mock" else {}  # the mock's mark of a thought
    return {
        "model": served[0],
        "max_tokens": 250,
        "tools": [TOOL],
        "extra_body": {"temperature": 1.0, "logit_bias": never, **more},
    }


def check(call):
    assert call.name == "mark"
    assert set(call.input) == {"shape", "note"}
    assert call.input["shape"] in ("circle", "square")
    assert len(call.input["note"]) <= 8


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "mark", "disable_parallel_tool_use": True},
    ],
)
def test_a_required_tool_call_matches_its_schema(served, client, choice):
    shown = [IMAGE, {"type": "text", "text": "What is in this picture?"}]
    for seed in range(4):
        fields = options(served, seed=seed) | {
            "messages": [{"role": "user", "content": shown}],
            "tool_choice": choice,
        }
        whole = client.messages.create(**fields)
        with client.messages.stream(**fields) as stream:
            streamed = stream.get_final_message()
        assert whole.stop_reason == streamed.stop_reason == "tool_use"
        (one,), (other,) = whole.content, streamed.content
        check(one)
        assert (one.name, one.input) == (other.name, other.input)


def test_tool_results_with_images_are_read_and_counted(served, client):
    fields = options(served, seed=1)
    first_turn = {"role": "user", "content": "Mark it."}
    first = client.messages.create(
        **fields, messages=[first_turn], tool_choice={"type": "tool", "name": "mark"}
    )
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [IMAGE]}
        for block in first.content
        if block.type == "tool_use"
    ]
    assert results
    messages = [first_turn, {"role": "assistant", "content": first.content}]
    messages.append({"role": "user", "content": results})
    after = client.messages.create(
        **fields | {"max_tokens": 16}, messages=messages, tool_choice={"type": "none"}
    )
    assert {block.type for block in after.content} <= {"text", "thinking"}
    counted = client.messages.count_tokens(model=served[0], messages=messages, tools=[TOOL])
    assert counted.input_tokens == after.usage.input_tokens + after.usage.cache_read_input_tokens


def test_both_apis_make_the_same_tool_calls(served, client):
    messages = [{"role": "user", "content": "Mark it."}]
    own = client.messages.create(
        **options(served, seed=3), messages=messages, tool_choice={"type": "any"}
    )
    function = {"name": "mark", "description": "Marks.", "parameters": SCHEMA}
    fields = options(served, seed=3) | {"tools": [{"type": "function", "function": function}]}
    with openai.OpenAI(base_url=f"{served[1]}/v1", api_key="none", max_retries=0) as other:
        done = other.chat.completions.create(**fields, messages=messages, tool_choice="required")
    called = [
        (call.function.name, json.loads(call.function.arguments))
        for call in done.choices[0].message.tool_calls
    ]
    assert called == [(block.name, block.input) for block in own.content if block.type != "text"]
