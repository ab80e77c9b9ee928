"""Opens a graph: every option is stated, every failure is one sentence.

What a file may read besides itself is checked before ONNX Runtime sees it.
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
FATAL = 4  # ONNX Runtime logs only what ends the process


def open_session(
    file: Path, settings: ComputeSettings, *, without: Sequence[str] = ()
) -> onnxruntime.InferenceSession:
    """Load a graph, ready to run.

    Args:
        file: the graph.
        settings: where it is computed.
        without: ONNX Runtime's own rewrites that are left out.

    Raises:
        CheckpointError: the file is absent, is no graph that can run here, names external
            data outside its folder, or has 8-bit products that this CPU cannot compute.
        ConfigError: the device is not there, or what it needs to compute.
    """
    form = check(file, settings)
    options = _options(settings)
    for name, value in form.entries.items() if form else ():
        options.add_session_config_entry(name, value)
    if device_of(settings)[0] == "cuda":
        with contextlib.redirect_stdout(io.StringIO()):  # what it prints is no answer of a model
            onnxruntime.preload_dlls()  # that pip installed, where the system does not look
    try:
        with heap.returning_large_blocks():
            session = onnxruntime.InferenceSession(
                os.fspath(file),
                options,
                providers=_providers(settings.device),
                disabled_optimizers=list(without),
            )
    except Exception as error:  # its exceptions have no common parent
        raise CheckpointError(
            f"{file.name!r} is not a graph that ONNX Runtime {onnxruntime.__version__} can run"
        ) from error
    _refuse_fallback(session, settings.device)
    return session


def open_tower(file: Path, settings: ComputeSettings) -> onnxruntime.InferenceSession:
    """Load the graph of a vision tower, as :func:`open_session`.

    On a CPU sums and norms stay apart: over the many rows of a picture, the operator that does
    both takes three times as long.
    """
    on_cpu = device_of(settings)[0] == "cpu"
    return open_session(file, settings, without=["SkipLayerNormFusion"] if on_cpu else [])


def check(file: Path, settings: ComputeSettings) -> products.Form | None:
    """Look at a graph without its weights; return how its 8-bit products are computed, if any.

    Raises:
        CheckpointError: as for :func:`open_session`, as far as the weights do not matter.
        ConfigError: the device is not there.
    """
    if not file.is_file():
        raise CheckpointError(f"{file.name!r} is missing", hint="fetch or export the model again")
    _providers(settings.device)
    header = graph_header.read_header(file)
    external_data.check(file, file.parent, header)
    return products.form() if header.op_types & products.OPERATORS else None


def giving_back(session: onnxruntime.InferenceSession) -> onnxruntime.RunOptions:
    """Return options for runs that are rare and large: they give back the memory they computed in.

    ONNX Runtime otherwise keeps the most that any run took, for the next. Asking the system again
    is nothing beside a vision tower, and would cost a decoder a few percent. On a CPU only.
    """
    options = onnxruntime.RunOptions()
    if session.get_providers() == ["CPUExecutionProvider"]:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether a run failed for want of memory, which ONNX Runtime may say in words only."""
    return isinstance(error, MemoryError) or NO_MEMORY in str(error)


def is_of_device(error: Exception) -> bool:
    """Tell whether a device failed, not the graph with what it was given."""
    return any(text in str(error) for text in DEVICE_ERRORS)


def device_of(settings: ComputeSettings) -> tuple[str, int]:
    """Return the device's kind and number."""
    kind, _, number = settings.device.partition(":")
    return ("cpu" if kind == "auto" else kind), int(number or 0)


def num_threads(settings: ComputeSettings) -> int:
    """Return how many CPU threads one computation takes."""
    return num_cores() if settings.num_threads is None else settings.num_threads


def _options(settings: ComputeSettings) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads(settings)
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_mem_pattern = False  # shapes differ from step to step
    options.log_severity_level = FATAL
    options.add_session_config_entry("session.load_model_format", "ONNX")  # what was checked
    return options


def _refuse_fallback(session: onnxruntime.InferenceSession, device: str) -> None:
    """Turn down a session that computes on the CPU because a library of the device is not there.

    ONNX Runtime only logs that, and answers at a fraction of the speed.
    """
    kind, _ = device_of(ComputeSettings(device=device))
    if kind == "cuda" and CUDA not in session.get_providers():
        raise ConfigError(
            f"device {device!r} was asked for, and ONNX Runtime {onnxruntime.__version__} could "
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
            f"device {device!r} was asked for, and the installed ONNX Runtime has no CUDA",
            hint=f"uninstall onnxruntime, then {install_command('vlmkit-onnx[gpu]')}",
        )
    return [(CUDA, {"device_id": number}), "CPUExecutionProvider"]
