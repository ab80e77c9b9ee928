"""Measures time and memory of one request on a CPU: vlmkit-torch against ``generate``.

Each answers in its own process, in turn, from the same checkpoint. Figures are the time from the
start of the process to the first token, the time of each further token, the memory after the answer
and its peak. The checkpoint is in the page cache, as after a download. On a busy machine, CPU time
is more reliable than wall time; it includes busy waits of threads, so use ``--threads 1`` then.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import image_shapes
import peers
import quiet
import shapes
import tables

Moment = tuple[float, float]
"""The time, and the CPU time of the process so far."""

OURS, THEIRS = "vlmkit", "transformers"
DTYPES = ("bfloat16", "float32")
PROMPT = "word " * 12
IMAGE_PAD = "<|image_pad|>"
COLUMNS = (
    *("first token s", "ms a token", "resident MiB", "peak MiB"),
    *("first token CPU s", "CPU ms a token"),
)
TARGETS = ("at most 1.3", "at most 1.0", "-", "-", "-", "-")
MIB = 2**20
PEAK = 1.6  # times its weights, which transformers temporarily holds in float32


def bench(options: peers.Options) -> None:
    """Measure and print."""
    folder = options.models / f"random-{options.shape}-bf16"
    if options.shape in shapes.SHAPES:
        shapes.save(options.shape, folder, "bfloat16")
    else:
        image_shapes.save(options.shape, folder, "bfloat16")
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) // 2
    for dtype in DTYPES:
        if PEAK * weights * (4 if dtype == "float32" else 2) > available_bytes():
            print(f"{dtype}: left out, since transformers would not fit into memory")
            continue
        seen: dict[str, list[list[float]]] = {"first": [], OURS: [], THEIRS: []}
        cache = options.models / f"cache-{time.monotonic_ns()}"  # the user's first start of vlmkit
        for number in range(options.rounds + 1):
            for who in (OURS, THEIRS):
                quiet.wait_until(options.idle_but)
                row = child(who, folder, dtype, options, cache)
                is_first = number == 0
                print(f"{dtype}, round {number}, {who}: {row}", flush=True)
                if not is_first:
                    seen[who].append(row)
                elif who == OURS:
                    seen["first"].append(row)
        report(dtype, seen, weights * (4 if dtype == "float32" else 2), options)


def report(
    dtype: str, seen: dict[str, list[list[float]]], weight_bytes: int, options: peers.Options
) -> None:
    """Print the medians, and our ratios to transformers and to the weights."""
    names = {"first": "vlmkit, first load on a machine", OURS: OURS, THEIRS: THEIRS}
    rows = [
        [names[who], *(peers.spread(list(column)) for column in zip(*found, strict=True))]
        for who, found in seen.items()
    ]
    ratios = [
        [ours / theirs for ours, theirs in zip(*pair, strict=True)]
        for pair in zip(seen[OURS], seen[THEIRS], strict=True)
    ]
    rows.append(["ratio", *(peers.spread(list(column)) for column in zip(*ratios, strict=True))])
    rows.append(["target", *TARGETS])
    print(f"\n{options.shape}, {dtype}, {options.threads} threads")
    print(tables.markdown(["", *COLUMNS], rows))
    for column, name in ((2, "resident"), (3, "peak")):
        parts = [row[column] * MIB / weight_bytes for row in seen[OURS]]
        target = 1.15 if column == 2 else 1.3
        print(f"{name} over weights: {peers.spread(parts)} (target {target})")


def child(who: str, folder: Path, dtype: str, options: peers.Options, cache: Path) -> list[float]:
    """Return the figures of one process: see :data:`COLUMNS`."""
    command = [sys.executable, __file__, who, str(folder), dtype]
    command += [str(options.threads), str(options.tokens), str(edge_of(options.shape))]
    command += [repr(time.monotonic())]
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache), "HF_HOME": str(cache / "hf")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environ)
    row: list[float] = json.loads(done.stdout.splitlines()[-1])
    return row


def available_bytes() -> int:
    """Return the available memory."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def edge_of(shape: str) -> int:
    """Return the edge of the image for a shape; 0 for a text model."""
    return 0 if shape in shapes.SHAPES else image_shapes.IMAGE_SHAPES[shape].edge


