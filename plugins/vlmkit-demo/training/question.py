"""Conversations about scenes, with true answers.

Every ``ask`` function takes scenes and a generator. It returns the turns of one conversation, or
None if the scene allows no such question. The module handles no images and no tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from phrasing import (
    DONT_KNOW,
    FOLLOW,
    LEADS,
    NO_PICTURE,
    NOT_THERE,
    PAIR,
    PHRASES,
    SMALL_TALK,
    SYSTEMS,
    UNKNOWABLE,
    Phrases,
)  # fmt: skip
from scene import COLOURS, PLACES, SHAPES, SIZES, Scene, Split, Thing

NUMBERS = ("Zero", "One", "Two", "Three", "Four", "Five")
ORDINALS = ("first", "second")


class Turn(NamedTuple):
    """One question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Dialogue:
    """A conversation of one kind; ``pictures`` (0, 1 or 2) images precede its first question."""

    kind: str
    turns: tuple[Turn, ...]
    pictures: int = 1
    system: str | None = None


class PhraseChooser:
    """Chooses among phrasings of one split."""

    def __init__(self, rng: np.random.Generator, split: Split) -> None:
        self.rng, self.split = rng, split

    def chance(self, share: float) -> bool:
        """Return True for a share of the calls."""
        return bool(self.rng.random() < share)

    def pick(self, items: "tuple[str, ...] | list[str]") -> str:
        """Choose one string."""
        return items[int(self.rng.integers(len(items)))]

    def say(self, phrases: Phrases, **slots: str) -> str:
        """Choose a phrasing and fill its slots; training questions are sometimes sloppy."""
        if self.split == "held_out":
            return _upper(self.pick(phrases.held_out).format(**slots))
        text = _upper(self.pick(phrases.train).format(**slots))
        luck = self.rng.random()
        if luck < 0.1:
            return self.pick(LEADS) + text
        if luck < 0.16:
            return text[0].lower() + text[1:]
        return text.rstrip("?.") if luck < 0.2 else text


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _article(noun: str) -> str:
    return ("an " if noun[0] in "aeio" else "a ") + noun


def phrase_of(thing: Thing, *, place: bool = True) -> str:
    """Describe one thing: ``a large red circle on the left``."""
    if thing.kind == "word":
        text = f"the word {thing.name} in {thing.colour}"
    else:
        name = thing.name if thing.kind == "shape" else f"digit {thing.name}"
        text = f"a {thing.size} {thing.colour} {name}"
    return f"{text} {thing.place}" if place else text


def describe(scene: Scene) -> str:
    """Describe a whole scene in reading order, in one sentence."""
    parts = [phrase_of(t) for t in scene.things]
    if not parts:
        return "An empty picture."
    text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return _upper(text) + "."


def refer(scene: Scene, thing: Thing, ask: PhraseChooser, hide: str = "") -> str | None:
    """Name one thing unambiguously, without the attribute ``hide``.

    Returns:
        ``the red circle``, ``the shape on the left``, or None if no short name is unique.
    """
    if thing.kind == "word":
        return "the word"
    if thing.kind == "digit":
        return "the digit" if hide == "name" or ask.chance(0.6) else f"the {thing.name}"
    options = [("colour", "name"), ("name",), ("colour",), ("size", "name"), ("cell",),
               ("size", "colour"), ("size", "colour", "name"), ("name", "cell")]  # fmt: skip
    good = [
        o for o in options
        if hide not in o and sum(_same(thing, s, o) for s in scene.shapes) == 1
        and not ("cell" in o and "name" not in o and thing.cell == 4 and scene.word)
    ]  # fmt: skip
    if not good:
        return None
    chosen = good[int(ask.rng.integers(len(good)))]
    noun = thing.name if "name" in chosen else ask.pick(("shape", "shape", "object", "thing"))
    words = [thing.size] * ("size" in chosen) + [thing.colour] * ("colour" in chosen) + [noun]
    words += [thing.place] * ("cell" in chosen)
    return "the " + " ".join(words)


