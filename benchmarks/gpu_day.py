"""Measures vlmkit-torch on a GPU in one command, offline: ``python benchmarks/gpu_day.py``.

It compares answers of ten tiny families with transformers, for each attention backend, with and
without CUDA graphs. Then it times random weights in the shape of an 8B model, beside the time that
reading weights and cache takes on this device, without and with overlapped steps, and beside
``generate_batch`` of transformers, and vLLM where it is installed. It also times images, and
fills the cache that the measured memory leaves.
``--size tiny --device cpu`` tries the script itself; its figures say nothing about a GPU.
"""

import argparse
import gc
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import image_shapes
import numpy as np
import shapes
import tables
import torch

import vlmkit
from vlmkit.interfaces.engine import NUM_REPLAYED
from vlmkit.interfaces.prompt import Prompt
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_testing.contracts.engine_sequence import EngineSequence

COMMON = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 600,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 64},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "qwen3_moe": {"head_dim": 64, **EXPERTS},
    "mixtral": LOCAL_EXPERTS,
    "gemma2": {"head_dim": 64, "sliding_window": 64, "query_pre_attn_scalar": 64},
    "gemma3_text": {"head_dim": 64, "sliding_window": 64, "query_pre_attn_scalar": 64},
    "gpt_oss": {"head_dim": 64, "sliding_window": 64, **LOCAL_EXPERTS},
    "phi3": {},
}
PARTS = ("parity", "images", "memory", "decodes", "overlap", "growth", "peers")
BACKENDS = ("sdpa", "triton", "varlen")
PROMPT_TOKENS = (40, 129, 300)
ANSWER_TOKENS = 12
NUM_WARM_STEPS = 8
RAGGED = (32_000, 16_000, 8_000, *[4_000] * 5, *[1_000] * 24, *[200] * 32)
LOADS: dict[str, dict[str, list[int]]] = {
    "8b": {
        "1 of 2,000": [2_000],
        "8 of 2,000": [2_000] * 8,
        "64 of 2,000": [2_000] * 64,
        "256 of 2,000": [2_000] * 256,
        "64 from 200 to 32,000": list(RAGGED),
    },
    "tiny": {"1 of 40": [40], "8 of 40": [40] * 8, "4 from 10 to 300": [10, 20, 40, 300]},
}
PREFILLS = {"8b": (2_000, 16_000), "tiny": (100,)}
IMAGES: dict[str, tuple[str, tuple[int, ...]]] = {
    "8b": ("qwen2.5-vl-3b", (1, 4, 8)),
    "tiny": ("smolvlm-small", (1, 2)),
}
SHAPE_OF = {"8b": "8b", "tiny": "small"}


class Row(EngineSequence):
    """A sequence whose tokens are a list, so that a long one costs a step nothing."""

    def tokens(self, start: int, stop: int) -> Sequence[int]:
        """Return the token ids of positions ``[start, stop)``, all of the prompt or after it."""
        num_prompt = len(self.prompt)
        if stop <= num_prompt:
            return self.prompt.token_ids[start:stop]
        return self.answer[start - num_prompt : stop - num_prompt]


def prompt_of(num_tokens: int, seed: int) -> Prompt:
    """Return a prompt of random tokens."""
    random = torch.Generator().manual_seed(seed)
    return Prompt(tuple(torch.randint(10, 500, (num_tokens,), generator=random).tolist()))


@contextmanager
def loaded(folder: Path, **engine: Any) -> Iterator[Any]:
    """Yield the engine of a model that is loaded for this block."""
    with vlmkit.load(str(folder), engine={"use": "torch", **engine}) as model:
        yield model.runner._engine


# Answers beside transformers.


