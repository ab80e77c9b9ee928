"""The parts that need no Ray: routes, statistics, the outbox, and the policy of scaling."""

import asyncio
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from vlmkit.errors import ConfigError
from vlmkit.running.fleet.prompt_keys import Segment
from vlmkit.types.runner_stats import RunnerStats
from vlmkit_ray.autoscaling import (
    MAX_SEQUENCES,
    NUM_SEQUENCES,
    WAITING_TOKENS,
    WaitingTokensPolicy,
    needed_replicas,
)
from vlmkit_ray.calls import Call, ReplicaLoad, Route
from vlmkit_ray.config_file import ConfigFile
from vlmkit_ray.outbox import PIECE_BYTES, Outbox
from vlmkit_ray.replica_statistics import ReplicaStatistics

PARTS = [Segment(b"a", num_tokens=100), Segment(b"b", num_tokens=50)]
SIZES = [100, 50]


def reported(waiting=0, sequences=0, room=10):
    return {WAITING_TOKENS: waiting, NUM_SEQUENCES: sequences, MAX_SEQUENCES: room}


def stats(num_running=0, hits=0, **counters):
    return RunnerStats(num_running, 0, hits, 0, counters, {})


@pytest.mark.parametrize(
    ("replicas", "needed"),
    [
        ([reported(waiting=0)], 0),
        ([reported(waiting=1000)], 1),
        ([reported(waiting=1001)], 2),
        ([reported(waiting=900), reported(waiting=1800)], 3),
        ([reported(sequences=10), reported(sequences=10), reported(sequences=1)], 3),
        ([], 0),
    ],
)
def test_replicas_are_needed_for_waiting_tokens_and_for_sequences_that_run(replicas, needed):
    assert needed_replicas(replicas, 1000) == needed


def test_the_policy_reads_the_numbers_of_each_replica():
    numbers = {
        WAITING_TOKENS: {"x": 1500.0, "y": 600.0},
        NUM_SEQUENCES: {"x": 3.0, "y": 3.0},
        MAX_SEQUENCES: {"x": 8.0, "y": 8.0},
    }
    context = SimpleNamespace(aggregated_metrics=numbers)
    assert WaitingTokensPolicy(1000)(context) == (3, {})


def test_a_route_counts_on_one_replica_until_its_answer_begins():
    first, second, route = ReplicaLoad(1000), ReplicaLoad(1000), Route("m", PARTS, SIZES, b"")
    route.assign("first", first)
    assert (first.waiting_tokens, first.num_open) == (150, 1)
    route.assign("second", second)
    assert (first.waiting_tokens, first.num_open) == (0, 0)
    assert (second.waiting_tokens, second.num_open, route.replica) == (150, 1, "second")
    route.begin_answer()
    assert (second.waiting_tokens, second.num_open) == (0, 1)
    route.end()
    route.assign("first", first)
    assert (first.num_open, second.num_open) == (0, 0)


def test_what_a_replica_holds_does_not_wait_there():
    load = ReplicaLoad(1000)
    Route("m", PARTS, SIZES, b"").assign("r", load)
    again = Route("m", PARTS, SIZES, b"")
    before = load.waiting_tokens
    again.assign("r", load)
    assert load.waiting_tokens == before


def test_a_route_does_not_leave_the_process():
    call = pickle.loads(pickle.dumps(Call("k", b"frame", Route("m", PARTS, SIZES, b""))))
    assert (call.key, call.content, call.route) == ("k", b"frame", None)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9)), max_size=8))
def test_counters_never_fall_although_replicas_come_and_go(rounds):
    found, totals, seen = ReplicaStatistics(), [], {}
    for growth in rounds:
        seen |= {name: seen.get(name, 0) + number for name, number in growth.items()}
        each = {name: stats(1, hits=seen[name], n=seen[name]) for name in growth}
        total = found.of(each)
        assert total.num_running == len(growth)
        totals.append(total.counters.get("n", 0))
        assert total.num_feature_hits == totals[-1] == sum(seen.values())
    assert totals == sorted(totals)


def test_many_replicas_of_the_past_are_counted_and_forgotten(monkeypatch):
    monkeypatch.setattr("vlmkit_ray.replica_statistics.MAX_SEEN", 3)
    found = ReplicaStatistics()
    for number in range(10):
        total = found.of({f"r{number}": stats(n=1)})
    assert total.counters["n"] == 10
    assert len(found._seen) <= 4


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=20))
def test_an_outbox_sends_every_byte_in_order(frames):
    async def read():
        outbox, pieces = Outbox(), []
        for frame in frames:
            outbox.write([frame])
        outbox.close()
        while piece := await outbox.piece():
            pieces.append(piece)
        return pieces

    assert b"".join(asyncio.run(read())) == b"".join(frames)


def test_a_large_frame_is_cut_and_its_writer_waits_for_the_reader():
    async def read():
        outbox = Outbox()
        outbox.write([bytes(3 * PIECE_BYTES)])
        room = asyncio.create_task(outbox.room())
        await asyncio.sleep(0)
        assert not room.done()
        sizes = [len(await outbox.piece()) for _ in range(3)]
        await room
        return sizes

    assert asyncio.run(read()) == [PIECE_BYTES] * 3


def test_a_node_with_another_config_is_refused(tmp_path):
    path = tmp_path / "vlmkit.toml"
    path.write_text('model = "mock"')
    file = ConfigFile.read(path)
    file.check()
    path.write_text('model = "demo"')
    with pytest.raises(ConfigError, match="not the one that was deployed"):
        file.check()
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        file.check()