def image(edge: int) -> Any:
    """Return a fixed image."""
    import PIL.Image

    return PIL.Image.linear_gradient("L").resize((edge, edge)).convert("RGB")


def answer_of_vlmkit(folder: str, dtype: str, threads: int, tokens: int, edge: int) -> list[Moment]:
    """Return the arrival times of the tokens."""
    import vlmkit

    images = [image(edge)] if edge else []
    engine = {"use": "torch", "num_threads": threads, "dtype": dtype}
    with vlmkit.load(folder, engine=engine) as model:
        request = model.request(PROMPT, images=images, max_tokens=tokens, ignore_eos=True)
        moments = [now() for _ in model.submit(request)]
        report_memory()
    return moments


def answer_of_transformers(
    folder: str, dtype: str, threads: int, tokens: int, edge: int
) -> list[Moment]:
    """Return the arrival times of the tokens."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
    from transformers.generation.streamers import BaseStreamer

    class Clock(BaseStreamer):
        def __init__(self) -> None:
            self.moments: list[Moment] = []

        def put(self, _: object) -> None:
            self.moments.append(now())

        def end(self) -> None:
            pass

    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind = AutoModelForImageTextToText if edge else AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=getattr(torch, dtype))
    inputs = inputs_of_transformers(folder, tokenizer, edge)
    clock = Clock()
    length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    model.generate(**inputs, **length, do_sample=False, streamer=clock)
    report_memory()
    return clock.moments[1:]  # the first is the prompt


def inputs_of_transformers(folder: str, tokenizer: Any, edge: int) -> Any:
    """Return the inputs of a model; with an image, those of the image processor.

    The complete processor would need torchvision.
    """
    import torch

    content: Any = [{"type": "text", "text": PROMPT}] if edge else PROMPT
    shown: dict[str, Any] = {}
    if edge:
        from transformers import Qwen2VLImageProcessorPil

        content = [{"type": "image"}, *content]
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        shown = dict(processor(images=[image(edge)], return_tensors="pt"))
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    if edge:
        num_tokens = int(shown["image_grid_thw"].prod()) // processor.merge_size**2
        text = text.replace(IMAGE_PAD, IMAGE_PAD * num_tokens)
    inputs = dict(tokenizer(text, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    if edge:
        is_image = inputs["input_ids"] == tokenizer.convert_tokens_to_ids(IMAGE_PAD)
        shown["mm_token_type_ids"] = is_image.to(torch.int64)
    return inputs | shown


def now() -> Moment:
    """Return the current times."""
    return time.monotonic(), time.process_time()


def report_memory() -> None:
    """Write the current and the peak memory of this process for the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    facts = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    MEMORY.extend(int(facts[name]) / 1024 for name in ("VmRSS", "VmHWM"))


MEMORY: list[float] = []


def main() -> None:
    """Answer one request of the parent."""
    who, folder, dtype, threads, tokens, edge, started = sys.argv[1:]
    answer = answer_of_vlmkit if who == OURS else answer_of_transformers
    moments = answer(folder, dtype, int(threads), int(tokens), int(edge))
    gaps_s, gaps_cpu_s = (
        statistics.median(after - before for before, after in itertools.pairwise(times))
        for times in zip(*moments, strict=True)
    )
    first_s, first_cpu_s = moments[0]
    row = [first_s - float(started), 1000 * gaps_s, *MEMORY, first_cpu_s, 1000 * gaps_cpu_s]
    print(json.dumps([round(value, 3) for value in row]))


if __name__ == "__main__":
    main()
