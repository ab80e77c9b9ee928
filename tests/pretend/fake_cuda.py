"""Torch's fake tensors on a CUDA device: they have shapes and devices but no values.

Reading a value raises an error, so code that runs on them never waits for the device. A torch
without CUDA has fake tensors, but its indexing by brackets requires the device. This module
replaces that indexing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from pretend.torch_cuda import CUDA, cuda_is_there

Tensor = torch.Tensor


@contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    """Let tensors that are made for a CUDA device be fake ones."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, _Brackets(), cuda_is_there():
        yield mode


def move(model: torch.nn.Module, mode: FakeTensorMode) -> None:
    """Put fake tensors on the device in place of a model's weights."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                fake = mode.from_tensor(weight.detach()).to(CUDA)
                module._parameters[name] = torch.nn.Parameter(fake, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = mode.from_tensor(buffer).to(CUDA)


class _Brackets(TorchFunctionMode):
    """Writes indexing by brackets as the operators that it means."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            found, chosen = _viewed(*args)
            return torch.ops.aten.index(found, chosen) if chosen else found
        if func is Tensor.__setitem__:
            found, chosen = _viewed(*args[:2])
            value = args[2] if isinstance(args[2], Tensor) else found.new_full((), args[2])
            if chosen:
                torch.ops.aten.index_put_(found, chosen, value)
            else:
                _copied(found, value)
            return None
        if func is Tensor.copy_:
            return _copied(*args)
        if func is Tensor.pin_memory:
            return args[0]
        return func(*args, **(kwargs or {}))


def _copied(target: Tensor, source: Tensor) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        copied: Tensor = torch.ops.aten.copy_(target, source)
    return copied


def _viewed(tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """Return the view that an index means, and the tensors by which the view is indexed."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [part for part in parts if not isinstance(part, Tensor)]:
        place = next(i for i, part in enumerate(parts) if part is Ellipsis)
        num_given = sum(part is not None and part is not Ellipsis for part in parts)
        parts[place : place + 1] = [slice(None)] * (tensor.ndim - num_given)
    chosen: list[Tensor | None] = []
    dim = 0
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, int):
            tensor = tensor.select(dim, part)
            continue
        elif isinstance(part, slice):
            step = part.step or 1
            tensor = torch.ops.aten.slice(tensor, dim, part.start, part.stop, step)
        else:
            chosen += [None] * (dim - len(chosen))
            chosen.append(part)
        dim += 1
    return tensor, chosen
