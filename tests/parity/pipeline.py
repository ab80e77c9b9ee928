"""The pipeline side of a parity comparison: messages in, streamed text and tokens out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vlmkit
from parity import runner
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, TextPart

ENGINES = {
    "torch": {"use": "torch", "cache_tokens": 1200, "block_tokens": 4, "max_chunk_tokens": 64},
    "onnx": {"use": "onnx", "cache_tokens": 1200, "max_chunk_tokens": 64, "num_threads": 1},
}


def conversation(request: runner.Request) -> list[vlmkit.Message]:
    """Return a request of transformers' form in vlmkit's."""
    images = iter([vlmkit.Image.open(image) for image in request.images])
    shown = ImageOptions(processor=request.limits)
    messages = []
    for message in request.messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        made = [
            ImagePart(next(images), shown) if part["type"] == "image" else TextPart(part["text"])
            for part in parts
        ]
        messages.append(vlmkit.Message(message["role"], tuple(made)))
    return messages


def load(
    folder: Path, engine: str = "torch", sizes: Mapping[str, Any] | None = None, **more: Any
) -> vlmkit.Model:
    """Return the model, served by small steps, unless other sizes are named."""
    chosen = {**ENGINES[engine], **(sizes or {})}
    is_large = "max_chunk_tokens" in (sizes or {})
    steps = {} if is_large else {"scheduler": {"max_step_tokens": 13}}
    return vlmkit.load(folder, engine=chosen, **steps, **more)


def stream_all(model: vlmkit.Model, requests: list[runner.Request]) -> list[tuple[str, Any]]:
    """Submit all requests, then read each one's text piece by piece, and its tokens."""
    settings = {"max_tokens": runner.NUM_NEW, "temperature": 0, "ignore_eos": True}
    streams = [
        model.submit(model.request(conversation(request), logprobs=True, **settings))
        for request in requests
    ]
    answers = []
    for stream in streams:
        chunks = list(stream)
        samples = [sample for chunk in chunks for sample in chunk.samples]
        answers.append(("".join(chunk.text for chunk in chunks), samples))
    return answers