def _same(a: Thing, b: Thing, attributes: tuple[str, ...]) -> bool:
    return all(getattr(a, k) == getattr(b, k) for k in attributes)


def _attribute(kind: str, hide: str, value: Callable[[Thing], str]) -> "Ask":
    def ask_attribute(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
        things = [
            t for t in scene.things
            if t.kind == "shape" or (t.kind == "digit" and kind != "shape")
            or (t.kind == "word" and kind in ("colour", "position"))
        ]  # fmt: skip
        if not things:
            return None
        thing = things[int(ask.rng.integers(len(things)))]
        name = refer(scene, thing, ask, hide)
        return (Turn(ask.say(PHRASES[kind], a=name), value(thing)),) if name else None

    return ask_attribute


def ask_describe(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask for the whole scene."""
    return (Turn(ask.say(PHRASES["describe"]), describe(scene)),)


def ask_at(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask what is at a place."""
    taken = {t.cell: t for t in scene.things}
    cell = int(ask.rng.integers(9))
    if taken and ask.chance(0.8):
        cell = list(taken)[int(ask.rng.integers(len(taken)))]
    if scene.word and cell // 3 == scene.word.cell // 3 and cell != scene.word.cell:
        return None
    answer = _upper(phrase_of(taken[cell], place=False)) + "." if cell in taken else "Nothing."
    return (Turn(ask.say(PHRASES["at"], w=PLACES[cell]), answer),)


def ask_count(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask for the number of shapes."""
    return (Turn(ask.say(PHRASES["count"]), _counted(scene.shapes)),)


def _counted(things: Sequence[Thing]) -> str:
    """Point at every thing, then state their number."""
    if not things:
        return "Zero."
    return _upper(", ".join(t.place for t in things)) + f": {NUMBERS[len(things)].lower()}."


def ask_count_if(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask for the number of shapes of a colour, form or size, usually of a present one."""
    key = ask.pick(("colour", "name", "size"))
    values: dict[str, tuple[str, ...]] = {"colour": tuple(COLOURS), "name": SHAPES, "size": SIZES}
    value = ask.pick(values[key])
    if scene.shapes and ask.chance(0.75):
        value = ask.pick([getattr(t, key) for t in scene.shapes])
    meant = [t for t in scene.shapes if getattr(t, key) == value]
    noun = plural(value) if key == "name" else f"{value} shapes"
    return (Turn(ask.say(PHRASES["count_if"], x=noun), _counted(meant)),)


def plural(shape: str) -> str:
    """Return the plural of a shape."""
    return shape + ("es" if shape == "cross" else "s")


def ask_relation(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask for the relation of two things, or state one to confirm."""
    things = [t for t in scene.things if t.kind != "word"]
    if len(things) < 2:
        return None
    i, j = (int(k) for k in ask.rng.permutation(len(things))[:2])
    a, b = things[i], things[j]
    names = refer(scene, a, ask, "cell"), refer(scene, b, ask, "cell")
    across, down = a.cell % 3 - b.cell % 3, a.cell // 3 - b.cell // 3
    if names[0] is None or names[1] is None:
        return None
    slots = {"a": names[0], "b": names[1]}
    if (across == 0) != (down == 0) and ask.chance(0.5):
        side = ("left of it" if across < 0 else "right of it") if across else (
            "above it" if down < 0 else "below it")  # fmt: skip
        return (Turn(ask.say(PHRASES["relation"], **slots), _because(a, b, side)),)
    level = across != 0 and (down == 0 or ask.chance(0.5))
    claim = ask.pick(("left of", "right of") if level else ("above", "below"))
    true = (across < 0) == (claim == "left of") if level else (down < 0) == (claim == "above")
    word = claim if not level else ask.pick((claim, f"to the {claim}"))
    answer = _because(a, b, "yes" if true else "no")
    return (Turn(ask.say(PHRASES["relation_check"], r=word, **slots), answer),)


def _because(a: Thing, b: Thing, verdict: str) -> str:
    """Give the reason before the verdict: a small model reasons by writing."""
    return f"One is {a.place}, the other {b.place}: {verdict}."


def _yes(true: bool) -> str:
    return "Yes." if true else "No."


def ask_exist(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask whether a kind of thing exists; half of the answers are yes."""
    keys = [("colour", "name"), ("name",), ("colour",), ("size", "name"),
            ("size", "colour", "name")][int(ask.rng.integers(5))]  # fmt: skip
    if ask.chance(0.08):
        what = ask.pick(("digit", "word"))
        here = getattr(scene, what) is not None
        return (Turn(ask.say(PHRASES["exist"], x=f"a {what}"), _yes(here)),)
    wanted = {"size": ask.pick(SIZES), "colour": ask.pick(tuple(COLOURS)), "name": ask.pick(SHAPES)}
    if scene.shapes and ask.chance(0.75):
        seen = scene.shapes[int(ask.rng.integers(len(scene.shapes)))]
        changed = ask.pick(keys) if ask.chance(0.4) else ""
        wanted |= {k: getattr(seen, k) for k in keys if k != changed}
    true = any(all(getattr(t, k) == wanted[k] for k in keys) for t in scene.shapes)
    return (Turn(ask.say(PHRASES["exist"], x=_noun(wanted, keys)), _yes(true)),)


def _noun(values: dict[str, str], keys: tuple[str, ...]) -> str:
    words = [values[k] for k in ("size", "colour") if k in keys]
    return _article(" ".join([*words, values["name"] if "name" in keys else "shape"]))


def ask_digit(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask which digit is shown."""
    return (Turn(ask.say(PHRASES["digit"]), f"{scene.digit.name}."),) if scene.digit else None


def ask_word(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask which word is printed."""
    return (Turn(ask.say(PHRASES["word"]), f"{scene.word.name}."),) if scene.word else None


def ask_follow_up(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask about one shape, then about "it"; the last turn is scored."""
    if not scene.shapes:
        return None
    thing = scene.shapes[int(ask.rng.integers(len(scene.shapes)))]
    keys = [str(k) for k in ask.rng.permutation(["colour", "size", "shape", "position"])]
    told = {"colour": "colour", "size": "size", "shape": "name", "position": "cell"}
    values = {k: VALUES[k](thing) for k in keys}
    if ask.chance(0.4):
        name = refer(scene, thing, ask, "name") or ""
        if "on the" not in name and "at the" not in name and "in the" not in name:
            return None
        first = Turn(
            ask.say(PHRASES["at"], w=thing.place), _upper(phrase_of(thing, place=False)) + "."
        )
        return (first, Turn(ask.say(FOLLOW["position"]), values["position"]))
    named = refer(scene, thing, ask, told[keys[0]])
    if not named:
        return None
    turns = [Turn(ask.say(PHRASES[keys[0]], a=named), values[keys[0]])]
    later = [k for k in keys[1:] if not _gives_away(thing, k, named)]
    few = later[: 1 + int(ask.rng.integers(2))]
    turns += [Turn(ask.say(FOLLOW[key]), values[key]) for key in few]
    return tuple(turns) if len(turns) > 1 else None


def _gives_away(thing: Thing, key: str, name: str) -> bool:
    value = {"colour": thing.colour, "size": thing.size, "shape": thing.name}.get(key, thing.place)
    return value in name


def ask_unknown(scene: Scene, ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask for something that is not in the image."""
    if ask.chance(0.6):
        return (Turn(ask.say(UNKNOWABLE), DONT_KNOW),)
    what = ask.pick(("shape", "shape", "digit", "word"))
    if what != "shape":
        if getattr(scene, what):
            return None
        return (Turn(ask.say(PHRASES[what]), NOT_THERE),)
    shape, colour = ask.pick(SHAPES), ask.pick(tuple(COLOURS))
    if any(t.name == shape for t in scene.shapes):
        return None
    key = ask.pick(("colour", "size", "position"))
    name = f"the {shape}" if key == "colour" or ask.chance(0.5) else f"the {colour} {shape}"
    return (Turn(ask.say(PHRASES[key], a=name), NOT_THERE),)


def small_talk(ask: PhraseChooser, *, greet: bool = False) -> tuple[str, tuple[Turn, ...]]:
    """Talk without an image: greetings, and (unless ``greet``) questions that need one."""
    if greet or ask.chance(0.5):
        phrases, answer = SMALL_TALK[int(ask.rng.integers(len(SMALL_TALK)))]
        return "small_talk", (Turn(ask.say(phrases), answer),)
    if ask.chance(0.4):
        return "unknown", (Turn(ask.say(UNKNOWABLE), DONT_KNOW),)
    kind = ask.pick(("describe", "colour", "shape", "size", "position", "count", "digit", "word"))
    form, shade = ask.pick(SHAPES), ask.pick(tuple(COLOURS))
    noun = ask.pick((f"the {form}", f"the {shade} {form}"))
    if kind in ("colour", "shape"):
        noun = f"the {form}" if kind == "colour" else f"the {shade} shape"
    return "unknown", (Turn(ask.say(PHRASES[kind], a=noun), NO_PICTURE),)


def ask_pair(scenes: tuple[Scene, Scene], ask: PhraseChooser) -> tuple[Turn, ...] | None:
    """Ask about two images at once."""
    kind = ask.pick(("which", "more", "both", "describe", "more", "describe"))
    if kind == "more":
        a, b = (len(s.shapes) for s in scenes)
        verdict = "the first" if a > b else "the second" if b > a else "neither"
        answer = f"{NUMBERS[a]} in the first, {NUMBERS[b].lower()} in the second: {verdict}."
        return (Turn(ask.say(PAIR["more"]), answer),)
    if kind == "describe":
        i = int(ask.rng.integers(2))
        noun = ask.pick(("picture", "image"))
        question = ask.say(PAIR["describe"], p=f"the {ORDINALS[i]} {noun}")
        return (Turn(question, describe(scenes[i])),)
    keys = [("name",), ("colour", "name"), ("colour",)][int(ask.rng.integers(3))]
    shapes = scenes[int(ask.rng.integers(2))].shapes
    if not shapes:
        return None
    seen = shapes[int(ask.rng.integers(len(shapes)))]
    wanted = {k: getattr(seen, k) for k in keys}
    here = [any(_same(seen, t, keys) for t in s.shapes) for s in scenes]
    noun = _noun(wanted, keys)
    if kind == "both":
        return (Turn(ask.say(PAIR["both"], x=noun), _yes(all(here))),)
    if all(here):
        return None
    return (Turn(ask.say(PAIR["which"], x=noun), f"The {ORDINALS[here.index(True)]}."),)


VALUES: dict[str, Callable[[Thing], str]] = {
    "shape": lambda t: _upper(_article(t.name)) + ".",
    "colour": lambda t: _upper(t.colour) + ".",
    "size": lambda t: _upper(t.size) + ".",
    "position": lambda t: _upper(t.place) + ".",
}
Ask = Callable[[Scene, PhraseChooser], "tuple[Turn, ...] | None"]
ASKS: dict[str, Ask] = {
    "describe": ask_describe,
    "what_is_at": ask_at,
    "shape": _attribute("shape", "name", VALUES["shape"]),
    "colour": _attribute("colour", "colour", VALUES["colour"]),
    "size": _attribute("size", "size", VALUES["size"]),
    "position": _attribute("position", "cell", VALUES["position"]),
    "count": ask_count,
    "count_if": ask_count_if,
    "relation": ask_relation,
    "exist": ask_exist,
    "digit": ask_digit,
    "word": ask_word,
    "follow_up": ask_follow_up,
    "unknown": ask_unknown,
}
KINDS = (*ASKS, "two_images", "small_talk")


def system_prompt(ask: PhraseChooser) -> str:
    """Choose a system message."""
    return ask.pick(SYSTEMS)
