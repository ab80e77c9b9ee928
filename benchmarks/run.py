"""Measures ratios to peers and the cost of our own layers, in one run on one machine.

    nox -s bench -- [NAME ...] [--shape 0.5b|360m|small] [--rounds 3] [--gguf PYTHON ...]

Names: ``start`` (``vlmkit plugins`` and ``--help``), ``mock`` (events per second on the mock),
``sampling`` (the cost of sampling, by kind), ``waits`` (how requests delay each other),
``generate`` (one client against transformers' ``generate``), ``overhead`` (loop and HTTP for each
token against the bare forward), ``serve`` (eight clients against ``transformers serve``); and only
when named: ``onnx`` (vlmkit-onnx against llama.cpp and others), ``onnx-mixed`` (the same while
requests arrive at random), ``onnx-image`` (the same with an image), ``onnx-layers`` (the layers
between kernels and a client), ``onnx-profile`` (the time of each operator), ``onnx-memory`` (the
memory of a server), ``accuracy`` (the accuracy of precisions), ``torch-cache`` (an 8-bit KV cache
against a dense one), ``torch-rows`` (the effect of a long answer on others), ``torch-start`` (time
and memory of one request, start included, against ``generate``). Peers and vlmkit run in turn;
figures are medians with minimum and maximum.
docs/how-to/benchmark.md describes the setup of peers.
"""

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import accuracy
import onnx_image
import onnx_layers
import onnx_memory
import onnx_mixed
import onnx_profile
import onnx_text
import sampling
import server
import shapes
import stopwatch
import torch_cache
import torch_rows
import torch_start
import waits
from peers import Options, spread

TOKENS = 64


def against(ours: list[float], theirs: list[float]) -> str:
    """Return the ratio of two medians."""
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}"


def bench_generate(folder: Path, rounds: int) -> None:
    """Print tokens per second of one request: the pipeline in this process, and ``generate``."""
    import torch
    from transformers import AutoModelForCausalLM

    import vlmkit

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours, theirs = [], []
    with vlmkit.load(str(folder)) as model:
        request = model.request("word " * 30, max_tokens=TOKENS, ignore_eos=True)
        ids = torch.tensor([model.runner._tokenizer.prompt(request.messages).token_ids])
        model.submit(request).result()
        for _ in range(rounds):
            started = time.perf_counter()
            model.submit(request).result()
            ours.append(TOKENS / (time.perf_counter() - started))
            started = time.perf_counter()
            with torch.inference_mode():
                reference.generate(
                    ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False
                )
            theirs.append(TOKENS / (time.perf_counter() - started))
    print(f"one client, tokens/s: vlmkit {spread(ours)}; generate {spread(theirs)}")
    print(f"  ratio {against(ours, theirs)}")


def bench_serve(folder: Path, rounds: int) -> None:
    """Print tokens per second of eight streaming clients: ours and ``transformers serve``."""
    ours, theirs = [], []
    load = {"clients": 8, "tokens": TOKENS, "prompt_words": 30}
    logs = folder.parent
    for _ in range(rounds):
        port = server.free_port()
        with server.vlmkit(str(folder), port, logs / "vlmkit.log") as url:
            server.load(url, folder.name, clients=1, tokens=4)
            ours.append(server.load(url, folder.name, **load)["tokens_per_s"])
        port = server.free_port()
        with server.transformers(str(folder), port, logs / "transformers.log") as url:
            server.load(url, str(folder), clients=1, tokens=4)
            theirs.append(server.load(url, str(folder), **load)["tokens_per_s"])
    print(f"eight clients, tokens/s: vlmkit {spread(ours)}; transformers serve {spread(theirs)}")
    print(f"  ratio {against(ours, theirs)}")


def bench_overhead(folder: Path, rounds: int) -> None:
    """Print the seconds of a token of one client: over HTTP, in the pipeline, and bare forward."""
    import vlmkit

    bare, piped, served = [], [], []
    port = server.free_port()
    for _ in range(rounds):
        with ThreadPoolExecutor(
            1
        ) as loader:  # as in the server: OpenMP pools belong to the loading thread
            model = loader.submit(vlmkit.load, str(folder)).result()
        with model:
            forwards = stopwatch.timed(model.runner._engine, "forward")
            request = model.request("word " * 30, max_tokens=TOKENS, ignore_eos=True)
            for _ in range(2):
                forwards.clear()
                done = model.submit(request).result()
            bare.append(statistics.median(forwards[1:]))
            piped.append(done.timings.decode_s / (TOKENS - 1))
        with server.vlmkit(str(folder), port, folder.parent / "vlmkit.log") as url:
            options = {"clients": 1, "tokens": TOKENS, "prompt_words": 30}
            server.load(url, folder.name, **options)
            seen = server.load(url, folder.name, **options)
            served.append((seen["wall_s"] - seen["first_token_s"]) / (seen["num_events"] - 1))
    print(f"seconds per token: forward {spread(bare)}; pipeline {spread(piped)}")
    print(f"  HTTP streaming {spread(served)}; HTTP over forward {against(served, bare)}")


