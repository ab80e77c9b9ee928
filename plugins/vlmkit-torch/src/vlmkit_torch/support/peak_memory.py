"""Measures the memory of a computation without computing it, on tensors of the device ``meta``.

Such tensors have shapes and no numbers. Each operation reports the tensors that it creates, and
they report when they are freed. Memory that a kernel takes inside of itself is not seen.
"""

import weakref
from collections.abc import Mapping, Sequence as Seq
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

META = torch.device("meta")
ITEM = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - of Tensor.item
INDEX = torch.ops.aten.index.Tensor


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the bytes of tensors that are created inside of this context.

    Arrays of the host that meet tensors of ``meta`` are moved there, as a device would get them. A
    number that the code asks for is 1, and a mask selects everything.

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
        if function is ITEM and given[0].is_meta:
            return torch.ones((), dtype=given[0].dtype).item()
        if len({tensor.is_meta for tensor in given}) > 1:
            place = _on_host if function is INDEX and not given[0].is_meta else _on_meta
            args, kwargs = tree_map(place, (args, kwargs))
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


def _on_host(value: Any) -> Any:
    """Return an index into an array of the host, which selects everything."""
    is_mask = isinstance(value, torch.Tensor) and value.is_meta and value.dtype == torch.bool
    return torch.ones(value.shape, dtype=torch.bool) if is_mask else value


def _on_meta(value: Any) -> Any:
    return value.to(META) if isinstance(value, torch.Tensor) else value
