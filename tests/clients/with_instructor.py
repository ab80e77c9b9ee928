"""Instructor, in its ways to get what a schema describes from a server of OpenAI's API."""

import asyncio
import json
from collections.abc import Iterable

import instructor
import pytest
from instructor import Mode
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field


def calls(name, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


SHAPES = {"colour": "red", "count": 3}
IN_TURN = {"tasks": [{"count": 1}, {"count": 2}]}
REPLIES = [
    {"to": "less than or equal to 5", "text": '{"count": 3}'} | calls("Few", count=3),
    {"to": "Which shapes", "text": json.dumps(SHAPES)} | calls("Shapes", **SHAPES),
    {"to": "Bit by bit", "text": json.dumps(SHAPES)} | calls("PartialShapes", **SHAPES),
    {"to": "How many", "text": '{"count": 7}'} | calls("Few", count=7),
    {"to": "Each shape", "text": json.dumps(IN_TURN)} | calls("IterableFew", **IN_TURN),
]
MODES = [Mode.TOOLS, Mode.JSON, Mode.JSON_SCHEMA]


class Shapes(BaseModel):
    """What shapes there are."""

    colour: str
    count: int


class Few(BaseModel):
    """How many there are."""

    count: int = Field(le=5, json_schema_extra={"maximum": 9})


@pytest.fixture(scope="module")
def client(server):
    with OpenAI(base_url=server.v1, api_key="none") as client:
        yield client


def asked(text):
    return {"model": "mock", "messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_returns_what_its_schema_describes_whole_and_in_parts(client, mode):
    asker = instructor.from_openai(client, mode=mode)
    whole = asker.create(response_model=Shapes, **asked("Which shapes?"))
    assert whole.model_dump() == SHAPES
    parts = list(asker.create_partial(response_model=Shapes, **asked("Bit by bit!")))
    assert len(parts) > 1
    assert parts[-1].model_dump() == SHAPES


@pytest.mark.parametrize("mode", MODES)
def test_an_invalid_answer_is_requested_again(client, mode):
    asker = instructor.from_openai(client, mode=mode)
    assert asker.create(response_model=Few, max_retries=2, **asked("How many?")).count == 3


def test_several_objects_are_streamed_one_by_one(client):
    asker = instructor.from_openai(client)
    found = asker.create_iterable(response_model=Few, **asked("Each shape?"))
    assert [each.count for each in found] == [1, 2]


def test_a_question_contains_an_image(client, png, tmp_path):
    (tmp_path / "shapes.png").write_bytes(png)
    asker = instructor.from_openai(client, mode=Mode.JSON_SCHEMA)
    content = ["Which shapes?", instructor.Image.from_path(tmp_path / "shapes.png")]
    shapes, raw = asker.create_with_completion(response_model=Shapes, **asked(content))
    assert shapes.colour == "red"
    assert raw.usage.prompt_tokens_details.image_tokens > 0


def test_concurrent_requests_are_answered(server):
    async def answers():
        async with AsyncOpenAI(base_url=server.v1, api_key="none") as client:
            asker = instructor.from_openai(client)
            questions = [
                asker.create(response_model=Shapes, **asked("Which shapes?")) for _ in range(8)
            ]
            return [each.model_dump() for each in await asyncio.gather(*questions)]

    assert asyncio.run(answers()) == [SHAPES] * 8


def test_lists_are_returned_as_well(client):
    asker = instructor.from_openai(client)
    found = list(asker.create(response_model=Iterable[Few], **asked("Each shape?")))
    assert [each.count for each in found] == [1, 2]
