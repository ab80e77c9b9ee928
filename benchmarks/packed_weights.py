"""Compares packed weights with dense ones of the same checkpoint on a CPU.

Writes a GPTQ checkpoint with random weights of the shape of Qwen2.5-1.5B, layer by layer. A process
for each form loads it, decodes one sequence and eight, and computes a prompt. Prints the peak of
memory while loading, relative to the file, and tokens per second. Forms take turns in each round,
and ratios are of the same round. Does not measure answers.

    python benchmarks/packed_weights.py FOLDER [--bits 4|8] [--group N] [--layers N] [--threads N]
        [--rounds N]
"""

import argparse
import json
import multiprocessing
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCAB = 1536, 8960, 12, 2, 128, 151936
NUM_PROMPT, NUM_STEPS, NUM_LONG = 16, 24, 512
WARM_STEPS = 160  # in which an engine brings dense layers into their fastest layout
FORMS = {
    "packed": {"quantized_layers": "packed"},
    "float32": {"quantized_layers": "dense", "dtype": "float32"},
    "bfloat16": {"quantized_layers": "dense", "dtype": "bfloat16"},
}
Sizes = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class Result:
    """What one process measured.

    Attributes:
        load_bytes: the peak of resident memory while loading, less that before.
        one: tokens per second of one sequence.
        eight: tokens per second of eight sequences together.
        prompt: tokens per second of a prompt.
    """

    load_bytes: int
    one: float
    eight: float
    prompt: float


@dataclass(frozen=True)
class Shape:
    """What is written.

    Attributes:
        num_layers: of the decoder.
        bits: of a weight.
        group: inputs that share a scale; -1 for all.
    """

    num_layers: int
    bits: int
    group: int

    def linear(self, name: str, rows: int, columns: int, *, has_bias: bool) -> Iterator[Sizes]:
        """Yield name, type and shape of the tensors of a quantized layer."""
        groups = 1 if self.group == -1 else columns // self.group
        yield f"{name}.qweight", "I32", (columns * self.bits // 32, rows)
        yield f"{name}.qzeros", "I32", (groups, rows * self.bits // 32)
        yield f"{name}.scales", "F16", (groups, rows)
        if has_bias:
            yield f"{name}.bias", "BF16", (rows,)


def tensors(shape: Shape) -> Iterator[Sizes]:
    """Yield name, type and shape of all tensors."""
    linear = shape.linear
    yield "model.embed_tokens.weight", "BF16", (VOCAB, HIDDEN)
    yield "model.norm.weight", "BF16", (HIDDEN,)
    for number in range(shape.num_layers):
        layer = f"model.layers.{number}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{norm}.weight", "BF16", (HIDDEN,)
        for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            yield from linear(f"{layer}.self_attn.{part}_proj", heads * HEAD, HIDDEN, has_bias=True)
        yield from linear(f"{layer}.self_attn.o_proj", HIDDEN, HEADS * HEAD, has_bias=False)
        for part in ("gate", "up"):
            yield from linear(f"{layer}.mlp.{part}_proj", INNER, HIDDEN, has_bias=False)
        yield from linear(f"{layer}.mlp.down_proj", HIDDEN, INNER, has_bias=False)


def content(
    name: str, dtype: str, shape: tuple[int, ...], bits: int, numbers: np.random.Generator
) -> bytes:
    """Return the bytes of a tensor: random codes, the middle as zero points, small weights."""
    size = int(np.prod(shape))
    if name.endswith("qzeros"):
        return np.full(size, {4: 0x77777777, 8: 0x7F7F7F7F}[bits], np.int32).tobytes()
    if dtype == "I32":
        return numbers.bytes(4 * size)
    if dtype == "F16":
        return np.full(size, 0.064 / 2**bits, np.float16).tobytes()
    scale = np.float32(0 if name.endswith("bias") else 0.02)
    values = numbers.standard_normal(size, np.float32) * scale + np.float32("norm" in name)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write(folder: Path, shape: Shape) -> None:
    """Write the checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "quantization_config": {
            "quant_method": "gptq",
            "bits": shape.bits,
            "group_size": shape.group,
            "sym": True,
            "desc_act": False,
            "checkpoint_format": "gptq",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, sizes in tensors(shape):
        size = int(np.prod(sizes)) * (4 if dtype == "I32" else 2)
        header[name] = {"dtype": dtype, "shape": sizes, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dtype, sizes in tensors(shape):
            file.write(content(name, dtype, sizes, shape.bits, numbers))


def resident(what: str) -> int:
    """Return the resident bytes of this process: ``VmRSS`` now, ``VmHWM`` at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(what)).split()[1])


