"""Measures the memory of a served ONNX model, relative to its weights and cache.

The cache holds eight clients of 2048 tokens each, and they fill it. The rest is Python, the server,
libraries, the tokenizer and the buffers of one chunk. It hardly grows with the model, so a small
model looks worse.
"""

import time
from pathlib import Path

import contenders
import image_shapes
import onnx_image
import peers
import shapes

CLIENTS, TOKENS_EACH = 8, 2048
CACHE_TOKENS = CLIENTS * TOKENS_EACH
NUM_IMAGES = 3  # images of earlier requests
IDLE_S = 2.0  # an idle server returns the memory of requests after a moment
MIB = 2**20


def bench(options: peers.Options) -> None:
    """Measure each precision of a language model and of a vision model, and print."""
    shape = "smolvlm-small" if options.shape == "small" else "smolvlm-500m"
    checkpoints = (
        shapes.save(options.shape, options.models / f"random-{options.shape}"),
        image_shapes.save(shape, options.models / shape),
    )
    for checkpoint in checkpoints:
        for precision in options.precisions:
            folder = peers.exported(checkpoint, precision)
            print(f"{folder.name}, MiB: {serve(folder, options)}", flush=True)


def serve(folder: Path, options: peers.Options) -> str:
    """Return the memory of a server before a request and with a full cache."""
    weights = sum(file.stat().st_size for file in folder.glob("*.onnx*"))
    cache = CACHE_TOKENS * bytes_of_a_token(folder)
    more = ("--set", f"engine.cache_tokens={CACHE_TOKENS}")
    with peers.vlmkit(folder, options, *more)() as (url, name):
        empty = url.resident_bytes()
        if (folder / "vision.onnx").is_file():
            onnx_image.ask_about_images(url, name, NUM_IMAGES)
        contenders.over_http(url, name)(CLIENTS, TOKENS_EACH - 16, 2)
        peak = url.resident_bytes("VmHWM")
        time.sleep(IDLE_S)
        full, held = url.resident_bytes(), url.resident_bytes("RssAnon")
        torch = "with" if url.maps("libtorch_cpu") else "without"
    given = weights + cache
    return (
        f"weights {weights / MIB:.0f}, cache {cache / MIB:.0f}; resident before a request "
        f"{empty / MIB:.0f}, at most {peak / MIB:.0f}, with the cache full {full / MIB:.0f} "
        f"({held / MIB:.0f} of it not from files): {full / given:.2f} of what it was given "
        f"(target 1.25), the rest {(full - given) / MIB:.0f} {torch} torch in the process"
    )


def bytes_of_a_token(folder: Path) -> int:
    """Return the bytes of one token in the cache of a model."""
    import vlmkit

    with vlmkit.load(str(folder), engine={"cache_tokens": CACHE_TOKENS}) as model:
        token_bytes: int = model.runner._engine._decoder.memory.token_bytes  # type: ignore[attr-defined]
    return token_bytes
