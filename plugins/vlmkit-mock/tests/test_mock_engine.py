"""The mock engine detects every violation of the engine protocol."""

import dataclasses
import threading
from typing import Any

import pytest

from vlmkit.errors import ConfigError, EngineError
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import WorkItem
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import EngineHost, picture
from vlmkit_testing.contracts.engine_host import item_of
from vlmkit_testing.contracts.engine_sequence import EngineSequence

SMALL = MockEngineSettings(capacity_tokens=128, max_sequence_tokens=100, max_chunk_tokens=64)


@pytest.fixture
def engine() -> MockEngine:
    return MockEngine(SMALL)


@pytest.fixture
def host(engine: MockEngine, side: Any) -> EngineHost:
    return EngineHost(engine, side.features)


@pytest.fixture
def sequence(host: EngineHost, side: Any) -> EngineSequence:
    made = host.sequence(side.prompt("hello there"))
    assert host.admit(made) == 0
    return made


def whole(sequence: EngineSequence) -> WorkItem:
    return item_of(sequence, 0, len(sequence), num_rows=1)


def test_a_sequence_that_is_not_admitted_cannot_run(host: EngineHost, side: Any) -> None:
    stranger = host.sequence(side.prompt("hello"))
    with pytest.raises(EngineError, match=r"sequence '.*' is not admitted"):
        host.step([whole(stranger)])


def test_a_sequence_is_admitted_once(host: EngineHost, sequence: EngineSequence) -> None:
    with pytest.raises(EngineError, match="is admitted already"):
        host.admit(sequence)


def test_a_sequence_is_released_once(engine: MockEngine, sequence: EngineSequence) -> None:
    engine.release(sequence)
    with pytest.raises(EngineError, match="is not admitted"):
        engine.release(sequence)


def test_a_sequence_that_is_too_long_is_refused(host: EngineHost) -> None:
    with pytest.raises(EngineError, match="has 101 tokens; the longest may have 100"):
        host.admit(host.sequence(Prompt((1,) * 101)))


def test_no_token_may_be_skipped(host: EngineHost, sequence: EngineSequence) -> None:
    with pytest.raises(EngineError, match="token 3 runs, but only 0 are computed"):
        host.step([item_of(sequence, 3, 1)])


def test_a_token_that_does_not_exist_cannot_run(host: EngineHost, sequence: EngineSequence) -> None:
    with pytest.raises(EngineError, match=f"it has no token {len(sequence)}"):
        host.step([item_of(sequence, 0, len(sequence) + 1, num_rows=1)])


def test_a_token_needs_reserved_space(host: EngineHost, sequence: EngineSequence) -> None:
    host.prefill(sequence)
    host.decode(sequence, 1)
    sequence.answer.append(2)
    num_tokens = len(sequence)
    with pytest.raises(
        EngineError, match=f"token {num_tokens - 1} runs, but room is for {num_tokens - 1}"
    ):
        host.step([item_of(sequence, num_tokens - 1, 1, num_rows=1)])


@pytest.mark.parametrize("num_tokens", [0, 65])
def test_a_chunk_outside_its_limits_is_refused(host: EngineHost, num_tokens: int) -> None:
    sequence = host.sequence(Prompt((1,) * 90))
    assert host.admit(sequence) == 0
    with pytest.raises(EngineError, match=rf"a chunk of {num_tokens} tokens is not in \[1, 64\]"):
        host.step([item_of(sequence, 0, num_tokens)])


def test_a_sequence_has_one_item_in_a_step(host: EngineHost, sequence: EngineSequence) -> None:
    with pytest.raises(EngineError, match="two items in one step"):
        host.step([whole(sequence), whole(sequence)])


def test_an_image_needs_its_features(host: EngineHost, side: Any) -> None:
    sequence = host.sequence(side.prompt("?", picture()))
    assert host.admit(sequence) == 0
    sequence.features = {}
    with pytest.raises(EngineError, match="image 0 has no features"):
        host.engine.forward([whole(sequence)])


def test_an_image_needs_its_own_features(host: EngineHost, side: Any) -> None:
    sequence = host.sequence(side.prompt("?", picture()))
    assert host.admit(sequence) == 0
    other = side.prompt("?", picture(seed=1)).media
    sequence.features = {0: MockVisionEncoder().encode(other)[0]}
    with pytest.raises(EngineError, match="image 0 has the features of another picture"):
        host.step([whole(sequence)])


def test_features_have_a_row_for_each_image_token(host: EngineHost, side: Any) -> None:
    sequence = host.sequence(side.prompt("?", picture()))
    assert host.admit(sequence) == 0
    sequence.features = {0: dataclasses.replace(sequence.features[0], num_tokens=3)}
    with pytest.raises(EngineError, match="image 0 has features for 3 tokens"):
        host.step([whole(sequence)])


def test_an_atomic_image_is_never_cut(side: Any) -> None:
    host = EngineHost(MockEngine(MockEngineSettings(images_are_atomic=True)), side.features)
    sequence = host.sequence(side.prompt("?", picture()))
    assert host.admit(sequence) == 0
    span = sequence.plan.spans[0]
    with pytest.raises(EngineError, match=r"a chunk cuts the atomic span \[2, 8\)"):
        host.step([item_of(sequence, 0, span.start + 1)])


def test_a_prompt_that_was_not_read_is_not_admitted(host: EngineHost, side: Any) -> None:
    sequence = host.sequence(side.prompt("hello"))
    sequence.plan = PromptPlan()
    with pytest.raises(EngineError, match="was not read"):
        host.admit(sequence)


