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


@pytest.mark.parametrize("gateways", [{}, {"num_gateways": 3}], ids=["one", "three"])
@pytest.mark.parametrize("rate", [1.0, 7.0])
def test_routing_saves_nearly_all_that_one_large_worker_would(rate, gateways):
    turns = conversations(150, seed=2, rate=rate)
    routed = found(turns, partial(by_content, CACHE_TOKENS, **gateways))
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


def test_gateways_that_share_nothing_agree_by_favourites():
    turns = conversations(150, seed=2, rate=7.0)
    alone = partial(by_content, CACHE_TOKENS, num_gateways=3, are_estimates_shared=False)
    assert found(turns, alone).saved >= 0.95


def test_conversations_with_a_long_common_beginning_stay_where_it_is_cached():
    """As many users ask about one document: the questions differ, and so do the favourites."""
    turns = conversations(150, seed=2, rate=7.0, system_words=(1500, 3000))
    for num_gateways in (1, 3):
        routed = found(turns, partial(by_content, CACHE_TOKENS, num_gateways=num_gateways))
        alone = partial(by_content, CACHE_TOKENS, num_gateways=3, are_estimates_shared=False)
        assert routed.saved >= 0.95
        assert routed.saved > found(turns, alone).saved
