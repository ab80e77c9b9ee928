"""Measures the memory of a computation without computing it, on tensors of the device ``meta``.

Such tensors have shapes and no numbers. Each operation reports the tensors that it creates, and
they report when they are freed. Memory that a kernel takes inside of itself is not seen.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence as Seq
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

META = torch.device("meta")
ATTENTION = torch.nn.functional.scaled_dot_product_attention
OF_EXPERTS = tuple(
    getattr(module, name)
    for module, name in ((torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm"))
    if hasattr(module, name)
)
QKV = ("query", "key", "value")
ITEM = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - of Tensor.item
TO_COPY = torch.ops.aten._to_copy.default  # noqa: SLF001 - of Tensor.to
SPLIT = torch.ops.aten.split_with_sizes.default
COPY = torch.ops.aten.copy_.default
EQUAL = torch.ops.aten.equal.default
INDEX = torch.ops.aten.index.Tensor


@contextmanager
def peak_memory() -> "Iterator[PeakMemory]":
    """Yield what tracks the computations of this context."""
    with DeviceKernels(), PeakMemory() as memory:
        yield memory


class DeviceKernels(TorchFunctionMode):
    """Computes attention as the kernels of devices do: without a matrix of all scores.

    Also products with the weights of experts, which ``meta`` has for bfloat16 alone.
    """

    def __torch_function__(
        self,
        function: Any,
        _: Seq[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function; of attention and experts, return a tensor of its shape."""
        kwargs = kwargs or {}
        if function in OF_EXPERTS and args[0].is_meta:
            return args[0].new_empty((args[0].shape[0], args[1].shape[-1]))
        if function is not ATTENTION:
            return function(*args, **kwargs)
        query, _, value = (args + tuple(kwargs.get(name) for name in QKV[len(args) :]))[:3]
        return query.new_empty((*query.shape[:-1], value.shape[-1]))


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the bytes of tensors that are created inside of this context.

    Arrays of the host that meet tensors of ``meta`` are moved there, as a device would get them. A
    number that the code asks for is 1, tensors are equal, and a mask selects everything.

    Attributes:
        peak_bytes: the most bytes at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._num_bytes = 0
        self._live: dict[int, int] = {}  # bytes of each storage; 0 of older ones

    def __torch_dispatch__(
        self,
        function: Any,
        _: Seq[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and count what it creates."""
        kwargs = kwargs or {}
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        for tensor in given:
            self._add(tensor, is_new=False)
        if given and given[-1].is_meta and (made := _without_numbers(function, given, kwargs)):
            return made[0]
        if len({tensor.is_meta for tensor in given}) > 1:
            place = _on_host if function is INDEX and not given[0].is_meta else _on_meta
            args, kwargs = tree_map(place, (args, kwargs))
        if function is SPLIT and given[0].is_meta:
            args = (args[0], _sizes(args[0], *args[1:]), *args[2:])
        created = function(*args, **kwargs)
        for tensor in tree_leaves(created):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor, is_new=True)
        return created

    def _add(self, tensor: torch.Tensor, *, is_new: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - no public identity
        if key in self._live:
            return
        num_bytes = storage.nbytes() if is_new else 0
        self._live[key] = num_bytes
        self._num_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self._num_bytes)
        weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self._num_bytes -= self._live.pop(key, 0)


def _without_numbers(
    function: Any, given: Seq[torch.Tensor], options: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the result of an operation that needs numbers where there are none; else nothing."""
    source = given[-1]
    if function is ITEM:
        return (torch.ones((), dtype=source.dtype).item(),)
    if function is TO_COPY and torch.device(options.get("device") or META).type != "meta":
        return (torch.ones(source.shape, dtype=options.get("dtype") or source.dtype),)
    if function is EQUAL:
        return (True,)
    if function is COPY and not given[0].is_meta:
        return (given[0].fill_(1),)
    return ()


def _sizes(source: torch.Tensor, stated: Seq[int], axis: int = 0) -> list[int]:
    """Return sizes that add up to an axis: those stated, or as many equal ones."""
    num = source.shape[axis]
    if sum(stated) == num:
        return list(stated)
    each, more = divmod(num, len(stated))
    return [each + (index < more) for index in range(len(stated))]


def _on_host(value: Any) -> Any:
    """Return an index into an array of the host, which selects everything."""
    is_mask = isinstance(value, torch.Tensor) and value.is_meta and value.dtype == torch.bool
    return torch.ones(value.shape, dtype=torch.bool) if is_mask else value


def _on_meta(value: Any) -> Any:
    return value.to(META) if isinstance(value, torch.Tensor) else value
