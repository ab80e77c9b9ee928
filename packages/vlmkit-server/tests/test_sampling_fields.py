"""Sampling fields over HTTP: their effect on answers, and their ranges."""

import pytest
from running_server import chat, scripted

SAID = "a red circle and a red square"


def answer(server, **fields):
    body = chat(scripted(text=SAID)) | {"max_tokens": 40} | fields
    found = server.post(body)
    assert found.status_code == 200, found.json()
    return found.json()["choices"][0]["message"]["content"]


def error(server, **fields):
    found = server.post(chat() | fields)
    assert found.status_code == 400
    return found.json()["error"]


def test_bad_words_are_not_in_the_answer(server):
    assert answer(server) == SAID
    assert "red" not in answer(server, bad_words=["red"])
    assert answer(server, bad_words=["green"]) == SAID


def test_allowed_token_ids_restrict_the_answer(server):
    assert set(answer(server, allowed_token_ids=[97, 98, 99])) <= set("abc")


def test_penalties_apply_only_to_their_window(server):
    kinds = [{"repeat_last_n": number} for number in (0, 2, -1)]
    found = [answer(server, frequency_penalty=2.0, repetition_penalty=10.0, **k) for k in kinds]
    assert found[0] == SAID


def test_dry_ends_a_loop_unless_breakers_or_allowed_length_permit_it(server):
    loop = "-".join(["go on"] * 5)
    body = chat(scripted(text=loop)) | {"max_tokens": 40, "dry_multiplier": 100.0}
    found = server.post(body).json()["choices"][0]["message"]["content"]
    assert found != loop
    kinds = {"dry_sequence_breakers": list("go n-")}, {"dry_allowed_length": 40}
    for fields in (*kinds, {"dry_penalty_last_n": 0}, {"dry_multiplier": 0}):
        assert server.post(body | fields).json()["choices"][0]["message"]["content"] == loop


def test_xtc_drops_likely_tokens_repeatably_for_a_seed(server):
    hot = {"temperature": 0.5, "xtc_threshold": 0.0, "seed": 5}
    assert answer(server, xtc_probability=0.0, **hot) == SAID
    found = [answer(server, xtc_probability=0.5, **hot) for _ in range(2)]
    assert found[0] == found[1] != SAID
    assert answer(server, xtc_probability=1.0, temperature=0) == SAID


@pytest.mark.parametrize("name", ["seed", "random_seed", "sampling_seed"])
def test_each_alias_of_seed_repeats_an_answer(server, name):
    hot = {"temperature": 2.0, "typical_p": 0.9, "top_k": 40}
    found = [answer(server, **{name: 7}, **hot) for _ in range(2)]
    assert found == [answer(server, seed=7, **hot)] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"typical_p": 0}, "typical_p"),
        ({"typical_p": 1.5}, "typical_p"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"repeat_last_n": 8193}, "repeat_last_n"),
        ({"bad_words": ["x"] * 129}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["x" * 257]}, "bad_words"),
        ({"bad_words": ["x" * 65]}, "bad_words"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"xtc_threshold": -0.1}, "xtc_threshold"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_allowed_length": -1}, "dry_allowed_length"),
        ({"dry_penalty_last_n": 16_385}, "dry_penalty_last_n"),
        ({"dry_sequence_breakers": ["x"] * 17}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["x" * 41]}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"allowed_token_ids": [97] * 16_385}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": [2**31]}, "allowed_token_ids"),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_name(server, fields, param):
    found = error(server, **fields)
    assert found["param"].split("[")[0] == param
    assert len(found["message"]) < 1024
