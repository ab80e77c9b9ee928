"""A simulated CUDA device for torch that computes on the CPU.

Tensors report the device ``cuda:0`` and hold data of the host. A function with tensors of both
devices fails, as on a real device. The device counts kernels, copies from the host, and reads by
the host, which wait for all kernels. Only calls of torch are intercepted.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._functorch import vmap
from torch.nn.attention.bias import CausalBias
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from pretend import cuda_graphs
from pretend.cuda_graphs import READS, Recorder
from pretend.cuda_memory import Memory

CUDA = torch.device("cuda", 0)
HOST = torch.device("cpu")
GIB = 2**30
Tensor = torch.Tensor
MAKERS = frozenset({torch.tensor, torch.asarray, torch.as_tensor, torch.scalar_tensor})
MOVERS = frozenset({Tensor.to, Tensor.cuda, Tensor.cpu, Tensor.copy_, *MAKERS})
NO_KERNELS = frozenset({"_local_scalar_dense", "_unsafe_view", "detach", "empty"})
PLAIN = frozenset({torch._has_compatible_shallow_copy_type, torch._C._nn._parse_to})
"""Functions that compute nothing."""
INDEXERS = frozenset({Tensor.__getitem__, Tensor.__setitem__})
FACTS = {
    Tensor.device.__get__: CUDA,
    Tensor.is_cuda.__get__: True,
    Tensor.is_cpu.__get__: False,
    Tensor.get_device: 0,
    Tensor.__dlpack_device__: (2, 0),
}
NOT_HERE = {Tensor.numpy: TypeError, Tensor.__array__: TypeError, Tensor.__dlpack__: BufferError}


class OnCuda(torch.Tensor):
    """A tensor on the device, while calls are intercepted."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    # These two let a module replace its weights by such tensors, shared ones included.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return [], None

    @staticmethod
    def __tensor_unflatten__(*_: Any) -> "OnCuda":
        raise NotImplementedError


@dataclass
class Device:
    """What the device did.

    Attributes:
        kernels: how often each operator ran.
        num_copies: arrays that came from the host.
        num_reads: times that the host waited for all that was started.
        num_waits: times that the host waited for one copy alone.
        num_idle_waits: those of them after which the device had nothing more to compute.
        is_broken: whether it fails at everything, as after an assertion in a kernel.
        is_busy: a call that concerns the device runs.
        recorder: notes the operators of a step that is captured; None outside a capture.
        memory: what tensors on the device take.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    num_copies: int = 0
    num_reads: int = 0
    num_waits: int = 0
    num_idle_waits: int = 0
    is_broken: bool = False
    is_busy: bool = False
    recorder: Recorder | None = None
    memory: Memory = field(default_factory=Memory)
    _stays: bool = False
    _started_copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def reset(self) -> None:
        """Count from nothing."""
        self.kernels.clear()
        self.num_copies = self.num_reads = self.num_waits = self.num_idle_waits = 0

    def start_copy(self, target: Tensor, source: Tensor) -> Tensor:
        """Copy an array to the host, where its numbers are wrong until they are awaited."""
        self._started_copies.append((target, source.as_subclass(Tensor).clone()))
        return target.fill_(-1)

    def take_copies(self) -> list[tuple[Tensor, Tensor]]:
        """Return the copies to the host that were started since the last call."""
        started, self._started_copies = self._started_copies, []
        return started

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function, on the device if an argument is there or the result goes there."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        target = _target(func, args, kwargs)
        ours = [tensor for tensor in tensors if isinstance(tensor, OnCuda)]
        if func is Tensor.pin_memory:
            return args[0]
        if func in PLAIN or (not ours and not _is_cuda(target)):
            return func(*args, **kwargs)
        if ours and func in FACTS:
            return FACTS[func]
        if ours and func in NOT_HERE:
            raise NOT_HERE[func]("can't convert cuda:0 device type tensor")
        if self.is_broken and getattr(func, "__name__", "") != "__get__":
            raise RuntimeError("CUDA error: device-side assert triggered")
        if func not in MOVERS:
            self._refuse_two_places(func, args, tensors)
        if func is Tensor.copy_ and kwargs.get("non_blocking") and type(args[0]) is Tensor:
            return self.start_copy(*args)
        stays = self._note_move(func, args, ours, target)
        args, kwargs = tree_map_only(torch.device, _to_host, (args, kwargs))
        self.is_busy, self._stays = True, stays
        try:
            made = _compute(func, args, kwargs, goes=bool(ours) != stays)
        finally:
            self.is_busy = False
        if not stays or isinstance(made, torch.Size):  # which a map would turn into a tuple
            return made
        return tree_map_only(Tensor, _on_cuda, made)

    def note_results(self, made: Any) -> None:
        """Count the memory of the results of an operator."""
        if self._stays:
            for tensor in tree_leaves(made):
                if isinstance(tensor, Tensor):
                    self.memory.add(tensor)

    def _note_move(self, func: Any, args: Any, ours: list[Any], target: Any) -> bool:
        """Count transfers between devices; return whether the result is on the device.

        Raises:
            RuntimeError: a step that is captured has one.
        """
        before = (self.num_copies, self.num_reads)
        stays = self._counted_move(func, args, ours, target)
        if self.recorder is not None and (self.num_copies, self.num_reads) != before:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        return stays

    def _counted_move(self, func: Any, args: Any, ours: list[Any], target: Any) -> bool:
        if func is Tensor.copy_:
            self.num_copies += isinstance(args[0], OnCuda) and not isinstance(args[1], OnCuda)
            self.num_reads += not isinstance(args[0], OnCuda)
            return isinstance(args[0], OnCuda)
        self.num_reads += func is Tensor.tolist
        goes = target is not None and not _is_cuda(target)
        if ours and goes:
            self.num_reads += 1
        elif not ours and func in MOVERS:
            self.num_copies += 1
        return not goes

    def _refuse_two_places(self, func: Any, args: Any, tensors: list[Tensor]) -> None:
        """Fail where a device does: only numbers of the host may take part, and indices."""
        on_host = [t for t in tensors if not isinstance(t, OnCuda | CausalBias) and t.ndim]
        if func in INDEXERS and isinstance(args[0], OnCuda):
            self.num_copies += len(on_host)
            if on_host and self.recorder is not None:
                raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        elif on_host:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! ({func}, {tuple(on_host[0].shape)})"
            )


def _event(device: Device) -> type:
    """Return what replaces ``torch.cuda.Event`` on a device."""

    class Event:
        """Ends the copies that were started before it was recorded."""

        def record(self) -> None:
            self._copies = device.take_copies()
            self._num_kernels = device.kernels.total()

        def synchronize(self) -> None:
            device.num_waits += 1
            device.num_idle_waits += device.kernels.total() == self._num_kernels
            for target, numbers in self._copies:
                target.copy_(numbers)

    return Event


class _Calls(TorchFunctionMode):
    """Looks at every call of torch."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.device.call(func, args, kwargs or {})


