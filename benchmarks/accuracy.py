"""Measures what precisions cost in accuracy, by the evaluation of the packaged model.

Each precision answers held-out questions about images and gets a score. Then each is forced along
the answers of float32, and its distribution of every next token is compared with float32's.
``q8_0`` and ``q4_0`` are the weight formats of llama.cpp, computed in float32. They omit the
rounding of activations, which llama.cpp does and our precisions include.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import peers
import rounding
import tables

DEMO = Path(__file__).parents[1] / "plugins/vlmkit-demo"
GRAPHS = ("*.onnx", "*.onnx.data", "embeddings.safetensors", "vlmkit_onnx.json")
AT_ONCE = 512  # questions that are sent at once
ANSWER_TOKENS = 96
COLUMNS = ("right", "same likeliest token", "divergence from fp32, mean", "99th", "largest")

Followed = Mapping[int, Seq[int]]
Distributions = dict[int, list[Any]]
"""Log-probabilities ``[vocab]`` of every token of an answer, by the number of the answer."""


@dataclass(frozen=True)
class Answers:
    """The answers of a model, by the number of the question; see :class:`Recorder`."""

    texts: list[str]
    tokens: dict[int, list[int]]
    distributions: Distributions
    strayed: set[int]


class Recorder:
    """A sampler that records every distribution, and chooses the given tokens.

    Args:
        sampler: chooses if no tokens are given.
        followed: tokens by the number of the answer; empty to let the sampler choose.

    Attributes:
        strayed: answers for which the sampler would choose other tokens than the given ones.
    """

    def __init__(self, sampler: Any, followed: Followed) -> None:
        self._sampler = sampler
        self._followed = followed
        self.distributions: Distributions = {}
        self.tokens: dict[int, list[int]] = {}
        self.strayed: set[int] = set()

    def prepare(self, rows: Seq[Any]) -> Any:
        """Return a sampling step that also records the distribution of each row."""
        pick = self._sampler.prepare(rows)
        return lambda logits: np.array(self._kept(rows, logits, pick(logits).tolist()))

    def _kept(self, rows: Seq[Any], logits: Any, picked: list[int]) -> list[int]:
        for i, (row, values) in enumerate(zip(rows, logits, strict=True)):
            number = int(row.sequence.id)
            self.distributions.setdefault(number, []).append(_log_softmax(values))
            if self._followed:
                token = self._followed[number][row.num_output]
                self.strayed |= {number} if picked[i] != token else set()
                picked[i] = token
            self.tokens.setdefault(number, []).append(picked[i])
        return picked


def bench(options: peers.Options) -> None:
    """Measure every precision and print the table."""
    evaluate = evaluation()
    cases = evaluate.make_cases(options.cases)
    exact = answers(peers.exported(packaged(options.models), "fp32"), cases)
    rows = [row("fp32", cases, exact, exact)]
    for name, folder in _variants(options):
        rows.append(compared(name, folder, cases, exact))
        print(" ".join(rows[-1]), flush=True)
    num_tokens = sum(map(len, exact.tokens.values()))
    print(f"\nthe packaged model: {len(cases)} questions, {num_tokens} tokens of fp32's answers")
    print(tables.markdown(["precision", *COLUMNS], rows))


def answers(
    folder: Path, cases: Seq[Any], followed: Followed | None = None, **settings: Any
) -> Answers:
    """Return the answers of a model to all questions, with greedy or given tokens."""
    import vlmkit

    with vlmkit.load(str(folder), **settings) as model:
        executor = model.runner._loop._steps._executor
        recorder = executor._sampler = Recorder(executor._sampler, followed or {})
        texts: list[str] = []
        for first in range(0, len(cases), AT_ONCE):
            streams = [
                model.submit(model.request(_messages(case), max_tokens=ANSWER_TOKENS))
                for case in cases[first : first + AT_ONCE]
            ]
            texts += [stream.result().text for stream in streams]
    return Answers(texts, recorder.tokens, recorder.distributions, recorder.strayed)


def _messages(case: Any) -> list[Any]:
    from vlmkit.types.image import Image
    from vlmkit.types.message import Message

    images = iter(case.images)
    messages = []
    for message in case.messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        shown = [Image.open(next(images)) for part in parts if part["type"] == "image"]
        messages.append(Message.of(message["role"], parts[-1]["text"], shown))
    return messages


def compared(
    name: str, folder: Path, cases: Seq[Any], exact: Answers, **settings: Any
) -> list[str]:
    """Return the row of a model that follows given answers, and then answers by itself."""
    led = answers(folder, cases, exact.tokens, **settings)
    others = sorted(led.strayed)  # the other answers equal the given ones
    free = answers(folder, [cases[number] for number in others], **settings).texts
    texts = [*exact.texts]
    for number, text in zip(others, free, strict=True):
        texts[number] = text
    return row(name, cases, replace(led, texts=texts), exact)


def row(name: str, cases: Seq[Any], led: Answers, exact: Answers) -> list[str]:
    """Return the row of a table: right answers, and distributions against the exact ones."""
    scores = evaluation().score(cases, led.texts)
    right = sum(score.right for score in scores.values())
    share = right / sum(score.asked for score in scores.values())
    theirs, ours = (
        np.array([row for number in sorted(a.distributions) for row in a.distributions[number]])
        for a in (exact, led)
    )
    nats = divergence(theirs, ours)
    same = (theirs.argmax(axis=1) == ours.argmax(axis=1)).mean()
    spread = (nats.mean(), np.percentile(nats, 99), nats.max())
    return [name, f"{100 * share:.1f} %", f"{100 * same:.2f} %", *(f"{n:.2e}" for n in spread)]


def divergence(exact: Any, rounded: Any) -> Any:
    """Return the Kullback-Leibler divergence of each row ``[rows, vocab]``, in nats."""
    return (np.exp(exact) * (exact - rounded)).sum(axis=1)


def _log_softmax(row: Any) -> Any:
    shifted = np.asarray(row, np.float64) - np.max(row)
    return shifted - np.log(np.exp(shifted).sum())


def _variants(options: peers.Options) -> Iterator[tuple[str, Path]]:
    """Yield names and folders of our precisions and of the formats of llama.cpp."""
    checkpoint = packaged(options.models)
    for precision in ("fp32", *options.precisions):
        for tower in options.towers:
            if (precision, tower) != ("fp32", "fp32"):
                folder = peers.exported(checkpoint, precision, tower)
                yield f"{precision}, tower {tower}", folder
    for kind in rounding.KINDS:
        yield f"{kind}, weights only", peers.exported(_rounded(checkpoint, kind), "fp32")


def packaged(models: Path) -> Path:
    """Return the packaged checkpoint without its graphs, copied at the first call."""
    folder = models / "demo"
    if not folder.is_dir():
        source = DEMO / "src/vlmkit_demo/checkpoint"
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*GRAPHS))
    return folder


def _rounded(checkpoint: Path, kind: str) -> Path:
    """Return a checkpoint whose decoder matrices are rounded as in a format."""
    folder = checkpoint.with_name(f"{checkpoint.name}-{kind}")
    if not folder.is_dir():
        import torch
        from safetensors.torch import load_file, save_file

        tensors = load_file(checkpoint / "model.safetensors")
        for name, tensor in tensors.items():
            tensors[name] = tensor.float()
            if name.startswith("language_model.") and tensor.ndim == 2:
                tensors[name] = torch.from_numpy(rounding.rounded(kind, tensors[name].numpy()))
        shutil.copytree(checkpoint, folder)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    return folder


def evaluation() -> Any:
    """Return the evaluation module of the packaged model; its modules import each other by name."""
    if str(DEMO / "training") not in sys.path:
        sys.path.insert(0, str(DEMO / "training"))
    import evaluate

    return evaluate
