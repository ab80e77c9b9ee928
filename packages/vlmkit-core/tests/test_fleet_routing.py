"""Which worker answers: properties of the pure parts of a fleet."""

from collections import Counter
from dataclasses import replace

import PIL.Image
import pytest
from hypothesis import given, strategies as st

from vlmkit.running.fleet.cache_estimate import CacheEstimate, TokenSizes
from vlmkit.running.fleet.prompt_keys import (
    PIECE_CHARS,
    Segment,
    affinity_of,
    first_question,
    segments,
)
from vlmkit.running.fleet.routing import (
    COMPUTED_WEIGHT,
    MAX_LOAD,
    MIN_HELD_TOKENS,
    SPARE_REQUESTS,
    Candidate,
    choose,
)
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.placed_image import PlacedImage
from vlmkit.types.request import Request

TOKENS = st.integers(0, 100_000)
ROWS = st.tuples(TOKENS, TOKENS, st.integers(0, 300), st.booleans())
CANDIDATES = st.lists(ROWS, min_size=1, max_size=8).map(
    lambda rows: [Candidate(f"worker {i}", *row) for i, row in enumerate(rows)]
)
AFFINITY = st.binary(max_size=16)


@given(CANDIDATES, AFFINITY, st.integers(1, 100_000))
def test_a_full_worker_is_chosen_only_if_all_are(candidates, affinity, prompt_tokens):
    chosen = candidates[choose(candidates, affinity, prompt_tokens).place]
    assert not chosen.is_full or all(each.is_full for each in candidates)


@given(CANDIDATES, AFFINITY, st.integers(1, 100_000))
def test_the_chosen_worker_has_few_more_open_requests_than_the_mean(candidates, affinity, num):
    chosen = candidates[choose(candidates, affinity, num).place]
    others = [each for each in candidates if each.is_full == chosen.is_full]
    mean = (sum(each.num_open for each in others) + 1) / len(others)
    assert chosen.num_open + 1 <= MAX_LOAD * mean + SPARE_REQUESTS


@given(CANDIDATES, AFFINITY, st.integers(1, 100_000), st.booleans())
def test_no_worker_that_saves_as_much_has_a_shorter_queue(candidates, affinity, num, shared):
    """The favourite may: by far at gateways that do not learn from each other, else by little."""
    candidates = [replace(each, num_open=0, is_full=False) for each in candidates]
    choice = choose(candidates, affinity, num, are_estimates_shared=shared)
    chosen = candidates[choice.place]
    favourite = choose([Candidate(each.name) for each in candidates], affinity, num).place
    for place, other in enumerate(candidates):
        if min(other.held_tokens, num) >= min(chosen.held_tokens, num) >= MIN_HELD_TOKENS:
            is_favourite = choice.place == favourite != place
            little = COMPUTED_WEIGHT * MIN_HELD_TOKENS * is_favourite
            is_excepted = is_favourite and not shared
            assert other.queue_tokens + little >= chosen.queue_tokens or is_excepted