def parity(folder: Path, device: str, families: Sequence[str]) -> None:
    """Print errors of logits, beside those that transformers' own rounding makes."""
    dtypes = ("bfloat16", "float16") if device != "cpu" else ("bfloat16",)
    rows, reasons = [], dict[str, None]()
    for name in families:
        saved = save_tiny(name, FAMILIES[name], folder / name)
        exact = expected(saved, device, "float32")
        for dtype in dtypes:
            own = expected(saved, device, dtype)
            noise = largest(own, exact)
            cells = []
            for way in ways(device):
                try:
                    cells.append(compared(saved, device, dtype, noise, exact, *way))
                except vlmkit.VlmkitError as error:
                    cells.append("no")
                    reasons[f"{name}, {way[0]}: {error}"] = None
            rows.append([name, dtype, f"{noise:.3g}", *cells])
            print(" ".join(rows[-1]), flush=True)
    print("\nlargest error of a logit, in errors of transformers in the same precision (about 1)")
    names = [f"{backend}{', graphs' if graphs else ''}" for backend, graphs in ways(device)]
    print(tables.markdown(["family", "precision", "transformers' error", *names], rows))
    print("\n".join(["", *reasons]))


def ways(device: str) -> list[tuple[str, bool]]:
    """Return the backends, each without and with CUDA graphs."""
    switches = (False, True) if device != "cpu" else (False,)
    return [(backend, graphs) for backend in BACKENDS for graphs in switches]


def save_tiny(name: str, more: dict[str, Any], folder: Path) -> Path:
    """Save a tiny model of a family."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **COMMON | more)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    shapes.tokenizer_of(600, shapes.SPECIAL, shapes.TEMPLATE).save_pretrained(folder)
    return folder


def answers() -> list[tuple[Prompt, list[int]]]:
    """Return prompts, and the answers that are given to them."""
    return [
        (prompt_of(num_tokens, seed), list(range(20 + seed, 20 + seed + ANSWER_TOKENS)))
        for seed, num_tokens in enumerate(PROMPT_TOKENS)
    ]


def expected(folder: Path, device: str, dtype: str) -> torch.Tensor:
    """Return transformers' logits ``[answers * tokens, vocab]``, in float64 on the CPU."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device)
    rows = []
    with torch.no_grad():
        for prompt, answer in answers():
            ids = torch.tensor([[*prompt.token_ids, *answer]], device=device)
            logits = model(ids, use_cache=False).logits[0, len(prompt.token_ids) :]
            rows.append(logits.double().cpu())
    return torch.cat(rows)


def compared(
    folder: Path,
    device: str,
    dtype: str,
    noise: float,
    exact: torch.Tensor,
    backend: str,
    graphs: bool,
) -> str:
    """Return the error of an engine beside transformers' rounding.

    Raises:
        VlmkitError: the backend cannot run here.
    """
    settings = {"device": device, "dtype": dtype, "attention": backend, "cuda_graphs": graphs}
    with loaded(folder, **settings) as engine:
        rows = engine_logits(engine)
        replays = "" if engine.counters()[NUM_REPLAYED] or not graphs else ", no replay"
    return f"{largest(rows, exact) / noise:.2f}{replays}"


def engine_logits(engine: Any) -> torch.Tensor:
    """Return an engine's logits for the same tokens: read in chunks, answered in one batch."""
    host = EngineHost(engine)
    given = answers()
    sequences = [host.sequence(prompt) for prompt, _ in given]
    for sequence in sequences:
        host.admit(sequence)
        host.prefill(sequence, chunk_tokens=64)
    steps = []
    for number in range(ANSWER_TOKENS):
        items = [
            host.next_item(sequence, answer[number])
            for sequence, (_, answer) in zip(sequences, given, strict=True)
        ]
        steps.append(torch.from_numpy(host.step(items).copy()).double())
    for sequence in sequences:
        engine.release(sequence)
    return torch.stack(steps, 1).flatten(0, 1)


