"""Measures OpenVINO GenAI in its own process, without HTTP, for :mod:`onnx_text`.

    PYTHON benchmarks/peer_openvino.py MODEL.gguf --threads 2 --tokens 64 [--sampled]

Prints one JSON object: :data:`answers.Figures`.
"""

import time

import answers
import numpy as np
import openvino as ov
import openvino_genai as genai


def load(model: str, threads: int, is_sampled: bool) -> answers.Ask:
    """Return a function that sends requests to a model."""
    pipeline = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
    drawing = answers.SAMPLING if is_sampled else {}

    def ask(rows: int, num_prompt: int, num_tokens: int) -> answers.AnswerTimes:
        seed = time.perf_counter_ns() % 2**32
        ids = np.random.default_rng(seed).integers(answers.FIRST_WORD, 30_000, (rows, num_prompt))
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        config = genai.GenerationConfig(
            max_new_tokens=num_tokens, ignore_eos=True, do_sample=is_sampled, **drawing
        )
        started = time.perf_counter()
        metrics = pipeline.generate(inputs, config).perf_metrics
        wall_s = time.perf_counter() - started
        assert metrics.get_num_generated_tokens() == rows * num_tokens
        return answers.of_batch(rows, num_tokens, metrics.get_ttft().mean / 1000, wall_s)

    return ask


if __name__ == "__main__":
    answers.print_figures(load)
