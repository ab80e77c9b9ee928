"""Prompts of renderer processes equal those of threads, bit for bit, for every family."""

import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import PIL.Image
import pytest

import vlmkit
import zoo
from vlmkit.assembly.renderer import built
from vlmkit.config.renderer_plan import TextSide
from vlmkit.config.worker_plan import ModelFiles
from vlmkit.errors import ImageError, RequestError, VlmkitError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.running.prompting.prepared_images import PreparedImages
from vlmkit.running.prompting.prompt_builder import (
    BuiltPrompt,
    LocalPromptBuilder,
    ReusingPromptBuilder,
)
from vlmkit.running.prompting.renderers import messages
from vlmkit.running.prompting.renderers.pool import RendererPool, RendererPromptBuilder
from vlmkit.running.scheduling.decode_memory import DecodeMemoryLimiter
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.settings.plugins import PluginSettings
from vlmkit.types.image import Image
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.media import FilePart
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.request import Request
from vlmkit.types.tool_call import ToolCallPart
from vlmkit.wire.frames import Frame

pytest.importorskip("transformers")

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("llava_next", "gemma3")]
FAMILIES = ["qwen2_vl", *SLOW]
ROOM = DecodeMemoryLimiter(10**9, 2**40)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }
]


def plan(name: str, folder: Path, tokenizer: str) -> TextSide:
    return TextSide(
        plugins=PluginSettings(),
        reference=str(folder),
        files=ModelFiles.of(Checkpoint(name, folder)),
        model=name,
        tokenizer=(tokenizer, {}),
        media_loaders=[("image", {})],
        modalities=("text", "image"),
        limits=EngineLimits(
            vocab_size=10**6,
            max_sequence_tokens=10**6,
            max_sequences=1,
            capacity_tokens=10**6,
            max_chunk_tokens=1,
        ),
        bounds=PipelineSettings(),
        memory_bytes=4 * 2**30,
        num_threads=2,
    )


def file_of(width: int, height: int, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    noise = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    PIL.Image.fromarray(noise).save(content, kind)
    return content.getvalue()


def requests() -> list[Request]:
    one, two = Image.open(file_of(90, 61)), Image.open(file_of(200, 40, "JPEG"))
    close = ImagePart(one, ImageOptions(wanted_tokens=40))
    called = ToolCallPart("call_1", "look", json.dumps({"at": "it"}))
    turns = [
        Message("user", (ImagePart(one), TextPart("What is it?"), ImagePart(two))),
        Message("assistant", (TextPart("A picture."),)),
        Message("user", (close, TextPart("And this?"))),
    ]
    with_tool = [
        Message.of("user", "Look.", [two]),
        Message("assistant", (called,)),
        Message("tool", (TextPart("seen"),), "call_1"),
    ]
    broken = Message("user", (ImagePart(one), ImagePart(Image.open(file_of(64, 64)[:-60]))))
    return [
        Request(messages=turns),
        Request(messages=turns[:2], options=PromptOptions(continue_final_message=True)),
        Request(messages=with_tool, tools=TOOLS),
        Request(messages=[Message("user", (FilePart(file_of(50, 50)), TextPart("a file")))]),
        Request(messages=[Message("user", (FilePart(b"what is this"),))]),
        Request(text="word " * 5000),
        Request(messages=[broken]),
        Request(messages=[Message.of("user", "<|im_end|>" * 3000)]),
    ]


def outcome(
    prompts: LocalPromptBuilder | RendererPromptBuilder, request: Request
) -> BuiltPrompt | VlmkitError:
    try:
        return prompts.build(request, ROOM.lease("", 0))
    except VlmkitError as error:
        return error


def comparable(made: BuiltPrompt | VlmkitError) -> Any:
    """All that is known of a prompt but how long it took."""
    if isinstance(made, VlmkitError):
        facts = {name: getattr(made, name, None) for name in ("hint", "param", "code", "index")}
        return type(made), str(made), facts
    prompt = made.prompt
    slots = [
        (
            *(slot.start, slot.stop, slot.digest, slot.num_features, slot.kind, slot.transform),
            [
                (name, np.asarray(array).dtype, np.shape(array), np.asarray(array).tobytes())
                for name, array in slot.inputs.items()
            ],
        )
        for slot in prompt.media
    ]
    kept = (prompt.opens_reasoning, prompt.is_plain, prompt.place_format, prompt.channels)
    calling = msgspec.to_builtins(prompt.calling)
    return prompt.token_ids, slots, kept, calling, sorted(made.decodes)


def check(made: TextSide) -> None:
    here = built(made)
    pool = RendererPool(Frame(msgspec.msgpack.encode(made)), 1, 300.0)
    try:
        rendered = RendererPromptBuilder(here, pool)
        kinds = set()
        for request in requests():
            mine, theirs = outcome(here, request), outcome(rendered, request)
            assert comparable(mine) == comparable(theirs)
            kinds.add(type(theirs))
            if isinstance(mine, BuiltPrompt):
                place = ROOM.lease("", 0)
                mine, theirs = (
                    ReusingPromptBuilder(builder, PreparedImages(0)).tokens(request, place)
                    for builder in (here, rendered)
                )
                assert mine == theirs
        assert BuiltPrompt in kinds
        assert kinds & {ImageError, RequestError}
        assert not pool.num_lost
    finally:
        pool.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_rendered_prompts_of_a_family_equal_those_in_this_process(
    name: str, tmp_path: Path
) -> None:
    check(plan(name, zoo.save_processor(name, tmp_path), "hf"))


def test_rendered_prompts_of_the_mock_equal_those_in_this_process() -> None:
    check(plan("mock", vlmkit.fetch("mock").path, "mock"))


def test_every_field_of_a_request_is_sent_or_listed() -> None:
    """A field that is new must be sent, or be named here."""
    needless = ("continuations", "params", "constraint", "tool_choice", "parallel_tool_calls")
    needless += ("tenant", "account", "cache_salt", "priority", "id", "trace", "fields")
    needless += ("clamp_max_tokens", "strict_tools")
    assert {each.name for each in fields(Request)} == {*messages.SENT, *needless}


def test_a_tokenizer_that_cannot_be_built_fails_at_start() -> None:
    """The error has the message of the failing provider, and no process is left."""
    with pytest.raises(VlmkitError, match="nosuch"):
        RendererPool(
            Frame(msgspec.msgpack.encode(plan("mock", vlmkit.fetch("mock").path, "nosuch"))), 2, 9.0
        )
