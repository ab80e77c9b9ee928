"""Who takes part in a race of language models, and how each is measured.

A server is asked through HTTP. A library that brings none is measured in a process of its own,
which spares it a server's cost.
"""

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import answers
import peers
import server
import shapes

GREEDY = {"temperature": 0}


@dataclass(frozen=True)
class Server:
    """Somebody who is asked through HTTP.

    Attributes:
        name: in tables.
        bits: of a weight.
        start: starts it.
        drawing: fields of a request whose tokens are drawn.
        weights: the file that is read for each token of a lone answer; None where there is none.
        is_ours: whether it is vlmkit.
    """

    name: str
    bits: int
    start: peers.Start
    drawing: dict[str, object]
    weights: Path | None = None
    is_ours: bool = False

    def figures(self, options: peers.Options, *, is_sampled: bool) -> answers.Figures:
        """Start it, measure it and end it."""
        sampling = self.drawing if is_sampled else GREEDY
        with self.start() as (url, model):
            ask = over_http(url, model, sampling)
            return answers.figures(ask, options.tokens, is_sampled=is_sampled)


@dataclass(frozen=True)
class Library:
    """Somebody without a server.

    Attributes:
        name: in tables.
        bits: of a weight.
        python: of its environment.
        script: measures it.
        model: its files.
    """

    name: str
    bits: int
    python: str
    script: str
    model: Path
    is_ours: ClassVar[bool] = False

    def figures(self, options: peers.Options, *, is_sampled: bool) -> answers.Figures:
        """Measure it in a process of its own."""
        command = [self.python, str(server.HERE / self.script), str(self.model)]
        command += ["--threads", str(options.threads), "--tokens", str(options.tokens)]
        command += ["--sampled"] if is_sampled else []
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{self.script} failed: {done.stderr[-2000:]}")
        found: answers.Figures = json.loads(done.stdout.splitlines()[-1])
        return found


Contender = Server | Library


def tried(name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return somebody's figures; none where it failed, which is told and ends nothing."""
    try:
        return measure()
    except RuntimeError as error:
        print(f"not measured: {name}: {error}", flush=True)
        return {}


def contenders(checkpoint: Path, options: peers.Options) -> Iterator[Contender]:
    """Yield who takes part, those of as many bits one after the other."""
    for kind in ("q8_0", "q4_0"):
        bits = peers.bits(kind)
        precisions = [p for p in options.precisions if peers.bits(p) == bits]
        for precision in precisions:
            folder = peers.exported(checkpoint, precision)
            start, weights = peers.vlmkit(folder, options), folder / "decoder.onnx.data"
            name = f"vlmkit {precision}"
            yield Server(name, bits, start, answers.SAMPLING, weights, is_ours=True)
        if precisions:
            yield from _of_gguf(kind, checkpoint, options)
            yield from _of_genai(f"int{bits}", checkpoint, options)
    if options.transformers is None:
        print("not measured: transformers serve: no --transformers")
    else:
        start = peers.transformers(checkpoint, options)
        yield Server("transformers serve fp32", 32, start, peers.for_transformers(answers.SAMPLING))
    if options.vllm is None:
        print("not measured: vLLM: no --vllm")
    else:
        yield Server("vLLM bf16", 16, peers.vllm(checkpoint, options), answers.SAMPLING)


def _of_gguf(kind: str, checkpoint: Path, options: peers.Options) -> Iterator[Contender]:
    file = peers.gguf(checkpoint, kind, options)
    if file is None:
        print(f"not measured: llama.cpp and OpenVINO GenAI on {kind}: no --gguf")
        return
    if options.llama_server is None:
        print("not measured: llama-server: no --llama-server")
    else:
        start = peers.llama_server(file, options)
        yield Server(f"llama-server {kind}", peers.bits(kind), start, answers.SAMPLING, file)
    if options.openvino is None:
        print("not measured: OpenVINO GenAI: no --openvino")
    else:
        name = f"OpenVINO GenAI {kind}, in process"
        yield Library(name, peers.bits(kind), options.openvino, "peer_openvino.py", file)


def _of_genai(precision: str, checkpoint: Path, options: peers.Options) -> Iterator[Contender]:
    if options.genai is None:
        print(f"not measured: onnxruntime-genai {precision}: no --genai")
    else:
        folder = peers.genai_model(checkpoint, precision, options)
        name = f"onnxruntime-genai {precision}, in process"
        yield Library(name, peers.bits(precision), options.genai, "peer_genai.py", folder)


def over_http(url: str, model: str, sampling: dict[str, object] = GREEDY) -> answers.Ask:
    """Return who is asked: the model that a server has."""

    def ask(clients: int, num_prompt: int, num_tokens: int) -> answers.Answered:
        seen = server.load(
            url,
            model,
            clients=clients,
            tokens=num_tokens,
            prompt=new_prompt(num_prompt),
            sampling=json.dumps(sampling),
        )
        return answers.Answered(
            num_tokens=seen["num_events"],
            first_s=seen["first_token_s"],
            wall_s=seen["wall_s"],
            together_tokens_per_s=seen["together_tokens_per_s"] if clients > 1 else None,
        )

    return ask


def new_prompt(num_tokens: int) -> str:
    """Return a question that nobody has asked, of so many tokens with its template."""
    text = f"#{secrets.token_hex(8)} " + "some words of no meaning " * num_tokens
    return text[: num_tokens - shapes.TEMPLATE_TOKENS]
