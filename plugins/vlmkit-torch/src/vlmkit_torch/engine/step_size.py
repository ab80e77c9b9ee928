"""How many tokens a forward pass may have: as many as come, until the device's memory runs out.

Learns from failures and never forgets; which items those tokens are of is the scheduler's business.
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
    """The most tokens of one forward pass; an item that has more runs alone.

    Args:
        device: whose memory it is.
    """

    def __init__(self, device: torch.device) -> None:
        self.most_tokens: int | None = None
        self._device = device

    def run(self, compute: Callable[[list[WorkItem]], R], items: Seq[WorkItem]) -> Iterator[R]:
        """Compute items in as few passes as fit, halving those that run out of memory.

        Raises:
            Exception: a pass failed otherwise, or ran out of memory with one item alone.
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
            # Out of the handler: the error holds what the pass had computed.
            free_memory(self._device)
            self.most_tokens = max(1, _num_tokens(group) // 2)
            log.warning("steps have at most %d tokens from now on", self.most_tokens)
            waiting[:0] = self._cut(group)

    def _cut(self, items: Seq[WorkItem]) -> Iterator[list[WorkItem]]:
        """Yield neighbours that have no more tokens than a pass may have."""
        group: list[WorkItem] = []
        num_tokens = 0
        for item in items:
            num_tokens += item.num_tokens
            if group and self.most_tokens is not None and num_tokens > self.most_tokens:
                yield group
                group, num_tokens = [], item.num_tokens
            group.append(item)
        if group:
            yield group


def _num_tokens(items: Seq[WorkItem]) -> int:
    return sum(item.num_tokens for item in items)
