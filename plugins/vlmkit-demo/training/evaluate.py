"""Measure a checkpoint, or any server that speaks the OpenAI API, on held-out questions.

    python training/evaluate.py --checkpoint FOLDER [--write MODEL_CARD.md]
    python training/evaluate.py --base-url http://localhost:8000/v1 [--write CARD --table NAME]

Every scene holds a combination of colour, name and place (or a word) that training never shows, and
no question is phrased like a training question. An answer is correct if it equals the truth after
lower-casing and dropping punctuation. Earlier turns of a conversation have true answers.
"""

import argparse
import base64
import io
import json
import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from picture import draw
from PIL import Image
from question import ASKS, KINDS, PhraseChooser, Turn, ask_pair, small_talk
from scene import Scene, sample_scene

CONTENT = {"digit": "digit", "word": "word"}  # the required content of the scenes of a kind
MARKS = "<!-- {}: written by training/evaluate.py -->", "<!-- end of {} -->"
NUM_CLIENTS = 8


@dataclass(frozen=True)
class Case:
    """One held-out question: the messages before the answer, their images, and the true answer."""

    kind: str
    messages: list[dict[str, Any]]
    images: list[Image.Image]
    wanted: str


class Answerer(Protocol):
    """Answers cases; each implementation measures one kind of model."""

    def __call__(self, cases: list[Case]) -> list[str]:
        """Return one answer per case."""


def make_cases(count: int, seed: int = 20_000_003, kinds: Iterable[str] = KINDS) -> list[Case]:
    """Generate ``count`` held-out cases of each kind."""
    cases = []
    for kind in kinds:
        rng = np.random.default_rng([seed, KINDS.index(kind)])
        ask = PhraseChooser(rng, "held_out")
        made = 0
        while made < count:
            case = _case(kind, ask, rng)
            if case:
                cases.append(case)
                made += 1
    return cases


def _case(kind: str, ask: PhraseChooser, rng: np.random.Generator) -> Case | None:
    scenes: tuple[Scene, ...] = ()
    if kind == "two_images":
        scenes = sample_scene(rng, "held_out", 3), sample_scene(rng, "held_out", 3)
        turns = ask_pair((scenes[0], scenes[1]), ask)
    elif kind == "small_talk" or (kind == "unknown" and ask.chance(0.4)):
        found, turns = small_talk(ask, greet=kind == "small_talk")
        turns = turns if found == kind else None
    else:
        scenes = (sample_scene(rng, "held_out", content=CONTENT.get(kind)),)
        turns = ASKS[kind](scenes[0], ask)
        if kind == "word" and scenes[0].word and not scenes[0].word.held_out():
            return None
    if turns is None:
        return None
    return Case(kind, _messages(turns, len(scenes)), [draw(s, rng).image for s in scenes],
                turns[-1].answer)  # fmt: skip


