"""Random models that must call a tool do so in their family's format and within its schema."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")

from transformers import PreTrainedTokenizerFast

import vlmkit
import zoo
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How the weather is.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 6},
                "days": {"enum": [1, 2]},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("family", "thinks"),
    [("qwen3", "<think>"), pytest.param("gpt_oss", "<|channel|>", marks=pytest.mark.slow)],
)
def test_all_of_a_hundred_tool_calls_parse_and_match_their_schema(family, thinks, tmp_path):
    zoo.save(family, tmp_path)
    think = PreTrainedTokenizerFast.from_pretrained(tmp_path).convert_tokens_to_ids(thinks)
    params = SamplingParams(temperature=1.0, max_tokens=300, logit_bias={think: -100.0})
    with vlmkit.load(tmp_path, engine={"use": "torch"}) as model:
        requests = [
            Request(
                messages=[Message.of("user", "hello")],
                tools=[TOOL],
                tool_choice="required",
                parallel_tool_calls=False,
                params=params.replaced({"seed": seed, "n": 25}),
            )
            for seed in range(4)
        ]
        streams = [model.submit(request) for request in requests]
        choices = [choice for stream in streams for choice in stream.result().choices]
    assert len(choices) == 100
    for choice in choices:
        assert choice.finish_reason == "stop"
        (call,) = choice.tool_calls
        arguments = json.loads(call.arguments)
        assert call.name == "weather"
        assert set(arguments) == {"city", "days"}
        assert len(arguments["city"]) <= 6
        assert arguments["days"] in (1, 2)