def measured(folder: Path, form: str, num_threads: int) -> Result:
    """Load the checkpoint in one form, in this process, and decode."""
    import torch
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401 - memory of code is not counted

    from vlmkit.kit.checkpoint import Checkpoint
    from vlmkit.plugins.registry import BuildContext
    from vlmkit_torch.engine import torch_engine
    from vlmkit_torch.settings import EngineSettings

    settings = EngineSettings(
        device="cpu", cache_tokens=4096, num_threads=num_threads, **FORMS[form]
    )
    torch.set_num_threads(num_threads)
    before = resident("VmRSS")
    engine = torch_engine.build(BuildContext("", Checkpoint(form, folder), settings))
    load_bytes = resident("VmHWM") - before
    decode(engine, 2, 1)  # an engine packs dense layers once two sequences were served
    decode(engine, 2, WARM_STEPS)
    one, eight = decode(engine, 1, NUM_STEPS), decode(engine, 8, NUM_STEPS)
    return Result(load_bytes, one, eight, prefill(engine))


def prefill(engine) -> float:
    """Return the tokens per second of a prompt, by the faster of two."""
    from vlmkit.interfaces.prompt import Prompt
    from vlmkit.interfaces.sequence import Sequence
    from vlmkit.interfaces.step import WorkItem
    from vlmkit.types.sampling import SamplingParams

    times = []
    for number in range(2):
        prompt = Prompt(tuple(range(5000 * number + 5000, 5000 * number + 5000 + NUM_LONG)))
        sequence = Sequence(f"p{number}", prompt, SamplingParams(), plan=engine.read(prompt))
        engine.admit(sequence)
        engine.reserve(sequence, NUM_LONG)
        begin = time.perf_counter()
        engine.forward([WorkItem(sequence, 0, NUM_LONG, num_rows=1)])
        times.append(time.perf_counter() - begin)
        engine.release(sequence)
    return NUM_LONG / min(times)


def decode(engine, num_sequences: int, num_steps: int) -> float:
    """Return the tokens per second of some sequences, by the median of their steps."""
    from vlmkit.interfaces.prompt import Prompt
    from vlmkit.interfaces.sequence import Sequence
    from vlmkit.interfaces.step import WorkItem
    from vlmkit.types.sampling import SamplingParams

    sequences = []
    for number in range(num_sequences):
        prompt = Prompt(tuple(range(100 * number, 100 * number + NUM_PROMPT)))
        sequence = Sequence(str(number), prompt, SamplingParams(), plan=engine.read(prompt))
        engine.admit(sequence)
        engine.reserve(sequence, NUM_PROMPT + num_steps)
        sequences.append(sequence)
    engine.forward([WorkItem(each, 0, NUM_PROMPT, num_rows=1) for each in sequences])
    times = []
    for step in range(num_steps):
        for each in sequences:
            each.output_ids.append(7 + step)
        begin = time.perf_counter()
        engine.forward([WorkItem(each, NUM_PROMPT + step, 1, num_rows=1) for each in sequences])
        times.append(time.perf_counter() - begin)
    for each in sequences:
        engine.release(each)
    return num_sequences / float(np.median(times))


def main() -> None:
    """Write the checkpoint if it is absent, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if not (options.folder / "model.safetensors").exists():
        write(options.folder, Shape(options.layers, options.bits, options.group))
    file_bytes = (options.folder / "model.safetensors").stat().st_size
    rounds = []
    for _ in range(options.rounds):
        found = {}
        for form in FORMS:
            spawned = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=spawned) as pool:
                result = pool.submit(measured, options.folder, form, options.threads).result()
            found[form] = result
            print(
                f"{form:9} {result.load_bytes / 2**20:7.0f} MiB to load "
                f"({result.load_bytes / file_bytes:.2f} of the file), {result.one:6.2f} tokens/s "
                f"of one sequence, {result.eight:6.2f} of eight, {result.prompt:6.1f} of a prompt",
                flush=True,
            )
        rounds.append(found)
    for form in ("float32", "bfloat16"):
        ratios = [
            float(
                np.median([getattr(it["packed"], what) / getattr(it[form], what) for it in rounds])
            )
            for what in ("one", "eight", "prompt")
        ]
        print(
            f"packed relative to {form}: {ratios[0]:.2f} times the tokens of one sequence, "
            f"{ratios[1]:.2f} of eight, {ratios[2]:.2f} of a prompt"
        )


if __name__ == "__main__":
    main()
