"""Simulated CUDA graphs: a capture records the operators of a step, and a replay runs them again.

A replay calls no Python code of the step, as on a device: it runs the same operators on the same
memory, so a number or an address that the host chose is the one of the capture. These rules of CUDA
graphs are enforced:

- A capture has no read by the host and no copy from it.
- Operators of a replay have results of the shapes of the capture.
- Memory that a graph reads and did not make still exists at a replay.
- Until the first replay, memory of a graph holds no values.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

Tensor = torch.Tensor
READS = frozenset({"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2"})
"""Operators whose result, or its size, the host waits for."""


class Capturing(Protocol):
    """A device that may capture."""

    recorder: "Recorder | None"


class Foreign:
    """A tensor that a graph reads or writes and did not make: known by its address."""

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storage = StorageWeakRef(storage)
        self._place = storage.data_ptr(), storage.nbytes()
        self._view = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()

    def tensor(self) -> Tensor:
        """Return a tensor over the same memory."""
        address, num_bytes = self._place
        dtype, shape, stride, offset = self._view
        if self._storage.expired():
            raise RuntimeError(f"a graph uses memory that was freed: {dtype} {list(shape)}")
        memory = (ctypes.c_char * num_bytes).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided(shape, stride, offset)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator of a graph."""

    func: Any
    args: Any
    kwargs: Any
    results: list[Tensor]
    is_view: bool

    def run(self) -> None:
        """Compute the results again, in their memory."""
        args, kwargs = tree_map_only(Foreign, Foreign.tensor, (self.args, self.kwargs))
        if self.is_view:
            return
        made = [leaf for leaf in tree_leaves(self.func(*args, **kwargs)) if _is_tensor(leaf)]
        for result, new in zip(self.results, made, strict=True):
            if new.shape != result.shape:
                raise RuntimeError(f"{self.func} gives {list(new.shape)} in a replay")
            if new.data_ptr() != result.data_ptr():
                result.copy_(new)


class Recorder:
    """Notes the operators of a capture."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._made: dict[int, torch.UntypedStorage] = {}

    def run(self, func: Any, args: Any, kwargs: Any, *, is_view: bool) -> Any:
        """Run an operator and note it."""
        if func._schema.name.partition("::")[2] in READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        known = tree_map_only(Tensor, self._known, (args, kwargs))
        made = func(*args, **kwargs)
        results = [_plain(leaf) for leaf in tree_leaves(made) if _is_tensor(leaf)]
        if not _writes(func) and not is_view:
            for result in results:
                storage = result.untyped_storage()
                self._made[storage._cdata] = storage
        self.operations.append(Operation(func, *known, results, is_view))
        return made

    def _known(self, tensor: Tensor) -> Any:
        if tensor.untyped_storage()._cdata in self._made:
            return _plain(tensor)
        if type(tensor) is Tensor and not tensor.ndim:  # a number of the host
            return tensor.clone()
        return Foreign(tensor)


class Graph:
    """Replaces ``torch.cuda.CUDAGraph``."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def replay(self) -> None:
        """Run the operators of the capture again."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            for operation in self.operations:
                operation.run()


def functions(device: Capturing) -> dict[str, Any]:
    """Return what replaces functions of ``torch.cuda``, by name."""

    @contextmanager
    def graph(graph: Graph, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
        assert pool is not None
        assert capture_error_mode == "thread_local", "other threads use the device meanwhile"
        device.recorder = Recorder()
        try:
            yield
            graph.operations = device.recorder.operations
            _empty(graph.operations)
        finally:
            device.recorder = None

    return {"CUDAGraph": Graph, "graph": graph, "graph_pool_handle": lambda: (0, 1)}


def _empty(operations: list[Operation]) -> None:
    """Remove the values of memory that a graph made."""
    for operation in operations:
        if not operation.is_view and not _writes(operation.func):
            for result in operation.results:
                if result.is_floating_point():
                    result.fill_(torch.nan)


def _writes(func: Callable[..., Any]) -> bool:
    return bool(func._schema.is_mutable)  # type: ignore[attr-defined]


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor of torch's own class over the same memory."""
    return tensor.as_subclass(Tensor)
