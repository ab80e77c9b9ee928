"""What routing saves of conversations about images, in simulated time: exact and repeatable."""

from functools import partial

import pytest
from routing_simulation import (
    by_content,
    cache_aware,
    consistent_hash,
    conversations,
    outcome,
    round_robin,
)

NUM_WORKERS, CACHE_TOKENS = 4, 200_000


def found(turns, make):
    return outcome(turns, make, NUM_WORKERS, CACHE_TOKENS, CACHE_TOKENS)


@pytest.mark.parametrize("num_gateways", [1, 3])
@pytest.mark.parametrize("rate", [1.0, 7.0])
def test_routing_saves_nearly_all_that_one_large_worker_would(rate, num_gateways):
    turns = conversations(150, seed=2, rate=rate)
    routed = found(turns, partial(by_content, CACHE_TOKENS, num_gateways=num_gateways))
    assert routed.saved >= 0.95
    assert routed.highest_load <= 1.3
    assert routed.saved > 1.05 * found(turns, cache_aware).saved
    assert routed.saved > 1.4 * found(turns, round_robin).saved


def test_routing_waits_less_than_hashing_of_conversations():
    turns = conversations(150, seed=2, rate=7.0)
    routed, hashed = (
        found(turns, make) for make in (partial(by_content, CACHE_TOKENS), consistent_hash)
    )
    assert routed.mean_wait_s < hashed.mean_wait_s
