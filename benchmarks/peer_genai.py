"""onnxruntime-genai in its own process, no HTTP: what :mod:`onnx_text` compares with.

    PYTHON benchmarks/peer_genai.py FOLDER --threads 2 --tokens 64 --prompt 512

Prints one JSON object: tokens per second of one answer, of eight at once, and of reading a prompt.
"""

import argparse
import json
import time

import numpy as np
import onnxruntime_genai as genai

FIRST_WORD = 1000  # ids from here on are words in any vocabulary of :mod:`shapes`


def ask(model: genai.Model, rows: int, num_prompt: int, num_tokens: int) -> list[float]:
    """Generate; return when the first token and when the last came, after the question."""
    seed = time.perf_counter_ns() % 2**32
    ids = np.random.default_rng(seed).integers(FIRST_WORD, 30_000, (rows, num_prompt))
    params = genai.GeneratorParams(model)
    length = num_prompt + num_tokens
    params.set_search_options(
        batch_size=rows, max_length=length, min_length=length, do_sample=False
    )
    generator = genai.Generator(model, params)
    started = time.perf_counter()
    generator.append_tokens(ids.astype(np.int32))
    first_s = 0.0
    for _ in range(num_tokens):
        generator.generate_next_token()
        first_s = first_s or time.perf_counter() - started
    return [first_s, time.perf_counter() - started]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--start", type=int, default=64, help="tokens of the prompt of an answer")
    options = parser.parse_args()
    config = genai.Config(options.model)
    session = {"intra_op_num_threads": options.threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    model = genai.Model(config)
    ask(model, 1, 32, 4)
    figures = {}
    first_s, wall_s = ask(model, 1, options.start, options.tokens)
    figures["one"] = (options.tokens - 1) / (wall_s - first_s)
    first_s, wall_s = ask(model, 8, options.start, options.tokens)
    figures["eight"] = 8 * options.tokens / wall_s
    figures["eight_together"] = 8 * (options.tokens - 1) / (wall_s - first_s)
    figures["prompt"] = options.prompt / ask(model, 1, options.prompt, 1)[0]
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
