"""Every one of many constrained answers is valid: server processes, the real compiler.

Every run requests a few answers of each kind. Slow runs request hundreds and print how many are
valid.
"""

import base64
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from vlmkit_mock import vocabulary as v

pytest.importorskip("llguidance")
pytestmark = pytest.mark.posix

DEMO = Path(__file__).parents[1] / "plugins/vlmkit-demo/src/vlmkit_demo"
SHAPES = base64.b64encode((DEMO / "pictures/shapes.png").read_bytes()).decode()
SHOWN = [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SHAPES}"}},
    {"type": "text", "text": "What is in this picture?"},
]


class Shape(BaseModel):
    """What a shape is, and nothing else."""

    model_config = ConfigDict(extra="forbid", strict=True)

    colour: Literal["red", "green", "blue"]
    note: Annotated[str, Field(max_length=8)]
    size: Annotated[float, Field(ge=0, le=1)] | None
    is_round: bool


class Picture(BaseModel):
    """The content of an image."""

    model_config = ConfigDict(extra="forbid", strict=True)

    shapes: Annotated[list[Shape], Field(min_length=1, max_length=2)]
    count: Annotated[int, Field(ge=0, le=99)]


FORM = {
    "type": "json_schema",
    "json_schema": {"name": "picture", "schema": Picture.model_json_schema(), "strict": True},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": Shape.model_json_schema()}}
    for name in ("mark", "erase")
]


@contextmanager
def serving(model, folder, *options):
    """Serve a model in a process of its own; yield a client."""
    log = folder / "log"
    command = [sys.executable, "-m", "vlmkit", "serve", str(model), "--port", "0", *options]
    with log.open("wb") as log_file, subprocess.Popen(command, stderr=log_file) as process:
        try:
            deadline = time.monotonic() + 600
            while "is ready\n" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            url = re.search(r"listening on (\S+)", log.read_text())[1]
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                yield client
        finally:
            process.kill()


def done(client, *, stream, **asked):
    """Return the whole answer, as the official client puts a stream of it together."""
    if not stream:
        return client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as events:
        return events.get_final_completion()


def many(job, cases):
    """Do a job for each case, a few at the same time."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(job, cases))


# JSON.


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("demo")
    with serving("demo", folder, "--set", "engine.use=onnx") as client:
        yield client


@pytest.mark.parametrize("num_each", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_json_of_the_demo_model_matches_its_schema(demo, num_each, capsys):
    def holds(case):
        stream, content, seed = case
        answer = done(
            demo,
            stream=stream,
            model="demo",
            messages=[{"role": "user", "content": content}],
            response_format=FORM,
            temperature=1.0,
            seed=seed,
        )
        assert answer.choices[0].finish_reason == "stop"
        Picture.model_validate_json(answer.choices[0].message.content)
        return case

    cases = [
        (stream, content, seed)
        for stream in (False, True)
        for content in ("What is there?", SHOWN)
        for seed in range(num_each)
    ]
    assert many(holds, cases) == cases
    with capsys.disabled():
        print(f"\nJSON of the demo model: {len(cases)} of {len(cases)}")


# Calls of tools.


@pytest.fixture(
    scope="module",
    params=["mock", pytest.param("qwen3", marks=[pytest.mark.torch, pytest.mark.slow])],
)
def caller(request, tmp_path_factory):
    """A model that calls when it likes, and does so often: its marks, and a client."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "mock":
        with serving("mock", folder) as client:
            yield {"call": v.CALL, "think": v.REASONING, "end": v.END}, client
        return
    pytest.importorskip("torch")
    from transformers import PreTrainedTokenizerFast

    import zoo

    zoo.save("qwen3", folder)
    spelled = {"call": "<tool_call>", "think": "<think>", "end": "<|im_end|>"}
    tokens = PreTrainedTokenizerFast.from_pretrained(folder)
    marks = {name: tokens.convert_tokens_to_ids(token) for name, token in spelled.items()}
    with serving(folder, folder, "--set", "engine.use=torch") as client:
        yield marks, client


CHOICES = ["auto", "required", {"type": "function", "function": {"name": "mark"}}]


@pytest.mark.parametrize("num_each", [1, pytest.param(15, marks=pytest.mark.slow)])
def test_tool_calls_name_offered_tools_and_match_their_schemas(caller, num_each, capsys):
    marks, client = caller
    model = client.models.list().data[0].id
    biases = {marks["think"]: -100.0, marks["call"]: 90.0, marks["end"]: 90.0}

    def calls(case):
        stream, choice, is_parallel, seed = case
        answer = done(
            client,
            stream=stream,
            model=model,
            messages=[{"role": "user", "content": "Mark what is there."}],
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=is_parallel,
            temperature=1.0,
            seed=seed,
            max_tokens=900,
            logit_bias={str(token_id): bias for token_id, bias in biases.items()},
        )
        (told,) = answer.choices
        found = told.message.tool_calls or []
        assert told.finish_reason == ("tool_calls" if found else "stop")
        assert found or choice == "auto"
        assert is_parallel or len(found) <= 1
        for call in found:
            assert call.function.name in (
                ("mark",) if isinstance(choice, dict) else ("mark", "erase")
            )
            Shape.model_validate_json(call.function.arguments)
        return len(found)

    cases = [
        (stream, choice, is_parallel, seed)
        for stream in (False, True)
        for choice in CHOICES
        for is_parallel in (False, True)
        for seed in range(num_each)
    ]
    found = many(calls, cases)
    with capsys.disabled():
        print(f"\n{model}: {sum(found)} of {sum(found)} calls in {len(cases)} answers")
    assert sum(found) >= 4 * num_each * 2
    assert num_each == 1 or sum(found) >= 100