def largest(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference of logits beside the largest logit."""
    return float((found - wanted).abs().max() / wanted.abs().max())


# Time.


def bandwidth(device: str) -> float:
    """Return the bytes that this device reads in a second, by copies of a large tensor."""
    size = 2**30 if device != "cpu" else 2**26
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [timed(device, lambda: target.copy_(source)) for _ in range(10)]
    return 2 * size / statistics.median(times[2:])


def timed(device: str, run: Callable[[], Any]) -> float:
    """Return the seconds of a call, with all that it started on the device."""
    wait(device)
    started = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - started


def wait(device: str) -> None:
    """Wait until the device has nothing to do."""
    if device != "cpu":
        torch.cuda.synchronize()


class Decoding:
    """Sequences of one load in an engine, which are decoded together.

    Args:
        engine: that computes.
        lengths: tokens of the prompts.
    """

    def __init__(self, engine: Any, lengths: Sequence[int]) -> None:
        self.host = EngineHost(engine)
        self.sequences = [self._begun(length, seed) for seed, length in enumerate(lengths)]

    def step(self) -> list[int]:
        """Decode one token of each sequence, as a greedy loop does."""
        items = [self.host.next_item(sequence, 30) for sequence in self.sequences]
        logits = self.host.engine.forward(items).logits
        for sequence in self.sequences:
            sequence.num_done = len(sequence)
        return logits.argmax(-1).tolist()

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(map(len, self.sequences))

    def end(self) -> None:
        """Release the sequences."""
        for sequence in self.sequences:
            self.host.engine.release(sequence)

    def _begun(self, num_tokens: int, seed: int) -> Row:
        engine, prompt = self.host.engine, prompt_of(num_tokens, seed)
        sequence = Row(f"row {seed}", prompt, engine.read(prompt), f"{seed}".encode(), {})
        if self.host.admit(sequence) is None:
            raise MemoryError(f"there is no room for {num_tokens} tokens")
        self.host.prefill(sequence)
        return sequence


def decodes(folder: Path, device: str, size: str, num_steps: int) -> None:
    """Print the time of decode steps, and its share of what reading alone takes."""
    rate = bandwidth(device)
    print(f"\nthis device copies {rate / 1e9:.0f} GB/s")
    rows = []
    for graphs in (False, True) if device != "cpu" else (False,):
        with loaded(folder, **engine_settings(device, size, cuda_graphs=graphs)) as engine:
            weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            for name, lengths in LOADS[size].items():
                row = decode_row(engine, device, lengths, num_steps, (rate, weights))
                rows.append([name, "graphs" if graphs else "no graphs", *row])
                print(" ".join(rows[-1]), flush=True)
            for num_tokens in PREFILLS[size]:
                rows.append(prefill_row(engine, device, num_tokens))
                print(" ".join(rows[-1]), flush=True)
    columns = ["load", "", "ms", "tokens/s", "share of the limit", "launches", "gaps, ms"]
    print(tables.markdown([*columns, "peak GiB"], rows))


def engine_settings(device: str, size: str, **more: Any) -> dict[str, Any]:
    """Return settings of an engine for the large loads."""
    settings: dict[str, Any] = {"device": device, "dtype": "bfloat16", "prefix_cache": False}
    if size == "tiny":
        settings["cache_tokens"] = 4096
    return {**settings, "max_sequences": 256, "self_check": False, **more}


def decode_row(
    engine: Any, device: str, lengths: Sequence[int], num_steps: int, limit: tuple[float, int]
) -> list[str]:
    """Return the cells of one load."""
    rate, weight_bytes = limit
    try:
        decoding = Decoding(engine, lengths)
    except MemoryError as error:
        return [str(error), *[""] * 5]
    try:
        for _ in range(NUM_WARM_STEPS):
            decoding.step()
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        step_s = statistics.median(timed(device, decoding.step) for _ in range(num_steps))
        num_bytes = weight_bytes + decoding.num_tokens * engine.needs.token_bytes
        cells = [f"{1000 * step_s:.3g}", f"{len(lengths) / step_s:.4g}"]
        cells.append(f"{num_bytes / rate / step_s:.2f}")
        return [*cells, *device_cells(device, decoding, step_s)]
    finally:
        decoding.end()


def device_cells(device: str, decoding: Decoding, step_s: float) -> list[str]:
    """Return the launches of one step, its gaps, and the most memory of the steps before.

    Gaps are the time of a step in which no kernel runs, without the profiler's own cost.
    """
    if device == "cpu":
        return [""] * 3
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    peak = torch.cuda.max_memory_allocated() / 2**30
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        decoding.step()
    events = seen.key_averages()
    launches = sum(e.count for e in events if "Launch" in e.key)
    busy_us = sum(e.self_device_time_total for e in events if e.device_type == DeviceType.CUDA)
    return [str(launches), f"{max(0.0, 1000 * step_s - busy_us / 1000):.3g}", f"{peak:.1f}"]


def prefill_row(engine: Any, device: str, num_tokens: int) -> list[str]:
    """Return the cells of a prompt that is read alone."""
    times = []
    for seed in range(4):
        host = EngineHost(engine)
        prompt = prompt_of(num_tokens, 1000 + seed)
        sequence = Row("prompt", prompt, engine.read(prompt), b"prompt", {})
        if host.admit(sequence) is None:
            return [f"prompt of {num_tokens}", "", "no room", *[""] * 5]
        times.append(timed(device, lambda s=sequence, h=host: h.prefill(s)))
        engine.release(sequence)
    seconds = statistics.median(times[1:])
    cells = [f"{1000 * seconds:.4g}", f"{num_tokens / seconds:.4g}", *[""] * 4]
    return [f"prompt of {num_tokens}", "", *cells]


def overlap(folder: Path, device: str, size: str, num_tokens: int) -> None:
    """Print tokens/s of whole answers through the loop, without and with overlapped steps."""
    rows, answers = [], {}
    for switch in (False, True) if device != "cpu" else (False,):
        settings = engine_settings(device, size, overlap_steps=switch)
        with vlmkit.load(str(folder), engine={"use": "torch", **settings}) as model:
            for name, lengths in LOADS[size].items():
                if len(lengths) > 64:
                    continue
                prompts = [prompt_of(length, seed) for seed, length in enumerate(lengths)]
                made, seconds = answered(model, prompts, num_tokens)
                is_same = "" if made == answers.setdefault(name, made) else "other answers"
                overlapped = str(model.stats().counters["num_overlapped_steps"])
                rate = f"{len(lengths) * num_tokens / seconds:.4g}"
                rows.append([name, "overlapped" if switch else "", rate, overlapped, is_same])
                print(" ".join(rows[-1]), flush=True)
    columns = ["load", "steps", "tokens/s", "overlapped steps so far", "beside steps in turn"]
    print(tables.markdown(columns, rows))


def answered(model: Any, prompts: Sequence[Prompt], num_tokens: int) -> tuple[list[Any], float]:
    """Return greedy answers to prompts that are submitted together, and their time."""
    params = vlmkit.SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    started = time.perf_counter()
    streams = [
        model.submit(vlmkit.Request(token_ids=prompt.token_ids, params=params))
        for prompt in prompts
    ]
    texts = [[choice.text for choice in stream.result().choices] for stream in streams]
    return texts, time.perf_counter() - started


def memory(folder: Path, device: str, size: str) -> None:
    """Print the memory that steps take beside a cache that is full, as it was measured at load."""
    logging.getLogger("vlmkit_torch.engine.measured_memory").setLevel(logging.INFO)
    settings = engine_settings(device, size) | {"memory_fraction": 0.9}
    with loaded(folder, **settings) as engine:
        if device == "cpu":
            print("\na CPU measures no memory")
            return
        free, total = torch.cuda.mem_get_info()
        print(f"\n{engine.limits.capacity_tokens:,} tokens; {free / 2**30:.2f} GiB are free")
        longest = engine.limits.max_sequence_tokens - 1
        num = max(1, min(engine.limits.capacity_tokens // longest, engine.limits.max_sequences))
        decoding = Decoding(engine, [longest - NUM_WARM_STEPS] * num)
        for _ in range(NUM_WARM_STEPS):
            decoding.step()
        decoding.end()
        least = total - torch.cuda.max_memory_reserved()
        split = engine.max_pass_tokens
        print(f"{num} sequences of {longest:,} tokens: {least / 2**30:.2f} GiB were never reserved")
        print("no step was split" if split is None else f"steps were split to {split} tokens")


def growth(folder: Path, device: str, size: str, num_steps: int) -> None:
    """Print the memory that steps of one sequence leave behind."""
    with loaded(folder, **engine_settings(device, size)) as engine:
        decoding = Decoding(engine, [100])
        (sequence,) = decoding.sequences
        before = 0
        for number in range(num_steps):
            if number == NUM_WARM_STEPS and device != "cpu":
                before = torch.cuda.memory_allocated()
            decoding.step()
            sequence.answer.pop()
            sequence.num_done = len(sequence)
            engine.truncate(sequence, len(sequence))
        after = torch.cuda.memory_allocated() if device != "cpu" else 0
        decoding.end()
    print(f"\n{num_steps} steps of one sequence: {(after - before) / 2**20:.2f} MiB more memory")


def images(folder: Path, device: str, size: str, num_tokens: int) -> None:
    """Print the time to encode batches of images, and of answers about new and repeated ones."""
    shape, batches = IMAGES[size]
    with torch.device(device):
        saved = image_shapes.save(shape, folder, "bfloat16")
    edge, rows = image_shapes.IMAGE_SHAPES[shape].edge, []
    settings = engine_settings(device, size)
    with vlmkit.load(str(saved), engine={"use": "torch", **settings}) as model:
        asked = [question(model, edge, seed, num_tokens) for seed in range(3 * max(batches))]
        slots = [model.runner._tokenizer.prompt(each.messages).media for each in asked]
        encode = model.runner._encoder.encode
        for num in batches:
            batch = [slot for own in slots[:num] for slot in own]
            times = [timed(device, lambda b=batch: encode(b)) for _ in range(5)]
            num_rows = sum(slot.num_features for slot in batch)
            cells = image_cells(statistics.median(times[1:]), num, num_rows)
            rows.append([f"encoding {num}", *cells])
        for number, num in enumerate(batches):
            own = asked[number * max(batches) :][:num]
            for name in ("new", "repeated"):
                taken = timed(device, lambda r=own: answer_all(model, r))
                rows.append([f"answers about {num} {name}", *image_cells(taken, num, 0)])
    print(f"\nimages of {edge} x {edge}, {shape}; answers of {num_tokens} tokens")
    print(tables.markdown(["load", "ms", "images/s", "rows/s"], rows))


def question(model: Any, edge: int, seed: int, num_tokens: int) -> Any:
    """Return a request about an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (edge, edge, 3), dtype=np.uint8)
    fields = {"max_tokens": num_tokens, "temperature": 0.0, "ignore_eos": True}
    return model.request("What is it?", images=[pixels], **fields)


