"""OpenVINO GenAI in its own process, no HTTP: what :mod:`onnx_text` compares with.

    PYTHON benchmarks/peer_openvino.py MODEL.gguf --threads 2 --tokens 64 --prompt 512

Prints one JSON object: tokens per second of one answer, of eight at once, and of reading a prompt.
"""

import argparse
import json
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

FIRST_WORD = 1000  # ids from here on are words in any vocabulary of :mod:`shapes`


def ask(pipeline: genai.LLMPipeline, rows: int, num_prompt: int, num_tokens: int) -> list[float]:
    """Generate; return when each token came, after the question."""
    seed = time.perf_counter_ns() % 2**32
    ids = np.random.default_rng(seed).integers(FIRST_WORD, 30_000, (rows, num_prompt))
    inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
    config = genai.GenerationConfig(max_new_tokens=num_tokens, ignore_eos=True, do_sample=False)
    started = time.perf_counter()
    metrics = pipeline.generate(inputs, config).perf_metrics
    wall_s = time.perf_counter() - started
    assert metrics.get_num_generated_tokens() == rows * num_tokens
    return [metrics.get_ttft().mean / 1000, wall_s]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--start", type=int, default=64, help="tokens of the prompt of an answer")
    options = parser.parse_args()
    settings = {"INFERENCE_NUM_THREADS": options.threads}
    pipeline = genai.LLMPipeline(options.model, "CPU", **settings)
    ask(pipeline, 1, 32, 4)
    figures = {}
    first_s, wall_s = ask(pipeline, 1, options.start, options.tokens)
    figures["one"] = (options.tokens - 1) / (wall_s - first_s)
    first_s, wall_s = ask(pipeline, 8, options.start, options.tokens)
    figures["eight"] = 8 * options.tokens / wall_s
    figures["eight_together"] = 8 * (options.tokens - 1) / (wall_s - first_s)
    figures["prompt"] = options.prompt / ask(pipeline, 1, options.prompt, 1)[0]
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
