"""The layout of a prompt: positions of its tokens, and what each token sees. Needs no features."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from vlmkit.interfaces.prompt import Span
from vlmkit_torch.attention.layer_kind import Visibility
from vlmkit_torch.cross_attention.spec import AttendingSpan


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions and visibility of a prompt's tokens, on the host.

    Attributes:
        positions: ``[axes, seq]``; None if token ``i`` has position ``i``.
        offset: token ``i`` after the prompt has position ``i + offset``.
        views: the family's own masks by layer kind, if not simply causal.
        attending_spans: the tokens that attend to each image, for cross-attention.
    """

    positions: np.ndarray | None
    offset: int
    views: dict[str, Visibility] = field(default_factory=dict)
    attending_spans: tuple[AttendingSpan, ...] = ()

    @property
    def num_axes(self) -> int:
        """Rows of the positions."""
        return 1 if self.positions is None else self.positions.shape[0]

    @property
    def is_plain_text(self) -> bool:
        """Whether attention is causal and positions are consecutive."""
        if self.positions is None or self.views:
            return not self.views
        return np.array_equal(self.positions, self._consecutive(self.positions.shape[1]))

    def for_length(self, count: int) -> "Layout":
        """Return the layout of a plain text of another length."""
        if self.positions is None:
            return self
        return Layout(self._consecutive(count), self.offset)

    def spans(self) -> tuple[Span, ...]:
        """Return the token ranges in which some token sees a later one."""
        if not self.views:
            return ()
        stops = np.stack([view.stop for view in self.views.values()]).max(0).tolist()
        spans: list[Span] = []
        for index, stop in enumerate(stops):
            if stop <= index + 1:
                continue
            if spans and index < spans[-1].stop:
                spans[-1] = Span(spans[-1].start, max(stop, spans[-1].stop))
            else:
                spans.append(Span(index, stop))
        return tuple(spans)

    def _consecutive(self, count: int) -> np.ndarray:
        assert self.positions is not None  # noqa: S101 - the callers check it
        return self.positions[:, :1] + np.arange(count)


def positions_on_host(value: torch.Tensor | None) -> np.ndarray | None:
    """Return positions as ``[axes, seq]``, from ``[1, seq]`` or ``[axes, 1, seq]``."""
    return None if value is None else on_host(value.reshape(-1, value.shape[-1]))


def on_host(value: torch.Tensor) -> np.ndarray:
    """Return a tensor's values as numpy's array."""
    array: np.ndarray = value.cpu().numpy()
    return array


def visibilities(masks: Any, count: int) -> dict[str, Visibility]:
    """Return a family's masks as intervals, if any token sees a later one; else nothing.

    A mask of earlier tokens alone is left out: the layer's own window has the same effect.

    Args:
        masks: one tensor, or tensors by layer kind.
        count: tokens of the prompt.
    """
    if isinstance(masks, torch.Tensor):
        masks = {"full_attention": masks}
    views, looks_ahead = {}, False
    for name, mask in (masks or {}).items():
        if not isinstance(mask, torch.Tensor) or mask.ndim != 4:
            continue
        views[name] = view = _visibility(mask[0, 0], count)
        looks_ahead |= view.dense is not None or bool((view.stop > np.arange(count) + 1).any())
    return views if looks_ahead else {}


def _visibility(mask: torch.Tensor, count: int) -> Visibility:
    """Read intervals ``[seq, 2]``, or a mask ``[seq, seq]`` whose ranges have holes."""
    if mask.dtype == torch.int64:
        return Visibility(*on_host(mask).T)
    visible = mask[:, :count]
    visible = visible if visible.dtype == torch.bool else visible > -1
    index = torch.arange(count, device=visible.device)
    start = torch.where(visible, index, count).amin(1)
    stop = torch.where(visible, index + 1, 0).amax(1)
    has_holes = not torch.equal(visible.sum(1), stop - start)
    return Visibility(on_host(start), on_host(stop), visible if has_holes else None)
