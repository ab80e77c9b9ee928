"""The contenders of a comparison of language models, and how each is measured.

A server is measured over HTTP. A library without a server is measured in its own process, without
the cost of a server.
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
    """A contender with an HTTP server.

    Attributes:
        name: the name in tables.
        bits: the bits of a weight.
        start: starts the server.
        drawing: request fields for sampled tokens.
        weights: the file that is read for each token of a single answer, or None.
        is_ours: whether it is vlmkit.
    """

    name: str
    bits: int
    start: peers.Start
    drawing: dict[str, object]
    weights: Path | None = None
    is_ours: bool = False

    def figures(self, options: peers.Options, *, is_sampled: bool) -> answers.Figures:
        """Start the server, measure it and end it."""
        sampling = self.drawing if is_sampled else GREEDY
        with self.start() as (url, model):
            ask = over_http(url, model, sampling)
            return answers.figures(ask, options.tokens, is_sampled=is_sampled)


@dataclass(frozen=True)
class Library:
    """A contender without a server.

    Attributes:
        name: the name in tables.
        bits: the bits of a weight.
        python: the interpreter of its environment.
        script: the program that measures it.
        model: the path of its files.
    """

    name: str
    bits: int
    python: str
    script: str
    model: Path
    is_ours: ClassVar[bool] = False

    def figures(self, options: peers.Options, *, is_sampled: bool) -> answers.Figures:
        """Measure the library in its own process."""
        command = [self.python, str(server.HERE / self.script), str(self.model)]
        command += ["--threads", str(options.threads), "--tokens", str(options.tokens)]
        command += ["--sampled"] if is_sampled else []
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{self.script} failed: {done.stderr[-2000:]}")
        found: answers.Figures = json.loads(done.stdout.splitlines()[-1])
        return found


Contender = Server | Library


def figures_or_none(name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the figures of a contender; on a failure print it and return none."""
    try:
        return measure()
    except RuntimeError as error:
        print(f"not measured: {name}: {error}", flush=True)
        return {}


def contenders(checkpoint: Path, options: peers.Options) -> Iterator[Contender]:
    """Yield the contenders, grouped by bits."""
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
    """Return a function that sends requests to the model of a server."""

    def ask(clients: int, num_prompt: int, num_tokens: int) -> answers.AnswerTimes:
        seen = server.load(
            url,
            model,
            clients=clients,
            tokens=num_tokens,
            prompt=new_prompt(num_prompt),
            sampling=json.dumps(sampling),
        )
        return answers.AnswerTimes(
            num_tokens=seen["num_events"],
            first_s=seen["first_token_s"],
            wall_s=seen["wall_s"],
            together_tokens_per_s=seen["together_tokens_per_s"] if clients > 1 else None,
        )

    return ask


def new_prompt(num_tokens: int) -> str:
    """Return a new prompt of a number of tokens, template included."""
    text = f"#{secrets.token_hex(8)} " + "some words of no meaning " * num_tokens
    return text[: num_tokens - shapes.TEMPLATE_TOKENS]