class _Kernels(TorchDispatchMode):
    """Counts the operators of calls that concern the device; views take no kernel."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.device.is_busy:
            name = func._schema.name.partition("::")[2]
            self.device.num_reads += name in READS
            aliases = [made.alias_info for made in func._schema.returns if made.alias_info]
            is_view = any(not alias.is_write for alias in aliases)
            if not is_view and name not in NO_KERNELS:
                self.device.kernels[name] += 1
            if self.device.recorder is not None:
                made = self.device.recorder.run(func, args, kwargs or {}, is_view=is_view)
            else:
                made = func(*args, **(kwargs or {}))
            self.device.note_results(made)
            return made
        return func(*args, **(kwargs or {}))


@contextmanager
def cuda_is_there(*, gib: float = 8) -> Iterator[None]:
    """Let torch say that there is a CUDA device with so much free memory."""
    facts = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "mem_get_info": lambda *_: (int(gib * GIB), int(gib * GIB)),
        "get_device_capability": lambda *_: (9, 0),
        "empty_cache": lambda: None,
        "synchronize": lambda *_: None,
    }
    with ExitStack() as stack:
        for name, fact in facts.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, fact))
        yield


@contextmanager
def pretended_cuda(*, gib: float = 8) -> Iterator[Device]:
    """Let torch have a CUDA device with so much free memory, as far as vlmkit can tell."""
    device = Device(memory=Memory(int(gib * GIB)))
    with ExitStack() as stack:
        stack.enter_context(cuda_is_there(gib=gib))
        for name, made in device.memory.functions().items():
            stack.enter_context(mock.patch.object(torch.cuda, name, made))
        for name in ("_add_batch_dim", "_remove_batch_dim"):  # of vmap, which are no calls of torch
            stays = _staying(getattr(vmap, name))
            stack.enter_context(mock.patch.object(vmap, name, stays))
        stack.enter_context(mock.patch.object(torch.cuda, "Event", _event(device)))
        stack.enter_context(mock.patch.object(CausalBias, "__new__", _bias, create=True))
        for name, made in cuda_graphs.functions(device).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, made))
        stack.enter_context(_Kernels(device))
        stack.enter_context(_Calls(device))
        yield device


def _bias(kind: type[CausalBias], *_: Any) -> CausalBias:
    """Return a bias that knows no modes, under which torch cannot make one."""
    with _disable_current_modes():
        return torch.Tensor._make_subclass(kind, torch.empty(0))


def _target(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the device that a call names, itself or by a tensor to go to; None if none."""
    if func is Tensor.cpu:
        return HOST
    if func is Tensor.cuda:
        return CUDA
    named = kwargs.get("device")
    if named is None and func is Tensor.to:
        named = kwargs.get("other", args[1] if len(args) > 1 else None)
    if isinstance(named, Tensor):
        return CUDA if isinstance(named, OnCuda) else HOST
    if named is None and func in MAKERS and any(isinstance(a, OnCuda) for a in tree_leaves(args)):
        return CUDA if isinstance(args[0], OnCuda) else None
    return torch.device(named) if isinstance(named, str | torch.device) else None


def _is_cuda(device: Any) -> bool:
    return isinstance(device, torch.device) and device.type == "cuda"


def _to_host(device: torch.device) -> torch.device:
    return HOST if _is_cuda(device) else device


def _on_cuda(tensor: Tensor) -> Tensor:
    return tensor if isinstance(tensor, OnCuda) else tensor.as_subclass(OnCuda)


def _staying(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a tensor that leaves it where it is."""

    def stays(tensor: Any, *args: Any) -> Any:
        made = func(tensor, *args)
        return _on_cuda(made) if isinstance(tensor, OnCuda) else made

    return stays


def _compute(func: Callable[..., Any], args: Any, kwargs: Any, *, goes: bool) -> Any:
    """Run a function on the CPU; a transfer between devices becomes a copy."""
    if func in MOVERS:
        args = [HOST if isinstance(arg, str) else arg for arg in args]
        if func is Tensor.cuda:
            return args[0].clone()
        made = func(*args, **{**kwargs, **({"device": HOST} if "device" in kwargs else {})})
        return made.clone() if goes and made is args[0] else made
    if func is torch.histc and not args[0].is_floating_point():  # which only a device has
        return func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
    return func(*args, **kwargs)
