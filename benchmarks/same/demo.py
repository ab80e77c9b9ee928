"""Requests to the packaged model with computed answers: greedy and seeded."""

from collections.abc import Iterator

from same.answers import CHAT, MESSAGE, RESPONSE, TEXT, image, part, url, user
from same.fields import SCHEMA
from same.request import Json, Request, post

DRAWN = {"temperature": 0.9, "top_p": 0.95, "seed": 11}
SAMPLING: dict[str, dict[str, Json]] = {"greedy": {"temperature": 0}, "drawn": DRAWN}
ASKED: dict[str, Json] = {
    "a greeting": user("Hello"),
    "shapes": user(image("shapes.png"), part("What is in this picture?")),
    "a colour": user(image("shapes.png"), part("Which colour is the circle?")),
    "a digit": user(image("digit.png"), part("Which digit is it?")),
    "a word": user(image("word.jpg", "jpeg"), part("What is written here?")),
    "two pictures": user(image("shapes.png"), image("digit.png"), part("What is in them?")),
}
WAYS: dict[str, dict[str, Json]] = {
    **SAMPLING,
    "log-probabilities": DRAWN | {"logprobs": True, "top_logprobs": 3},
    "three choices": DRAWN | {"n": 3},
    "filters": DRAWN | {"top_k": 20, "min_p": 0.01, "typical_p": 0.95, "repetition_penalty": 1.2},
    "dry and xtc": DRAWN | {"dry_multiplier": 1, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    "penalties": DRAWN | {"presence_penalty": 1, "frequency_penalty": 0.5},
    "a form": {"response_format": {
        "type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMA}}},
    "a choice": {"structured_outputs": {"choice": ["red", "blue", "green"]}},
    "token ids": {"return_token_ids": True, "prompt_logprobs": 2},
    "transforms": {"return_image_transforms": True, "max_image_tokens": 16},
}  # fmt: skip


def requests() -> Iterator[Request]:
    """Yield requests to the packaged model by each API."""
    base = {"model": "demo", "max_tokens": 24}
    for name, message in ASKED.items():
        for way, fields in WAYS.items():
            request = post(f"demo: {name}, {way}", CHAT, base | {"messages": [message]} | fields)
            yield from (request, request.streamed())
        yield post(f"demo: {name}", f"{CHAT}/render", base | {"messages": [message]})
        yield post(f"demo: {name}", "/v1/embeddings", {"model": "demo", "messages": [message]})
        yield post(f"demo: {name}", "/tokenize", {"model": "demo", "messages": [message]})
    block = {"type": "base64", "media_type": "image/png", "data": "<<shapes.png>>"}
    shown = {"type": "image", "source": block}
    item = {"type": "input_image", "image_url": url("shapes.png")}
    asked = {"type": "input_text", "text": "What is in this picture?"}
    ways = (
        (MESSAGE, base | {"messages": [user(shown, part("What is in this picture?"))]}),
        (RESPONSE, {"model": "demo", "max_output_tokens": 24, "input": [user(item, asked)]}),
        (TEXT, base | {"prompt": ["The circle is", "Three"], "logprobs": 2, "echo": True}),
    )
    for path, body in ways:
        for way, fields in SAMPLING.items():
            request = post(f"demo: {way}", path, body | fields)
            yield from (request, request.streamed())
