"""Questions have correct answers, and held-out phrasings are not trained."""

import numpy as np
import pytest
from phrasing import FOLLOW, PAIR, PHRASES, SMALL_TALK, UNKNOWABLE, Phrases
from question import (
    ASKS,
    PhraseChooser,
    ask_count_if,
    ask_exist,
    ask_pair,
    ask_relation,
    describe,
    refer,
    small_talk,
)  # fmt: skip
from scene import Scene, Thing, sample_scene

TALK = [phrases for phrases, _ in SMALL_TALK]
TABLES = [*PHRASES.values(), *FOLLOW.values(), *PAIR.values(), UNKNOWABLE, *TALK]


def shape(name: str, colour: str, cell: int, size: str = "large") -> Thing:
    return Thing("shape", name, colour, size, cell, 0.5, 0.5, 0.3)


def scene_of(*things: Thing) -> Scene:
    return Scene(things, (255, 255, 255), 224, 224)


@pytest.mark.parametrize("table", TABLES)
def test_no_held_out_phrasing_is_trained(table: Phrases) -> None:
    trained = {phrase.lower().rstrip("?.!") for phrase in table.train}
    assert not trained & {phrase.lower().rstrip("?.!") for phrase in table.held_out}


@pytest.mark.parametrize("kind", ASKS)
def test_every_kind_of_question_occurs_in_both_splits(kind: str) -> None:
    for split in ("train", "held_out"):
        rng = np.random.default_rng(7)
        ask = PhraseChooser(rng, split)
        assert any(ASKS[kind](sample_scene(rng, split), ask) for _ in range(60))


def test_a_description_reads_like_a_sentence() -> None:
    scene = scene_of(shape("circle", "red", 3), shape("square", "blue", 5, "small"))
    wanted = "A large red circle on the left and a small blue square on the right."
    assert describe(scene) == wanted


def test_the_name_of_an_object_is_unambiguous() -> None:
    ask = PhraseChooser(np.random.default_rng(8), "train")
    twins = scene_of(shape("circle", "red", 0), shape("circle", "red", 8))
    for _ in range(30):
        name = refer(twins, twins.things[0], ask)
        assert name is None or "at the top left" in name


def test_an_attribute_in_question_is_not_in_the_name() -> None:
    ask = PhraseChooser(np.random.default_rng(9), "train")
    scene = scene_of(shape("star", "pink", 0), shape("heart", "blue", 4))
    names = {refer(scene, scene.things[0], ask, "colour") for _ in range(50)}
    assert not any("pink" in (name or "") for name in names)


def test_counts_and_yes_or_no_answers_are_correct() -> None:
    scene = scene_of(shape("star", "pink", 0), shape("star", "pink", 4), shape("cross", "red", 8))
    ask = PhraseChooser(np.random.default_rng(10), "train")
    for _ in range(200):
        turns = ask_count_if(scene, ask)
        assert turns
        if "pink shapes" in turns[0].question or "stars" in turns[0].question:
            assert turns[0].answer == "At the top left, in the centre: two."
        turns = ask_exist(scene, ask)
        assert turns
        if "pink cross" in turns[0].question:
            assert turns[0].answer == "No."


def test_relations_are_correct() -> None:
    scene = scene_of(shape("star", "pink", 3), shape("cross", "red", 5))
    ask = PhraseChooser(np.random.default_rng(11), "held_out")
    seen = set()
    for _ in range(100):
        turns = ask_relation(scene, ask)
        if turns:
            question, answer = turns[0]
            star_first = min(question.find(w) for w in ("star", "pink") if w in question) < min(
                question.find(w) for w in ("cross", "red") if w in question
            )
            claims_left = "left of" in question
            reason, verdict = answer.split(": ")
            first, second = ("left", "right") if star_first else ("right", "left")
            assert reason == f"One is on the {first}, the other on the {second}"
            if verdict in ("yes.", "no."):
                assert (verdict == "yes.") == (star_first == claims_left), question
            else:
                assert verdict == f"{first} of it.", question
            seen.add(verdict)
    assert seen == {"yes.", "no.", "left of it.", "right of it."}


def test_two_images_are_distinguished() -> None:
    scenes = scene_of(shape("star", "pink", 0)), scene_of(shape("heart", "red", 1))
    ask = PhraseChooser(np.random.default_rng(12), "train")
    for _ in range(100):
        turns = ask_pair(scenes, ask)
        if turns and "star" in turns[0].question and turns[0].answer.startswith("The "):
            assert turns[0].answer == "The first."


def test_small_talk_without_an_image_does_not_mention_seeing() -> None:
    ask = PhraseChooser(np.random.default_rng(13), "train")
    conversations = [small_talk(ask) for _ in range(200)]
    answers = {turns[0].answer for kind, turns in conversations if kind == "unknown"}
    assert answers == {"I don't know.", "I don't see a picture."}
