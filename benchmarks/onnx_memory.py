"""What a served ONNX model takes of memory, against the weights and the cache that it was given.

The cache is filled once, as much of it as eight clients fill. What is neither weights nor cache is
Python, the server, the libraries, the tokenizer and what one chunk of a prompt computes; it hardly
grows with the model, so a small model looks worse.
"""

from pathlib import Path

import peers
import server
import shapes

CACHE_TOKENS = 4096
PROMPT = "some words of no meaning " * 2
MIB = 2**20


def bench(options: peers.Options) -> None:
    """Measure each precision and print."""
    checkpoint = shapes.save(options.shape, options.models / f"random-{options.shape}")
    for precision in options.precisions:
        folder = peers.exported(checkpoint, precision)
        weights = sum(file.stat().st_size for file in folder.glob("decoder.onnx*"))
        cache = CACHE_TOKENS * bytes_of_a_token(folder)
        print(f"{precision}, {options.shape}, MiB: {serve(folder, options, weights, cache)}")


def bytes_of_a_token(folder: Path) -> int:
    """Return what one token takes in a model's cache."""
    import vlmkit

    with vlmkit.load(str(folder), engine={"cache_tokens": CACHE_TOKENS}) as model:
        token_bytes: int = model._engine._decoder.memory.token_bytes  # type: ignore[attr-defined]
    return token_bytes


def serve(folder: Path, options: peers.Options, weights: int, cache: int) -> str:
    """Return what a server takes before a request and with its cache filled."""
    more = ("--set", f"engine.cache_tokens={CACHE_TOKENS}")
    with peers.vlmkit(folder, options, *more)() as (url, name):
        empty = url.resident_bytes()
        prompt = PROMPT * (CACHE_TOKENS // 9 // len(PROMPT))
        server.load(url, name, clients=8, tokens=2, prompt="# " + prompt)
        full, held = url.resident_bytes(), url.resident_bytes("RssAnon")
        torch = "with" if url.maps("libtorch_cpu") else "without"
    given = weights + cache
    return (
        f"weights {weights / MIB:.0f}, cache {cache / MIB:.0f}; resident before a request "
        f"{empty / MIB:.0f}, with the cache full {full / MIB:.0f} ({held / MIB:.0f} of it not from "
        f"files): {full / given:.2f} of what it was given (target 1.25), the rest "
        f"{(full - given) / MIB:.0f} {torch} torch in the process"
    )
