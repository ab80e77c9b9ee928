"""Opens sessions for graphs, with explicit options and errors of one sentence.

Checks which other files a graph reads before ONNX Runtime opens it. Runs no graph.
"""

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.kit import heap
from vlmkit.kit.cores import num_cores
from vlmkit.kit.install_command import install_command
from vlmkit_onnx.folder import external_data, graph_header
from vlmkit_onnx.sessions import products
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.settings import ComputeSettings

NO_MEMORY = "Failed to allocate memory"
DEVICE_ERRORS = ("CUDA failure", "CUDA error", "CUBLAS", "CUDNN")
CUDA = "CUDAExecutionProvider"
FATAL = 4  # ONNX Runtime logs only errors that end the process
SPIN_US = 50  # longer than the gaps between the parallel parts of a step
SMALL_WEIGHTS_BYTES = 4 * 2**20  # of one step, which two threads compute no faster than one


def open_session(
    file: Path, settings: ComputeSettings, *, without: Sequence[str] = ()
) -> onnxruntime.InferenceSession:
    """Load a graph, ready to run.

    Args:
        file: the graph.
        settings: device and threads.
        without: ONNX Runtime's optimizers to disable.

    Raises:
        CheckpointError: the file is absent, is not a graph that can run here, names external
            data outside its folder, or has 8-bit products that this CPU cannot compute.
        ConfigError: the device, or a library that it needs, is absent.
    """
    form = check(file, settings)
    options = _options(num_threads(file, settings))
    for name, value in form.entries.items() if form else ():
        options.add_session_config_entry(name, value)
    if device_of(settings)[0] == "cuda":
        # It finds libraries that pip installed. Its output must not mix with a model's answer.
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    try:
        with heap.returning_large_blocks():
            session = onnxruntime.InferenceSession(
                os.fspath(file),
                options,
                providers=_providers(settings.device),
                disabled_optimizers=list(without),
            )
    except Exception as error:  # its exceptions have no common base class
        raise CheckpointError(
            f"{file.name!r} is not a graph that ONNX Runtime {onnxruntime.__version__} can run"
        ) from error
    _refuse_fallback(session, settings.device)
    return session


def open_tower(file: Path, settings: ComputeSettings) -> onnxruntime.InferenceSession:
    """Load the graph of a vision tower; see :func:`open_session`.

    On a CPU, sums and norms are not fused: with the many rows of an image, the fused operator takes
    three times as long.
    """
    on_cpu = device_of(settings)[0] == "cpu"
    return open_session(file, settings, without=["SkipLayerNormFusion"] if on_cpu else [])


def check(file: Path, settings: ComputeSettings) -> products.Form | None:
    """Check a graph without its weights; return the kernels for its 8-bit products, if any.

    Raises:
        CheckpointError: see :func:`open_session`; errors of weights are not found.
        ConfigError: the device is absent.
    """
    if not file.is_file():
        raise CheckpointError(f"{file.name!r} is missing", hint="fetch or export the model again")
    _providers(settings.device)
    header = graph_header.read_header(file)
    external_data.check(file, file.parent, header)
    return products.form() if header.op_types & products.OPERATORS else None


def shrinking_arena(session: onnxruntime.InferenceSession) -> onnxruntime.RunOptions:
    """Return options for rare, large runs that return their working memory to the system.

    Otherwise ONNX Runtime keeps the largest memory of any run. New allocations cost little beside a
    vision tower, but a few percent of a decoder's time. Only on a CPU.
    """
    options = onnxruntime.RunOptions()
    if session.get_providers() == ["CPUExecutionProvider"]:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def is_out_of_memory(error: Exception) -> bool:
    """Return whether a run failed because of memory; ONNX Runtime may state it in words only."""
    return isinstance(error, MemoryError) or NO_MEMORY in str(error)


def is_of_device(error: Exception) -> bool:
    """Return whether the device failed, not the graph with its inputs."""
    return any(text in str(error) for text in DEVICE_ERRORS)


def device_of(settings: ComputeSettings) -> tuple[str, int]:
    """Return the device's kind and number."""
    kind, _, number = settings.device.partition(":")
    return ("cpu" if kind == "auto" else kind), int(number or 0)


def num_threads(file: Path, settings: ComputeSettings) -> int:
    """Return how many CPU threads compute a graph: the setting, or one for each core.

    A graph with small weights gets one: its threads would wait for each other longer than compute.
    """
    if settings.num_threads is not None:
        return settings.num_threads
    return 1 if weights_bytes(file) < SMALL_WEIGHTS_BYTES else num_cores()


def weights_bytes(file: Path) -> int:
    """Return the size of a graph with the weights in other files."""
    external = graph_header.read_header(file).external
    return file.stat().st_size + sum(tensor.num_bytes for tensor in external)


def _options(num_threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_mem_pattern = False  # shapes differ from step to step
    options.log_severity_level = FATAL
    # By default, threads without work spin for milliseconds, on cores that the engine loop, request
    # preparation and other processes need. Sleeping at once would cost a decoder 10 percent.
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    options.add_session_config_entry(
        "session.load_model_format", "ONNX"
    )  # the format that was checked
    return options


def _refuse_fallback(session: onnxruntime.InferenceSession, device: str) -> None:
    """Refuse a session that computes on the CPU because a library of the device is absent.

    ONNX Runtime only logs that, and runs at a fraction of the speed.
    """
    kind, _ = device_of(ComputeSettings(device=device))
    if kind == "cuda" and CUDA not in session.get_providers():
        raise ConfigError(
            f"device {device!r} is requested, but ONNX Runtime {onnxruntime.__version__} could "
            "not load the CUDA libraries that it needs",
            hint=f"{install_command('onnxruntime-gpu[cuda,cudnn]')}; or install the CUDA and cuDNN "
            "that it was built for",
        )


def _providers(device: str) -> list[Any]:
    kind, number = device_of(ComputeSettings(device=device))
    if kind == "cpu":
        return ["CPUExecutionProvider"]
    if CUDA not in onnxruntime.get_available_providers():
        raise ConfigError(
            f"device {device!r} is requested, but the installed ONNX Runtime has no CUDA",
            hint=f"uninstall onnxruntime, then {install_command('vlmkit-onnx[gpu]')}",
        )
    return [(CUDA, {"device_id": number}), "CPUExecutionProvider"]