@given(CANDIDATES, AFFINITY, st.integers(1, 100_000), st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_workers(candidates, affinity, num, chance):
    chosen = candidates[choose(candidates, affinity, num).place]
    shuffled = chance.sample(candidates, len(candidates))
    assert shuffled[choose(shuffled, affinity, num).place] == chosen


@given(CANDIDATES, AFFINITY, st.integers(1, 100_000))
def test_a_worker_that_holds_more_or_has_less_to_do_does_not_lose_by_it(candidates, affinity, num):
    place = choose(candidates, affinity, num).place
    better = [*candidates]
    better[place] = replace(better[place], held_tokens=better[place].held_tokens + 1)
    assert choose(better, affinity, num).place == place


@given(st.integers(2, 8), st.lists(AFFINITY, min_size=1, max_size=30, unique=True))
def test_a_worker_that_goes_moves_only_its_own_requests(num, keys):
    """Rendezvous hashing: nothing is known of any worker."""
    workers = [Candidate(f"worker {i}") for i in range(num)]
    for key in keys:
        before = workers[choose(workers, key, 10).place]
        for gone in workers:
            left = [each for each in workers if each != gone]
            after = left[choose(left, key, 10).place]
            assert after == before or gone == before


def test_requests_of_many_keys_spread_evenly_over_idle_workers():
    workers = [Candidate(f"10.0.0.{i}:50051") for i in range(4)]
    counted = Counter(choose(workers, str(n).encode(), 10).place for n in range(4000))
    assert all(850 < counted[place] < 1150 for place in range(4))


def test_the_choice_names_its_reason():
    idle = Candidate("a")
    assert choose([idle], b"", 10).reason == "affinity"
    assert choose([replace(idle, held_tokens=100), idle], b"", 200).reason == "cached prompt"
    keys = [str(n).encode() for n in range(8)]
    queue = [Candidate("a", queue_tokens=COMPUTED_WEIGHT * 10 + 1), Candidate("b")]
    assert {choose(queue, key, 10).reason for key in keys} == {"affinity", "short queue"}
    many = [Candidate("a", num_open=20), Candidate("b")]
    assert {choose(many, key, 10).reason for key in keys} == {"affinity", "bounded load"}


def test_a_conversation_leaves_its_worker_for_a_much_shorter_queue_only():
    holds, idle = Candidate("a", held_tokens=1000), Candidate("b")
    for key in (str(n).encode() for n in range(16)):
        assert choose([replace(holds, queue_tokens=14_900), idle], key, 1000).place == 0
        assert choose([replace(holds, queue_tokens=17_100), idle], key, 1000).place == 1


def test_a_short_conversation_returns_to_its_favourite_although_little_is_held():
    """As one about a small image does: its features cost more than its tokens tell."""
    busy, idle = Candidate("a", queue_tokens=COMPUTED_WEIGHT * 20), Candidate("b")
    for key in (str(n).encode() for n in range(16)):
        favourite = choose([replace(busy, queue_tokens=0), idle], key, 40).place
        assert choose([busy, idle], key, 40).place == favourite


def test_gateways_that_share_nothing_agree_on_the_favourite_of_a_conversation():
    """One knows that the other worker holds the prompt, and one does not."""
    holds, idle = Candidate("a", held_tokens=900), Candidate("b")
    knows, knows_nothing = [holds, idle], [replace(holds, held_tokens=0), idle]
    keys = [str(n).encode() for n in range(16)]
    alone = [
        [choose(known, key, 1000, are_estimates_shared=False).place for key in keys]
        for known in (knows, knows_nothing)
    ]
    assert alone[0] == alone[1]
    assert set(alone[0]) == {0, 1}
    assert {choose(knows, key, 1000).place for key in keys} == {0}


def test_a_beginning_that_all_conversations_share_does_not_bind_them_to_one_worker():
    first, second = Candidate("a", held_tokens=10), Candidate("b")
    keys = [str(n).encode() for n in range(32)]
    assert {choose([first, second], key, 500).place for key in keys} == {0, 1}


# Keys of prompts.


def conversation(*texts, image=None, **fields):
    images = () if image is None else (image,)
    roles = ("user", "assistant")
    messages = [
        Message.of(roles[i % 2], text, images if not i else ()) for i, text in enumerate(texts)
    ]
    return Request(messages=messages, **fields)


def num_common(first, second):
    pairs = zip(segments(first), segments(second), strict=False)
    return sum(a.key == b.key for a, b in pairs)


def picture(color="red"):
    return Image.open(PIL.Image.new("RGB", (8, 8), color))


def test_turns_of_a_conversation_share_the_keys_of_those_before():
    first = conversation("one", image=picture())
    second = conversation("one", "two", "three", image=picture())
    assert num_common(first, second) == len(segments(first))
    assert num_common(first, conversation("other", image=picture())) < len(segments(first))


def test_all_turns_of_a_conversation_have_the_same_first_question():
    system = Message.of("system", "Answer briefly.")
    turns = [conversation(*texts) for texts in [("one",), ("one", "two"), ("one", "two", "three")]]
    for before in ([], [system]):
        keys = {
            first_question(segments(replace(turn, messages=[*before, *turn.messages])))
            for turn in turns
        }
        assert len(keys) == 1
    asked = [conversation(text) for text in ("one", "other")]
    asked = [replace(each, messages=[system, *each.messages]) for each in asked]
    assert len({first_question(segments(each)) for each in asked}) == 2


def test_rendered_prompts_meet_conversations_about_the_same_image():
    placed = Request(token_ids=(1, 2, 3), images=(PlacedImage(picture(), 1),))
    other = Request(token_ids=(1, 2, 3), images=(PlacedImage(picture("blue"), 1),))
    asked = affinity_of(segments(conversation("what is it?", image=picture())))
    assert affinity_of(segments(placed)) == asked != affinity_of(segments(other))


def test_a_prompt_without_messages_has_a_first_question_too():
    text = "abcdefgh" * PIECE_CHARS
    keys = {first_question(segments(Request(text=each))) for each in (text, text + "x")}
    assert len(keys) == 1
    assert first_question(segments(Request(text=""))) == b""


def test_long_texts_share_the_keys_of_their_equal_beginnings():
    text = "abcdefgh" * PIECE_CHARS
    first, second = conversation(text + "x"), conversation(text + "y")
    assert num_common(first, second) == len(segments(first)) - 1


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "b"},
        {"cache_salt": "b"},
        {"fields": {"adapter": "b"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"image": picture("blue")},
    ],
    ids=lambda other: next(iter(other)),
)
def test_requests_that_can_share_no_prefix_have_other_keys(other):
    before = conversation("one", image=picture())
    after = conversation("one", **({"image": picture()} | other))
    common = [a.key == b.key for a, b in zip(segments(before), segments(after), strict=True)]
    assert not all(common)
    assert not common[-1]


