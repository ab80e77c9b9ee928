"""Cache events reproduce an engine's index of shared blocks, and their tokens stay private."""

import logging
import random
import threading

import pytest
from hypothesis import given, settings, strategies as st

from mock_model import wait_until
from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.prompt import MediaSlot, Prompt, PromptPlan, Span
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit.block_pool import BlockPool
from vlmkit.kit.cache_index import CacheIndex
from vlmkit.model import Model
from vlmkit.running.observers import dispatch as running_observers
from vlmkit.running.observers.cache_feed import CacheFeed
from vlmkit.running.observers.dispatch import ObserverDispatch
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer

NUM_STEPS = 10_000
IMAGE = 9


class Replay(Observer):
    """Builds an index from changes."""

    def __init__(self):
        self.index = CacheIndex()
        self.changes = []

    def blocks(self, change, at_s):
        self.changes.append(change)
        self.index.apply(change)

    def enqueue_change(self, change):
        self.blocks(change, 0.0)


def random_sequence(random_source, name):
    ids = [random_source.randrange(2) for _ in range(random_source.randrange(1, 24))]
    media, spans = [], []
    if random_source.random() < 0.4:
        start, digest = random_source.randrange(len(ids)), random_source.choice([b"a", b"b"])
        ids[start:start] = [IMAGE] * 3
        media = [MediaSlot(start, start + 3, digest * 32, {}, 3)]
        spans = [Span(start, start + 3)] if digest == b"a" else []
    scope = random_source.choice([b"", b"t"])
    plan = PromptPlan(tuple(spans))
    return Sequence(
        name, Prompt(tuple(ids), tuple(media)), SamplingParams(), scope=scope, plan=plan
    )


def test_replayed_events_of_random_steps_reproduce_the_index_of_the_pool_at_every_step():
    chance, pool, replay = random.Random(7), BlockPool(40, 2), Replay()
    pool.listener = feed = CacheFeed([replay])
    running, num_found = {}, 0
    for number in range(NUM_STEPS):
        action = chance.random()
        if action < 0.4:
            made = random_sequence(chance, str(number))
            expected = replay.index.num_cached(made)
            if (admission := pool.admit(made)) is not None:
                running[made] = admission.num_cached
                if not made.plan.spans and expected < len(made):
                    assert admission.num_cached == expected
                num_found += admission.num_cached > 0
        elif running:
            made = chance.choice(list(running))
            if action < 0.7:
                running[made] = chance.randint(running[made], len(made))
                pool.commit(made, running[made])
            elif action < 0.8 and pool.reserve(made, len(made) + 2):
                made.output_ids.append(chance.randrange(3))
            elif action < 0.85:
                pool.truncate(made, len(made) + 1)
            else:
                pool.release(made)
                del running[made]
        feed.flush()
        assert replay.index.blocks.keys() == pool._block_of.keys()
    assert num_found > 100
    assert sum(len(change.removed) for change in replay.changes) > 1000


events = st.lists(
    st.tuples(st.sampled_from(["stored", "removed", "cleared", "flush"]), st.integers(0, 4)),
    max_size=40,
)


@given(events)
@settings(max_examples=300)
def test_the_changes_of_steps_add_up_to_the_events_and_to_the_snapshot(said):
    replay, stored = Replay(), {}
    feed = CacheFeed([replay])
    for event, number in said:
        block = CacheBlock(bytes([number]), b"", (number,))
        if event == "flush":
            feed.flush()
            assert replay.index.blocks == stored
        elif event == "cleared":
            feed.cleared()
            stored.clear()
        elif event == "stored" and block.key not in stored:
            feed.stored(block)
            stored[block.key] = block
        elif event == "removed" and block.key in stored:
            feed.removed(block.key)
            del stored[block.key]
    feed.flush()
    assert replay.index.blocks == stored
    copy = CacheIndex()
    copy.apply(feed.snapshot())
    assert copy.blocks == stored


def test_an_index_finds_no_block_without_its_parent_or_with_another_image():
    index = CacheIndex()
    first = CacheBlock(b"1", b"", (1, IMAGE), (b"a" * 32,))
    second = CacheBlock(b"2", b"1", (2, 3))
    media = (MediaSlot(1, 2, b"a" * 32, {}, 1),)
    made = Sequence("s", Prompt((1, IMAGE, 2, 3, 4), media), SamplingParams())
    other = Sequence("s", Prompt((1, IMAGE, 2, 3, 4)), SamplingParams())
    index.apply(CacheChange((first, second)))
    assert (index.num_cached(made), index.num_cached(other)) == (4, 0)
    index.apply(CacheChange(removed=(b"1",)))
    assert index.num_cached(made) == 0
    index.apply(CacheChange((first,)))
    assert index.num_cached(made) == 4