def bench_mock(folder: Path, rounds: int) -> None:
    """Print events per second of 64 streams on the mock; client and server are on this machine."""
    prompt = json.dumps({"mock": {"text": "hello world ", "tokens": 500}})
    port = server.free_port()
    with server.vlmkit("mock", port, folder.parent / "mock.log") as url:
        load = {"clients": 64, "tokens": 500, "prompt": prompt}
        seen = [server.load(url, "mock", **load)["tokens_per_s"] for _ in range(rounds + 1)]
    print(f"mock, 64 streams, events/s: {spread(seen[1:])}")


def bench_start(_: Path, rounds: int) -> None:
    """Print the wall time of short commands."""
    for command in ("plugins", "--help"):
        seconds = []
        for _ in range(rounds + 2):
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "vlmkit", command], check=True, stdout=subprocess.DEVNULL
            )
            seconds.append(time.perf_counter() - started)
        print(f"vlmkit {command}, seconds: {spread(seconds)}")


BENCHES = {
    "start": bench_start,
    "mock": bench_mock,
    "sampling": sampling.bench,
    "generate": bench_generate,
    "overhead": bench_overhead,
    "serve": bench_serve,
    "waits": waits.bench,
}


NAMED_BENCHES = {
    "onnx": onnx_text.bench,
    "onnx-mixed": onnx_mixed.bench,
    "onnx-image": onnx_image.bench,
    "onnx-layers": onnx_layers.bench,
    "onnx-profile": onnx_profile.bench,
    "onnx-memory": onnx_memory.bench,
    "accuracy": accuracy.bench,
    "torch-cache": torch_cache.bench,
    "torch-rows": torch_rows.bench,
    "torch-start": torch_start.bench,
}


def parse() -> tuple[list[str], Options]:
    """Return the requested names and the options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*BENCHES, *NAMED_BENCHES, []])
    choices = [*shapes.SHAPES, "qwen2.5-vl-3b"]  # the last ones for torch-start only
    parser.add_argument("--shape", choices=choices, default="0.5b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="threads of each engine")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of each answer")
    parser.add_argument(
        "--precisions", nargs="*", default=["w8a8"], help="precisions of our exports"
    )
    parser.add_argument("--towers", nargs="*", default=["fp32", "w8a8"], help="tower precisions")
    parser.add_argument(
        "--idle-but", type=float, default=0.3, help="wait until fewer cores are busy"
    )
    parser.add_argument("--models", type=Path, help="a folder that keeps models between runs")
    parser.add_argument("--arrivals-per-s", type=float, default=0.8, help="requests of onnx-mixed")
    parser.add_argument("--cases", type=int, default=60, help="questions of each kind of accuracy")
    for peer in ("gguf", "openvino", "genai", "transformers", "vllm"):
        parser.add_argument(
            f"--{peer}", metavar="PYTHON", help="the Python of the environment of the peer"
        )
    parser.add_argument("--llama-server", metavar="FILE", help="the server of llama.cpp")
    given = vars(parser.parse_args())
    return given.pop("names") or list(BENCHES), Options(**given)


def main() -> None:
    """Run the requested benchmarks."""
    names, options = parse()
    with contextlib.ExitStack() as stack:
        if options.models is None:
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
            options = dataclasses.replace(options, models=Path(scratch))
        options.models.mkdir(parents=True, exist_ok=True)
        folder = options.models / f"random-{options.shape}"
        if set(names) & set(BENCHES) - {"start", "mock", "sampling"}:
            shapes.save(options.shape, folder)
        for name in names:
            if name in NAMED_BENCHES:
                NAMED_BENCHES[name](options)
            else:
                BENCHES[name](folder, options.rounds)


if __name__ == "__main__":
    main()
