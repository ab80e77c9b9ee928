"""Measures the cost of sampling by kind: array operations, host reads and time.

It covers the time from logits to samples, log-probabilities included. Operations and reads are
counted on torch tensors that look like those of a device; time is measured in host memory.
Probabilities fall with a token's rank to the power of 1.5, roughly as in trained models.
"""

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import tables
import torch
from peers import spread
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sampler import Row
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit import heap
from vlmkit.running.sampling import sampled_tokens
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.types.sampling import SamplingParams

VOCAB = 152_000
FLAT_VOCAB, HIDDEN = 152_064, 1024
BATCHES = (1, 8, 64)
HOT = {"temperature": 0.7}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-k 40, top-p 0.95": {**HOT, "top_k": 40, "top_p": 0.95},
    "top-p 0.95": {**HOT, "top_p": 0.95},
    "no filter": {"temperature": 1.0},
    "top-k 40 and penalties": {
        **HOT,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
    },
    "greedy, 5 log-probabilities": {"logprobs": True, "top_logprobs": 5},
}


class _Operations(TorchDispatchMode):
    """Counts the operations that would be a kernel or a copy."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = [made.alias_info for made in func._schema.returns if made.alias_info]
        self.num += all(alias.is_write for alias in aliases)
        return func(*args, **(kwargs or {}))


class _Reads(TorchFunctionMode):
    """Counts reads by the host."""

    num = 0
    readers = frozenset({torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu})
    scalars = frozenset({torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += func in self.readers or func in self.scalars
        return func(*args, **(kwargs or {}))


def bench(_: Any, rounds: int) -> None:
    """Print a table for each number of rows."""
    with heap.returning_large_blocks():
        pass  # leaves the heap as after loading weights
    for num in BATCHES:
        logits = _logits(num)
        steps = {kind: _step(num, fields) for kind, fields in KINDS.items()}
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _round in range(rounds + 1):
            for kind, step in steps.items():
                started = time.perf_counter()
                step(logits)
                seconds[kind].append(1000 * (time.perf_counter() - started))
        rows = [
            [kind, *map(str, _counted(step, logits)), spread(seconds[kind][1:])]
            for kind, step in steps.items()
        ]
        columns = [f"{num} rows of {VOCAB}", "operations", "reads", "ms in host memory"]
        print(tables.markdown(columns, rows), end="\n\n")
    _bench_flat(rounds)


def _bench_flat(rounds: int) -> None:
    """Print the cost of eight rows of flat logits against greedy: the worst case of top-p.

    A step is only the output layer (a hidden size of 1,024, on the cores of NumPy) and sampling.
    That is less than a step of any model with this vocabulary, so the ratio of a model is lower.
    Times are CPU times of the thread, which other processes hardly change.
    """
    random = np.random.default_rng(0)
    logits = {
        "normal, deviation 0.1": random.normal(size=(8, FLAT_VOCAB)) * 0.1,
        "normal, deviation 1": random.normal(size=(8, FLAT_VOCAB)),
        "uniform": random.uniform(size=(8, FLAT_VOCAB)),
        "all equal": np.zeros((8, FLAT_VOCAB)),
        "rank to the power of -1.5": _logits(8, FLAT_VOCAB),
    }
    kinds = {"greedy": {}} | {
        f"temperature {t:g}, top-p {p:g}": {"temperature": t, "top_p": p}
        for t, p in ((1.0, 0.9), (2.0, 0.9), (1.0, 0.3))
    }
    steps = {kind: _step(8, fields) for kind, fields in kinds.items()}
    head = random.normal(size=(HIDDEN, FLAT_VOCAB)).astype(np.float32)
    states = random.normal(size=(8, HIDDEN)).astype(np.float32)
    rows = []
    for name, flat in logits.items():
        values = flat.astype(np.float32)
        own: dict[str, list[float]] = {kind: [] for kind in kinds}
        layer: list[float] = []
        for _round in range(4 * rounds + 1):
            started = time.thread_time()
            states @ head
            layer.append(1000 * (time.thread_time() - started))
            for kind, step in steps.items():
                started = time.thread_time()
                step(values)
                own[kind].append(1000 * (time.thread_time() - started))
        base = np.median(layer[1:])
        greedy = base + np.median(own["greedy"][1:])
        rows += [
            [name, kind, spread(times[1:]), f"{(base + np.median(times[1:])) / greedy:.2f}"]
            for kind, times in own.items()
        ]
    columns = [f"8 rows of {FLAT_VOCAB}", "", "choice, ms", "step against greedy"]
    print(tables.markdown(columns, rows), end="\n\n")


def _logits(num: int, vocab: int = VOCAB) -> Any:
    random = np.random.default_rng(0)
    ranks = np.stack([random.permutation(vocab) for _ in range(num)])
    return (-1.5 * np.log(ranks + 1)).astype(np.float32)


def _step(num: int, fields: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a function that samples from the logits of a step."""
    sampler, params = ArraySampler(), SamplingParams(**fields)
    rows = [
        Row(
            Sequence(
                id=str(seed),
                prompt=Prompt(tuple(range(1000))),
                params=params,
                seed=seed,
                max_tokens=2000,
                output_ids=list(range(500, 1500)),
                banned_ids=tuple(range(VOCAB - 200, VOCAB)),
            )
        )
        for seed in range(num)
    ]

    def step(logits: Any) -> Any:
        pick = sampler.prepare(rows)
        readable = sampled_tokens.readable(logits)
        return sampled_tokens.start_samples(readable, pick(readable), [params] * num)()

    return step


def _counted(step: Callable[[Any], Any], logits: Any) -> tuple[int, int]:
    """Return the operations and the reads of a step on a device."""
    tensor = torch.from_numpy(logits)
    with (
        mock.patch.object(sampled_tokens, "HOST", None),
        _Operations() as operations,
        _Reads() as reads,
    ):
        step(tensor)
    return operations.num, reads.num
