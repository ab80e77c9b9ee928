"""Limits the tokens of a forward pass after the device runs out of memory.

The limit starts open, falls at each failure and never rises again. The scheduler selects the items.
"""

import logging
from collections.abc import Callable, Iterator, Sequence as Seq
from typing import TypeVar

import torch

from vlmkit.interfaces.step import WorkItem
from vlmkit_torch.devices.faults import free_memory, is_out_of_memory

log = logging.getLogger(__name__)

R = TypeVar("R")


class StepSize:
    """Splits work items into passes that fit into memory; a larger item runs alone.

    Attributes:
        max_tokens: most tokens of a pass; None until memory runs out.

    Args:
        device: that computes.
    """

    def __init__(self, device: torch.device) -> None:
        self.max_tokens: int | None = None
        self._device = device

    def run(self, compute: Callable[[list[WorkItem]], R], items: Seq[WorkItem]) -> Iterator[R]:
        """Compute items in as few passes as fit; halve a pass that runs out of memory.

        Raises:
            Exception: a pass failed for another reason, or one item alone ran out of memory.
        """
        waiting = list(self._cut(items))
        while waiting:
            group = waiting.pop(0)
            try:
                result = compute(group)
            except Exception as error:
                if len(group) == 1 or not is_out_of_memory(error):
                    raise
            else:
                yield result
                continue
            # Outside the handler, because the error references what the pass had computed.
            free_memory(self._device)
            self.max_tokens = max(1, _num_tokens(group) // 2)
            log.warning("steps have at most %d tokens from now on", self.max_tokens)
            waiting[:0] = self._cut(group)

    def _cut(self, items: Seq[WorkItem]) -> Iterator[list[WorkItem]]:
        """Yield adjacent items that fit into one pass."""
        group: list[WorkItem] = []
        num_tokens = 0
        for item in items:
            num_tokens += item.num_tokens
            if group and self.max_tokens is not None and num_tokens > self.max_tokens:
                yield group
                group, num_tokens = [], item.num_tokens
            group.append(item)
        if group:
            yield group


def _num_tokens(items: Seq[WorkItem]) -> int:
    return sum(item.num_tokens for item in items)