def test_more_rows_than_tokens_are_refused(host: EngineHost, sequence: EngineSequence) -> None:
    with pytest.raises(EngineError, match="2 rows of 1 tokens are not to be had"):
        host.step([item_of(sequence, 0, 1, num_rows=2)])


def test_drafts_follow_the_newest_token(host: EngineHost, sequence: EngineSequence) -> None:
    with pytest.raises(EngineError, match="drafts do not follow the newest token"):
        host.step([item_of(sequence, 0, 3, num_rows=1, drafts=(1, 2))])


def test_only_what_was_computed_can_be_committed(
    host: EngineHost, engine: MockEngine, sequence: EngineSequence
) -> None:
    host.prefill(sequence)
    item = host.next_item(sequence, 1, drafts=(2,))
    host.step([item])
    sequence.answer.append(3)  # not the draft
    with pytest.raises(EngineError, match="commits tokens that were not computed"):
        engine.commit(sequence, len(sequence))


def test_committed_tokens_cannot_be_truncated(
    host: EngineHost, engine: MockEngine, sequence: EngineSequence
) -> None:
    host.prefill(sequence)
    engine.commit(sequence, len(sequence))
    with pytest.raises(EngineError, match="gives up tokens that were committed"):
        engine.truncate(sequence, len(sequence) - 1)


def test_prefill_and_decode_mix_only_if_the_engine_allows_it(side: Any) -> None:
    engine = MockEngine(MockEngineSettings(mixes_prefill_and_decode=False))
    host = EngineHost(engine, side.features)
    decoding, reading = (host.sequence(side.prompt("hello")) for _ in range(2))
    assert host.admit(decoding) == host.admit(reading) == 0
    host.prefill(decoding)
    with pytest.raises(EngineError, match="a step mixes prefill and decode"):
        host.step([host.next_item(decoding, 1), whole(reading)])


def test_an_overwritten_cell_is_detected(
    host: EngineHost, engine: MockEngine, sequence: EngineSequence
) -> None:
    host.prefill(sequence)
    engine._cells._cells = [value + 1 for value in engine._cells._cells]
    with pytest.raises(EngineError, match="the cache holds something else at token 14"):
        host.decode(sequence, 1)


def test_an_overwritten_shared_prefix_is_detected(host: EngineHost, engine: MockEngine) -> None:
    prompt = Prompt(tuple(range(40)))
    first = host.sequence(prompt, scope=b"a")
    host.admit(first)
    host.prefill(first)
    engine._cells._cells = [value + 1 for value in engine._cells._cells]
    with pytest.raises(EngineError, match="the cache holds something else at token 0"):
        host.admit(host.sequence(prompt, scope=b"a"))


def test_a_failed_step_changes_nothing(
    host: EngineHost, side: Any, sequence: EngineSequence
) -> None:
    failing = host.sequence(side.prompt('{"mock": {"fail_at_token": 0}}'))
    assert host.admit(failing) == 0
    with pytest.raises(EngineError, match="the mock was told to fail at token 0"):
        host.step([whole(sequence), whole(failing)])
    assert host.step([whole(sequence)])[0].argmax() == ord("h")


def test_a_crashed_engine_stays_broken(
    host: EngineHost, side: Any, sequence: EngineSequence
) -> None:
    crashing = host.sequence(side.prompt('{"mock": {"crash_at_token": 0}}'))
    assert host.admit(crashing) == 0
    for item in (whole(crashing), whole(sequence)):
        with pytest.raises(RuntimeError, match="the mock was told to crash"):
            host.step([item])


def test_a_closed_engine_refuses_everything(
    host: EngineHost, engine: MockEngine, sequence: EngineSequence
) -> None:
    engine.close()
    for call in (
        lambda: host.step([whole(sequence)]),
        lambda: engine.release(sequence),
        lambda: host.admit(sequence),
    ):
        with pytest.raises(EngineError, match="the mock engine is closed"):
            call()


def test_an_engine_belongs_to_one_thread(host: EngineHost, sequence: EngineSequence) -> None:
    errors: list[Exception] = []

    def run() -> None:
        try:
            host.step([whole(sequence)])
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert str(errors[0]) == "the mock engine is used from two threads"


def test_a_released_sequence_frees_all_its_space(
    engine: MockEngine, host: EngineHost, sequence: EngineSequence
) -> None:
    assert engine.num_free_tokens == 112
    host.prefill(sequence)
    engine.release(sequence)
    assert engine.num_free_tokens == engine.limits.capacity_tokens == 128


def test_a_cache_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity_tokens 8 must hold a block of 16 tokens"):
        MockEngine(MockEngineSettings(capacity_tokens=8))


def test_the_longest_sequence_is_never_longer_than_the_cache() -> None:
    engine = MockEngine(MockEngineSettings(capacity_tokens=64, max_sequence_tokens=1000))
    assert engine.limits.max_sequence_tokens == 64


def test_the_latency_of_a_step_is_that_of_its_slowest_sequence(
    host: EngineHost, side: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    monkeypatch.setattr("vlmkit_mock.engine.time.sleep", naps.append)
    texts = ('{"mock": {"prefill_latency_s": 5, "latency_s": 2}}', '{"mock": {"latency_s": 3}}')
    sequences = [host.sequence(side.prompt(text)) for text in texts]
    for sequence in sequences:
        host.admit(sequence)
    host.step([whole(sequence) for sequence in sequences])
    host.step([host.next_item(sequence, 1) for sequence in sequences])
    assert naps == [5, 3]
