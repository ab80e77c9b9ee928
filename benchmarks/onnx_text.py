"""The language model of vlmkit-onnx against its peers, on random weights of a real shape.

Servers are asked through HTTP streaming; OpenVINO GenAI and onnxruntime-genai bring no server of
their own, so they are measured in process, which spares them a server's cost. Everybody has the
same threads, lengths and weights, greedy; whoever takes part runs once in each round, those of as
many bits one after the other, so that a minute of slow memory harms neighbours alike. Ratios are
those of each round.
"""

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import answers
import peers
import quiet
import server
import shapes

COLUMNS = {
    "one": "1 client",
    "eight": "8 clients",
    "eight_together": "8 clients, answers only",
    "prompt": f"{answers.Lengths.prompt}-token prompt",
    "memory": "memory just before, GB/s",
}
TARGETS = (  # ours, theirs, column, at least
    ("vlmkit {p8}", "llama.cpp python server q8_0", "one", 1.2),
    ("vlmkit {p8}", "llama-server q8_0", "one", 1.2),
    ("vlmkit {p8}", "llama.cpp python server q8_0", "eight", 1.5),
    ("vlmkit {p8}", "llama-server q8_0", "eight", 1.5),
    ("vlmkit {p8}", "llama.cpp python server q8_0", "prompt", 2.5),
    ("vlmkit {p8}", "llama-server q8_0", "prompt", 2.5),
    ("vlmkit {p8}", "OpenVINO GenAI q8_0, in process", "prompt", 1.1),
    ("vlmkit int4", "llama.cpp python server q4_0", "one", 1.2),
    ("vlmkit int4", "llama-server q4_0", "one", 1.2),
    ("vlmkit int4", "llama-server q4_0", "eight", 1.5),
    ("vlmkit int4", "llama-server q4_0", "prompt", 2.5),
)

Figures = dict[str, float]


@dataclass(frozen=True)
class Contender:
    """Who takes part: a name, and a function that starts it, measures and ends it."""

    name: str
    measure: Callable[[], Figures]


def bench(options: peers.Options) -> None:
    """Measure everybody in turn and print the table."""
    checkpoint = shapes.save(options.shape, options.models / f"random-{options.shape}")
    contenders = list(_contenders(checkpoint, options))
    seen: dict[str, list[Figures]] = {contender.name: [] for contender in contenders}
    for number in range(options.rounds):
        for contender in contenders:
            quiet.wait_until(options.idle_but)
            figures = {"memory": quiet.memory_gb_per_s(options.threads), **contender.measure()}
            seen[contender.name].append(figures)
            print(f"round {number + 1}, {contender.name}: {_line(figures)}", flush=True)
    print(f"\ntokens/s, {options.shape}, {options.threads} threads, {options.tokens} new tokens")
    print("| engine | " + " | ".join(COLUMNS.values()) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, rounds in seen.items():
        cells = [peers.spread([f[key] for f in rounds if key in f]) for key in COLUMNS]
        print(f"| {name} | " + " | ".join(cells) + " |")
    _print_ratios(seen)


def _line(figures: Figures) -> str:
    return ", ".join(f"{COLUMNS[key]} {value:.4g}" for key, value in figures.items())


def _print_ratios(seen: dict[str, list[Figures]]) -> None:
    for ours, theirs, column, least in TARGETS:
        for p8 in ("w8a8", "int8"):
            name = ours.format(p8=p8)
            if name not in seen or theirs not in seen or (name == ours and p8 != "w8a8"):
                continue
            rounds = zip(seen[name], seen[theirs], strict=True)
            ratios = peers.spread([own[column] / other[column] for own, other in rounds])
            print(f"{COLUMNS[column]}: {name} / {theirs} = {ratios} (target {least})")


def _contenders(checkpoint: Path, options: peers.Options) -> Iterator[Contender]:
    for kind in ("q8_0", "q4_0"):
        bits = peers.bits(kind)
        precisions = [p for p in options.precisions if peers.bits(p) == bits]
        for precision in precisions:
            start = peers.vlmkit(peers.exported(checkpoint, precision), options)
            yield Contender(f"vlmkit {precision}", _of_server(start, options))
        if precisions:
            yield from _of_gguf(kind, checkpoint, options)
            yield from _of_genai(f"int{bits}", checkpoint, options)
    if options.vllm is None:
        print("not measured: vLLM: no --vllm")
    else:
        yield Contender("vLLM bf16", _of_server(peers.vllm(checkpoint, options), options))


def _of_gguf(kind: str, checkpoint: Path, options: peers.Options) -> Iterator[Contender]:
    file = peers.gguf(checkpoint, kind, options)
    if file is None:
        print(f"not measured: llama.cpp and OpenVINO GenAI on {kind}: no --llama-cpp")
        return
    start = peers.llama_cpp(file, options)
    yield Contender(f"llama.cpp python server {kind}", _of_server(start, options))
    if options.llama_server is None:
        print("not measured: llama-server: no --llama-server")
    else:
        start = peers.llama_server(file, options)
        yield Contender(f"llama-server {kind}", _of_server(start, options))
    if options.openvino is None:
        print("not measured: OpenVINO GenAI: no --openvino")
    else:
        run = _in_process("peer_openvino.py", options.openvino, file, options)
        yield Contender(f"OpenVINO GenAI {kind}, in process", run)


def _of_genai(precision: str, checkpoint: Path, options: peers.Options) -> Iterator[Contender]:
    if options.genai is None:
        print(f"not measured: onnxruntime-genai {precision}: no --genai")
    else:
        folder = peers.genai_model(checkpoint, precision, options)
        run = _in_process("peer_genai.py", options.genai, folder, options)
        yield Contender(f"onnxruntime-genai {precision}, in process", run)


def _of_server(start: peers.Start, options: peers.Options) -> Callable[[], Figures]:
    def measure() -> Figures:
        with start() as (url, model):
            return answers.figures(ask_over_http(url, model), _lengths(options))

    return measure


def ask_over_http(url: str, model: str) -> answers.Ask:
    """Return who is asked: the model that a server has."""

    def ask(clients: int, num_prompt: int, num_tokens: int) -> answers.Answered:
        text = _prompt(num_prompt)
        seen = server.load(url, model, clients=clients, tokens=num_tokens, prompt=text)
        return answers.Answered(
            num_tokens=seen["num_events"],
            first_s=seen["first_token_s"],
            wall_s=seen["wall_s"],
            together_tokens_per_s=seen["together_tokens_per_s"] if clients > 1 else None,
        )

    return ask


def _lengths(options: peers.Options) -> answers.Lengths:
    return answers.Lengths(answer=options.tokens)


def _prompt(num_tokens: int) -> str:
    """Return a question that nobody has asked, of so many tokens with its template."""
    text = f"#{secrets.token_hex(8)} " + "some words of no meaning " * num_tokens
    return text[: num_tokens - shapes.TEMPLATE_TOKENS]


def _in_process(
    script: str, python: str, model: Path, options: peers.Options
) -> Callable[[], Figures]:
    command = [python, str(server.HERE / script), str(model), "--threads", str(options.threads)]
    lengths = _lengths(options)
    command += ["--start", str(lengths.start), "--answer", str(lengths.answer)]
    command += ["--prompt", str(lengths.prompt)]

    def measure() -> Figures:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{script} failed: {done.stderr[-2000:]}")
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures

    return measure