def answer_all(model: Any, requests: Sequence[Any]) -> None:
    """Answer requests that are submitted together."""
    for stream in [model.submit(request) for request in requests]:
        stream.result()


def image_cells(seconds: float, num_images: int, num_rows: int) -> list[str]:
    """Return the cells of a load."""
    rate = f"{num_rows / seconds:.4g}" if num_rows else ""
    return [f"{1000 * seconds:.4g}", f"{num_images / seconds:.3g}", rate]


def our_seconds(
    folder: Path, device: str, size: str, loads: Mapping[str, Sequence[int]], num_tokens: int
) -> dict[str, float]:
    """Return the seconds of each load in this plugin's engine."""
    with loaded(folder, **engine_settings(device, size)) as engine:
        return {
            name: timed(device, lambda own=lengths: decode_all(engine, own, num_tokens))
            for name, lengths in loads.items()
        }


def seconds_of_transformers(
    folder: Path, device: str, loads: Mapping[str, Sequence[int]], num_tokens: int
) -> dict[str, float]:
    """Return the seconds of each load in ``generate_batch``."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1)
    return {
        name: timed(device, lambda own=lengths: model.generate_batch(ids_of(own), config))
        for name, lengths in loads.items()
    }


def seconds_of_vllm(
    folder: Path, device: str, loads: Mapping[str, Sequence[int]], num_tokens: int
) -> dict[str, float]:
    """Return the seconds of each load in vLLM, after one that warms it up."""
    from vllm import LLM, SamplingParams

    engine = LLM(model=str(folder), dtype="bfloat16", enable_prefix_caching=False)
    params = SamplingParams(
        max_tokens=num_tokens, temperature=0.0, ignore_eos=True, detokenize=False
    )

    def generate(lengths: Sequence[int]) -> None:
        prompts = [{"prompt_token_ids": ids} for ids in ids_of(lengths)]
        engine.generate(prompts, params, use_tqdm=False)

    generate([16])
    return {
        name: timed(device, lambda own=lengths: generate(own)) for name, lengths in loads.items()
    }


def ids_of(lengths: Sequence[int]) -> list[list[int]]:
    """Return the tokens of prompts of some lengths."""
    return [list(prompt_of(length, seed).token_ids) for seed, length in enumerate(lengths)]


PEERS = {"generate_batch": seconds_of_transformers, "vLLM": seconds_of_vllm}


def peers(
    folder: Path, device: str, size: str, num_tokens: int, names: Sequence[str] = tuple(PEERS)
) -> None:
    """Print tokens/s of whole answers, ours and those of other engines on this machine."""
    loads = {name: lengths for name, lengths in LOADS[size].items() if len(lengths) in {1, 8, 64}}
    found = {"vlmkit-torch": our_seconds(folder, device, size, loads, num_tokens)}
    for name in names:
        try:
            found[name] = PEERS[name](folder, device, loads, num_tokens)
        except ModuleNotFoundError as error:
            print(f"{name} is not installed: {error}")
        except Exception as error:  # noqa: BLE001 - a peer that fails is a line of the output
            print(f"{name} fails: {type(error).__name__}: {str(error)[:200]}")
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()
    rows = [
        [name, *(f"{len(lengths) * num_tokens / each[name]:.4g}" for each in found.values())]
        for name, lengths in loads.items()
    ]
    print(f"\nprompts and answers of {num_tokens} tokens, tokens/s of answers")
    print(tables.markdown(["load", *found], rows))


def decode_all(engine: Any, lengths: Sequence[int], num_tokens: int) -> None:
    """Read prompts and answer each with ``num_tokens``."""
    decoding = Decoding(engine, lengths)
    for _ in range(num_tokens):
        decoding.step()
    decoding.end()


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here)
    parser.add_argument("--size", choices=LOADS, default="8b" if here == "cuda" else "tiny")
    parser.add_argument("--steps", type=int, default=48, help="decode steps of each load")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer beside peers")
    parser.add_argument("--growth-steps", type=int, default=2000)
    parser.add_argument("--parts", nargs="+", default=list(PARTS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    device, size = options.device, options.size
    if device != "cpu":
        major, minor = torch.cuda.get_device_capability()
        print(torch.cuda.get_device_name(), f"compute capability {major}.{minor}")
    print(f"torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if "parity" in options.parts:
            parity(folder / "families", device, options.families)
        if "images" in options.parts:
            images(folder / "images", device, size, options.tokens)
        if set(PARTS[2:]) & set(options.parts):
            with torch.device(device):
                large = shapes.save(SHAPE_OF[size], folder / "large", "bfloat16")
        if "memory" in options.parts:
            memory(large, device, size)
        if "decodes" in options.parts:
            decodes(large, device, size, options.steps)
        if "overlap" in options.parts:
            overlap(large, device, size, options.tokens)
        if "growth" in options.parts:
            growth(large, device, size, options.growth_steps)
        if "peers" in options.parts:
            peers(large, device, size, options.tokens, options.peers)


if __name__ == "__main__":
    main()
