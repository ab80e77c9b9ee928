"""How many replicas a model needs: a policy for the autoscaler of Ray Serve.

It runs in the controller of Ray Serve. The delays and the bounds of the settings are applied by
Ray Serve itself.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

WAITING_TOKENS = "waiting_tokens"
"""Tokens of prompts that wait in a replica."""
NUM_SEQUENCES = "num_sequences"
"""Sequences that run or wait in a replica."""
MAX_SEQUENCES = "max_sequences"
"""Sequences that can run in a replica at once."""


def needed_replicas(replicas: Iterable[Mapping[str, float]], waiting_tokens: int) -> int:
    """Return how many replicas are needed.

    There are enough if the waiting prompts, spread evenly, are at most ``waiting_tokens`` for each,
    and if all sequences fit. The second condition keeps replicas that are busy and have no queue.

    Args:
        replicas: the numbers that each replica reports.
        waiting_tokens: tokens of prompts that may wait for each replica.
    """
    each = list(replicas)
    waiting = sum(one.get(WAITING_TOKENS, 0.0) for one in each)
    sequences = sum(one.get(NUM_SEQUENCES, 0.0) for one in each)
    room = max((one.get(MAX_SEQUENCES, 1.0) for one in each), default=1.0)
    return max(math.ceil(waiting / waiting_tokens), math.ceil(sequences / max(1.0, room)))


class WaitingTokensPolicy:
    """The policy of a deployment.

    Args:
        waiting_tokens: tokens of prompts that may wait for each replica.
    """

    def __init__(self, waiting_tokens: int) -> None:
        self._waiting_tokens = waiting_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas that are needed, and no state."""
        reported: dict[Any, dict[str, float]] = {}
        for name in (WAITING_TOKENS, NUM_SEQUENCES, MAX_SEQUENCES):
            for replica, number in ((context.aggregated_metrics or {}).get(name) or {}).items():
                reported.setdefault(replica, {})[name] = number
        return needed_replicas(reported.values(), self._waiting_tokens), {}