def serving(observers, engine):
    return Model(Pipeline(tokenizer=MockTokenizer(), engine=engine, observers=observers))


def make_request(text="hello"):
    return Request(messages=[Message.of("user", text)], id="one")


def test_observers_of_a_pipeline_follow_its_cache():
    engine = MockEngine(
        MockEngineSettings(capacity_tokens=512, max_sequence_tokens=256, text="abc")
    )
    replay = Replay()
    with serving({"index": replay}, engine) as model:
        for number in range(40):
            model.submit(make_request(str(number) * 70)).result()
        wait_until(lambda: replay.index.blocks.keys() == engine._pool._block_of.keys())
    assert replay.changes[0].is_cleared
    assert not any(change.is_cleared for change in replay.changes[1:])
    assert sum(len(change.removed) for change in replay.changes) > 10


def test_an_engine_without_listening_observers_makes_no_blocks():
    class CountsSteps(Observer):
        def step(self, step, at_s):
            return

    engine = MockEngine()
    with serving({"steps": CountsSteps()}, engine) as model:
        model.submit(make_request()).result()
        assert engine._pool.listener is None


def test_an_engine_without_cache_events_or_with_a_failing_one_is_named_and_serves(caplog):
    class Fails(MockEngine):
        def set_cache_listener(self, listener):
            raise RuntimeError("no")

    class Silent:
        """Forwards everything of an engine but its cache events."""

        def __init__(self):
            self.engine = MockEngine()

        def __getattr__(self, name):
            if name == "set_cache_listener":
                raise AttributeError(name)
            return getattr(self.engine, name)

    replay = Replay()
    for engine, said in (
        (Fails(), "no observer receives cache events"),
        (Silent(), "emits no cache events"),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING), serving({"index": replay}, engine) as model:
            assert model.submit(make_request()).result().text
        assert said in caplog.text
    assert not replay.changes


class Slow(Replay):
    """Waits inside its first change."""

    def __init__(self):
        super().__init__()
        self.entered, self.may_go = threading.Event(), threading.Event()

    def blocks(self, change, at_s):
        super().blocks(change, at_s)
        self.entered.set()
        assert self.may_go.wait(60)


@pytest.mark.parametrize("limit", ["MAX_QUEUED_EVENTS", "MAX_QUEUED_BLOCKS"])
def test_an_observer_that_lost_changes_receives_the_whole_index(monkeypatch, limit, caplog):
    monkeypatch.setattr(running_observers, limit, 3)
    slow = Slow()
    observers = ObserverDispatch({"slow": slow})
    feed = observers.cache_feed
    observers.start_cache_events()
    assert slow.entered.wait(60)
    expected = {}
    for number in range(20):
        block = CacheBlock(bytes([number]), b"", (number,))
        feed.stored(block)
        expected[block.key] = block
        if number > 2:
            feed.removed(bytes([number - 2]))
            del expected[bytes([number - 2])]
        feed.flush()
    assert observers.stats()["slow"]["num_events_lost"] == 1
    slow.may_go.set()
    wait_until(lambda: slow.index.blocks == expected)
    feed.stored(late := CacheBlock(b"late", b"", (1,)))
    feed.flush()
    observers.close()
    assert slow.index.blocks == {**expected, late.key: late}
    assert [change.is_cleared for change in slow.changes].count(True) == 2
    assert slow.changes[-1] == CacheChange((late,))
    assert "too slow" in caplog.text


def test_a_failing_observer_leaves_no_tokens_in_the_log(caplog):
    class Fails(Observer):
        def blocks(self, change, at_s):
            if change.stored:
                raise KeyError(change, *change.stored)

    with serving({"fails": Fails()}, MockEngine()) as model:
        done = model.submit(make_request("x" * 100)).result()
        wait_until(lambda: "switched off" in caplog.text)
    assert "CacheBlock" in caplog.text
    tokens = list(done.prompt_token_ids[:8])
    assert str(tokens)[1:-1] not in caplog.text
    assert "num_tokens=16" in caplog.text