def _messages(turns: tuple[Turn, ...], pictures: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for i, turn in enumerate(turns):
        parts = [{"type": "image"}] * (pictures if i == 0 else 0)
        content = [*parts, {"type": "text", "text": turn.question}]
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": turn.answer})
    return messages[:-1]


def normal(text: str) -> str:
    """Normalize an answer for comparison."""
    return " ".join(re.sub(r"[^\w\s]", "", text.lower()).replace("center", "centre").split())


class TransformersAnswerer:
    """Answers with ``generate`` of transformers, in float32, greedily."""

    def __init__(self, folder: Path, batch: int = 24) -> None:
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self._torch, self._batch = torch, batch
        load: Any = AutoProcessor.from_pretrained
        self._processor = load(folder)
        load = AutoModelForImageTextToText.from_pretrained
        self._model = load(folder, dtype=torch.float32).eval()

    def __call__(self, cases: list[Case]) -> list[str]:
        """Answer in batches of cases with the same number of images."""
        answers = [""] * len(cases)
        order = sorted(range(len(cases)), key=lambda i: (len(cases[i].images), cases[i].kind))
        while order:
            pictures = len(cases[order[0]].images)
            group = [i for i in order[: self._batch] if len(cases[i].images) == pictures]
            order = order[len(group) :]
            for i, text in zip(group, self._generate([cases[i] for i in group]), strict=True):
                answers[i] = text
        return answers

    def _generate(self, cases: list[Case]) -> list[str]:
        prompts = [
            self._processor.apply_chat_template(c.messages, add_generation_prompt=True)
            for c in cases
        ]
        images = [image for c in cases for image in c.images]
        inputs = self._processor(
            images=images or None, text=prompts, padding=True, return_tensors="pt"
        )
        with self._torch.inference_mode():
            out = self._model.generate(**inputs, max_new_tokens=96, do_sample=False)
        new = out[:, inputs["input_ids"].shape[1] :]
        return list(self._processor.batch_decode(new, skip_special_tokens=True))


class ServerAnswerer:
    """Answers with an OpenAI-compatible chat completions endpoint, a few at a time."""

    def __init__(self, base_url: str, model: str, key: str = "none") -> None:
        self._url, self._model, self._key = base_url.rstrip("/"), model, key

    def __call__(self, cases: list[Case]) -> list[str]:
        """Send each case as a request, from several clients at a time."""
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            return list(clients.map(self._ask, cases))

    def _ask(self, case: Case) -> str:
        images = iter(case.images)
        messages = [m | {"content": _parts(m["content"], images)} for m in case.messages]
        body = {"model": self._model, "messages": messages, "temperature": 0, "max_tokens": 96}
        request = urllib.request.Request(
            f"{self._url}/chat/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=120) as reply:
            return str(json.load(reply)["choices"][0]["message"]["content"])


def _parts(content: Any, images: Iterable[Image.Image]) -> Any:
    if isinstance(content, str):
        return content
    source = iter(images)
    return [
        {"type": "image_url", "image_url": {"url": _data_url(next(source))}}
        if part["type"] == "image" else part
        for part in content
    ]  # fmt: skip


def _data_url(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class Score:
    """The number of correct answers of one kind."""

    right: int
    asked: int

    @property
    def share(self) -> float:
        """The share of correct answers, from 0 to 1."""
        return self.right / self.asked


def score(cases: list[Case], answers: list[str]) -> dict[str, Score]:
    """Count the correct answers of each kind."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for case, answer in zip(cases, answers, strict=True):
        hits[case.kind].append(normal(answer) == normal(case.wanted))
    return {kind: Score(sum(h), len(h)) for kind, h in hits.items()}


def table(scores: dict[str, Score]) -> str:
    """Write the scores as a Markdown table."""
    rows = [f"| {k} | {s.right} | {s.asked} | {100 * s.share:.1f} % |" for k, s in scores.items()]
    right, asked = sum(s.right for s in scores.values()), sum(s.asked for s in scores.values())
    rows.append(f"| **all** | {right} | {asked} | **{100 * right / asked:.1f} %** |")
    return "\n".join(["| kind | right | asked | accuracy |", "|---|---:|---:|---:|", *rows])


def write_table(card: Path, name: str, text: str) -> None:
    """Write the table between its marks in the model card."""
    begin, end = (mark.format(name) for mark in MARKS)
    before, rest = card.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    card.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--base-url")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--count", type=int, default=240, help="cases of each kind")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--wrong", type=int, default=0, help="wrong answers of each kind to print")
    parser.add_argument("--write", type=Path, help="model card whose table to replace")
    parser.add_argument("--table", default="accuracy", help="name of the table in the model card")
    a = parser.parse_args()
    answerer: Answerer = (
        ServerAnswerer(a.base_url, a.model) if a.base_url else TransformersAnswerer(a.checkpoint)
    )
    cases = make_cases(a.count, kinds=a.kinds)
    answers = answerer(cases)
    text = table(score(cases, answers))
    print(text)
    shown: dict[str, int] = defaultdict(int)
    for case, answer in zip(cases, answers, strict=True):
        if normal(answer) != normal(case.wanted) and shown[case.kind] < a.wrong:
            shown[case.kind] += 1
            asked = case.messages[-1]["content"][-1]["text"]
            print(case.kind, asked, case.wanted, answer, sep=" | ")
    if a.write:
        write_table(a.write, a.table, text)


if __name__ == "__main__":
    main()
