"""Requests of a recorded trace become turns of conversations whose common prefixes stay common."""

import json
import random
from functools import partial

from recorded_conversations import BLOCK_TOKENS, recorded
from routing_simulation import by_content, outcome, round_robin

from vlmkit.running.fleet.prompt_keys import affinity_of, segments


def line(timestamp, num_tokens, ids):
    record = {"timestamp": timestamp, "input_length": num_tokens, "output_length": 20}
    return json.dumps(record | {"hash_ids": ids})


def written(num_conversations, seed):
    """Yield lines of conversations behind one system prompt, of one to five turns."""
    chance, number, rows = random.Random(seed), 1, []
    for _ in range(num_conversations):
        ids, num_tokens, now = [0], BLOCK_TOKENS, chance.randrange(300_000)
        for _ in range(chance.randint(1, 5)):
            ids = ids[: num_tokens // BLOCK_TOKENS]
            num_tokens += chance.randrange(300, 4000)
            while len(ids) * BLOCK_TOKENS < num_tokens:
                ids, number = [*ids, number], number + 1
            rows.append((now, num_tokens, ids))
            now += chance.randrange(5000, 60_000)
    for row in sorted(rows):
        yield line(*row)


def test_a_prompt_that_continues_another_is_a_turn_of_its_conversation():
    first, other, later = recorded(
        [
            line(0, 1500, [0, 1, 2]),
            line(0, 1500, [0, 3, 4]),
            line(3000, 2600, [0, 1, 5, 6, 7, 8]),
        ]
    )
    assert (first.conversation, other.conversation, later.conversation) == (0, 1, 0)
    assert later.request.messages[:2] == first.request.messages
    keys = [affinity_of(segments(turn.request)) for turn in (first, other, later)]
    assert keys[0] == keys[2] != keys[1]
    assert later.blocks == (0, 1, 5, 6, 7)
    assert later.arrives_s == 3.0


def test_the_text_of_a_prompt_has_one_character_for_each_token():
    for turn in recorded(written(20, seed=1)):
        text = "".join(part.text for each in turn.request.messages for part in each.parts)
        assert len(text) == turn.num_tokens


def test_images_are_added_to_a_share_of_conversations_and_stay_with_them():
    lines = list(written(200, seed=2))
    turns = recorded(lines, image_share=0.5, seed=3)
    images = {}
    for turn in turns:
        assert images.setdefault(turn.conversation, turn.images) == turn.images
    assert 0.3 < sum(map(bool, images.values())) / len(images) < 0.7
    assert not any(turn.images for turn in recorded(lines))


def test_routing_of_recorded_turns_saves_more_than_round_robin():
    turns = recorded(written(200, seed=4))
    saved = [
        outcome(turns, make, 4, 200_000, 200_000).saved
        for make in (partial(by_content, 200_000), round_robin)
    ]
    assert saved[0] > 1.4 * saved[1]
