"""Measures onnxruntime-genai in its own process, without HTTP, for :mod:`onnx_text`.

    PYTHON benchmarks/peer_genai.py FOLDER --threads 2 --tokens 64 [--sampled]

Prints one JSON object: :data:`answers.Figures`.
"""

import json
import time

import answers
import numpy as np
import onnxruntime_genai as genai


def load(model: str, threads: int, is_sampled: bool) -> answers.Ask:
    """Return a function that sends requests to a model."""
    config = genai.Config(model)
    session = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    loaded = genai.Model(config)
    drawing = answers.SAMPLING if is_sampled else {}

    def ask(rows: int, num_prompt: int, num_tokens: int) -> answers.AnswerTimes:
        seed = time.perf_counter_ns() % 2**32
        ids = np.random.default_rng(seed).integers(answers.FIRST_WORD, 30_000, (rows, num_prompt))
        params = genai.GeneratorParams(loaded)
        length = num_prompt + num_tokens
        params.set_search_options(
            batch_size=rows, max_length=length, min_length=length, do_sample=is_sampled, **drawing
        )
        generator = genai.Generator(loaded, params)
        started = time.perf_counter()
        generator.append_tokens(ids.astype(np.int32))
        first_s = 0.0
        for _ in range(num_tokens):
            generator.generate_next_token()
            first_s = first_s or time.perf_counter() - started
        return answers.of_batch(rows, num_tokens, first_s, time.perf_counter() - started)

    return ask


if __name__ == "__main__":
    answers.print_figures(load)
