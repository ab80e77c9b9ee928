"""ONNX Runtime with a CUDA provider that computes on the CPU.

Binding an input copies the data of the host, as on a device. Later writes to it have no effect.
"""

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from vlmkit_onnx.sessions.runtime import onnxruntime

PROVIDERS = ["CUDAExecutionProvider", "CPUExecutionProvider"]
ON_HOST = frozenset({"total_sequence_length"})  # where the attention kernel reads it


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ONNX Runtime have a CUDA device, as far as vlmkit-onnx can tell."""
    value = onnxruntime.OrtValue
    allocate, session = value.ortvalue_from_shape_and_type, onnxruntime.InferenceSession

    def open_session(file: str, options: Any, providers: list[Any], **how: Any) -> Any:
        made = session(file, options, providers=["CPUExecutionProvider"], **how)
        return made if providers == ["CPUExecutionProvider"] else Session(made)

    def allocate_here(shape: Any, dtype: Any, *_device: Any) -> Any:
        return allocate(shape, dtype, "cpu", 0)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: PROVIDERS)
    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    monkeypatch.setattr(value, "ortvalue_from_shape_and_type", staticmethod(allocate_here))


class Session:
    """An open graph that reports CUDA as its provider."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_providers(self) -> list[str]:
        return PROVIDERS

    def io_binding(self) -> "Binding":
        return Binding(self._session.io_binding())

    def run_with_iobinding(self, binding: "Binding") -> None:
        assert not binding.is_copying, "a graph ran before its inputs were on the device"
        self._session.run_with_iobinding(binding.real)


class Binding:
    """Inputs and outputs of a session on CUDA."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.is_copying = False

    def bind_input(
        self, name: str, device: str, number: int, dtype: Any, shape: Any, address: int
    ) -> None:
        if device == "cpu" and name not in ON_HOST:
            self.bind_cpu_input(name, _array(dtype, shape, address))
        else:
            self.real.bind_input(name, "cpu", 0, dtype, shape, address)

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        self.is_copying = True
        self.real.bind_cpu_input(name, array.copy())

    def bind_output(self, name: str, device: str, *where: Any) -> None:
        self.real.bind_output(name, "cpu", *((0, *where[1:]) if where else ()))

    def get_outputs(self) -> list[Any]:
        return self.real.get_outputs()

    def synchronize_inputs(self) -> None:
        self.is_copying = False


def _array(dtype: Any, shape: tuple[int, ...], address: int) -> np.ndarray:
    dtype = np.dtype(dtype)
    content = ctypes.string_at(address, math.prod(shape) * dtype.itemsize)
    return np.frombuffer(content, dtype).reshape(shape)