def test_an_image_is_known_again_after_another_text_of_the_same_tenant_alone():
    def image_of(request):
        return next(each.image for each in segments(request) if each.image)

    shown = image_of(conversation("one", image=picture()))
    assert image_of(conversation("two", image=picture())) == shown
    assert image_of(conversation("one", image=picture(), tenant="b")) != shown


# What a worker holds.

SEGMENTS = st.lists(st.integers(0, 30), min_size=1, max_size=8)


def chain(numbers):
    key = b""
    found = []
    for number in numbers:
        key += bytes([number])
        image = bytes([number]) if number % 3 == 0 else b""
        found.append(Segment(key, num_chars=1, image=image))
    return found


@given(st.lists(SEGMENTS, max_size=20), st.integers(1, 40))
def test_an_estimate_holds_at_most_the_prompt_and_its_cache(prompts, capacity):
    estimate = CacheEstimate(capacity)
    for numbers in prompts:
        parts = chain(numbers)
        sizes = [2] * len(parts)
        estimate.add(parts, sizes)
        assert 0 <= estimate.held_tokens(parts, sizes) <= sum(sizes)
        assert estimate._num_tokens == sum(estimate._prefixes.values()) <= max(capacity, 0)
        if sum(sizes) <= capacity:
            assert estimate.held_tokens(parts, sizes) == sum(sizes)


def test_the_end_of_an_old_prompt_leaves_first():
    estimate = CacheEstimate(30)
    old, new = chain([1, 2, 4]), chain([5, 7])
    estimate.add(old, [10, 10, 10])
    estimate.add(new, [5, 5])
    assert estimate.held_tokens(old, [10, 10, 10]) == 20
    assert estimate.held_tokens(new, [5, 5]) == 10


def test_sizes_are_learned_from_the_demands_of_workers():
    sizes = TokenSizes()
    parts = segments(conversation("a" * 400, image=picture()))
    for _ in range(50):
        sizes.learn(parts, text_tokens=400, image_tokens=(77,))
    found = dict(zip(parts, sizes.of(parts), strict=True))
    assert [n for part, n in found.items() if part.image] == [77]
    assert sum(n for part, n in found.items() if not part.image) == pytest.approx(400, rel=0.1)
