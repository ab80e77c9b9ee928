"""Random answers constrained by schemas, patterns and grammars."""

import itertools
import json
import random
import re

import numpy as np
import PIL.Image
import pytest

import vlmkit
from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.types.constraint import MAX_TEXTS, JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit_guidance.compiler import GuidanceCompiler
from vlmkit_guidance.forced import BLOCK_BYTES, MAX_PIECES
from vlmkit_mock.engine import MockEngine

SHAPES = JsonSchema.of(
    {
        "type": "object",
        "properties": {
            "shapes": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "colour": {"enum": ["red", "green", "blue"]},
                        "name": {"type": "string", "maxLength": 8},
                        "sides": {"type": "integer", "minimum": 0, "maximum": 9},
                    },
                    "required": ["colour", "name", "sides"],
                    "additionalProperties": False,
                },
                "minItems": 1,
                "maxItems": 2,
            },
            "is_empty": {"type": "boolean"},
        },
        "required": ["shapes", "is_empty"],
        "additionalProperties": False,
    }
)


UNDECIDED = 0.1  # factor of the mock's logits


def is_valid(text):
    """Return whether a text matches the schema."""
    said = json.loads(text)
    return (
        list(said) == ["shapes", "is_empty"]
        and isinstance(said["is_empty"], bool)
        and 1 <= len(said["shapes"]) <= 2
        and all(
            list(shape) == ["colour", "name", "sides"]
            and shape["colour"] in ("red", "green", "blue")
            and len(shape["name"]) <= 8
            and shape["sides"] in range(10)
            for shape in said["shapes"]
        )
    )


@pytest.fixture(scope="module")
def model():
    with vlmkit.load("mock") as model:
        yield model


@pytest.mark.parametrize("seed", range(4))
def test_json_answers_have_the_format_of_python(model, seed):
    whole = {"type": "array", "items": {"enum": [True, "a"]}, "minItems": 2, "maxItems": 2}
    schema = {"type": "object", "properties": {"b": whole, "a": whole}, "required": ["b", "a"]}
    constrained = JsonSchema.of(schema | {"additionalProperties": False})
    text = model.generate("?", constraint=constrained, temperature=1.0, seed=seed).text
    assert text == json.dumps(json.loads(text))


def random_answer(model, constraint, seed, show=0, **params):
    """Return an answer of random tokens."""
    wide = {"temperature": 2.0, "logit_bias": dict.fromkeys(range(32), -100.0), "max_tokens": 400}
    images = [PIL.Image.new("RGB", (8 + seed % 5, 6), "red")] * show
    prompt = '{"mock": {"text": " "}}'
    done = model.generate(
        prompt, images=images, constraint=constraint, seed=seed, **(wide | params)
    )
    assert done.choices[0].finish_reason == "stop"
    return done.text


@pytest.fixture
def undecided(model, monkeypatch):
    """Return a model for which all allowed tokens are about equally likely."""
    logits = MockEngine._logits
    monkeypatch.setattr(MockEngine, "_logits", lambda *given: logits(*given) * UNDECIDED)
    return model


@pytest.mark.parametrize("show", [0, 1])
def test_every_answer_is_valid(undecided, show):
    model = undecided
    texts = [random_answer(model, SHAPES, seed, show) for seed in range(40)]
    assert sum(map(is_valid, texts)) == 40
    assert len(set(texts)) > 20


def test_forced_tokens_are_drafted_and_change_nothing(model):
    before = model.runner.stats().counters
    texts = [random_answer(model, SHAPES, seed) for seed in range(10)]
    after = model.runner.stats().counters
    drafted, accepted, steps = (
        after[name] - before[name]
        for name in ("num_tokens_drafted", "num_drafts_accepted", "num_steps")
    )
    with vlmkit.load("mock", engine={"max_draft_tokens": 0}) as undrafted:
        assert [random_answer(undrafted, SHAPES, seed) for seed in range(10)] == texts
        num_steps = undrafted.runner.stats().counters["num_steps"]
    assert accepted == drafted > 0
    assert steps + accepted == num_steps
    assert steps < num_steps / 2


def test_answers_match_patterns_choices_grammars_and_objects(model):
    for seed in range(5):
        assert re.fullmatch(
            "[A-C]{3}-[0-9]{2}", random_answer(model, Regex("[A-C]{3}-[0-9]{2}"), seed)
        )
        texts = ('say "hi"\n', "a\\b", "größer", "日本", "\x7f\0\u2028/|")
        assert random_answer(model, OneOf(texts), seed) in texts
        brackets = random_answer(model, Lark('start: "(" start ")" | "x"'), seed)
        assert re.fullmatch(r"\(*x\)*", brackets)
        assert brackets.count("(") == brackets.count(")")
    done = model.generate("hello", constraint=JsonObject(), max_tokens=200, temperature=2.0, seed=1)
    assert done.text.startswith("{")


@pytest.mark.parametrize("schema", [True, {}])
@pytest.mark.parametrize("said", ["true", "17", '{"a": [null]}'])
def test_an_empty_schema_allows_any_json(model, schema, said):
    prompt = json.dumps({"mock": {"text": said}})
    assert model.generate(prompt, constraint=JsonSchema.of(schema)).text == said


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (JsonSchema.of({"if": {"minProperties": 1}, "then": {}}), "uses if, which is not"),
        (JsonSchema.of({"$ref": "http://127.0.0.1:9/schema.json"}), "."),
        (JsonSchema.of({"x-guidance": {"lenient": True}, "if": {}, "else": {}}), "uses if"),
        (JsonSchema.of({"type": "integer", "minimum": -1e30}), "bounds of a number"),
        (Regex("(?=secret)b"), "no look-around"),
        (Lark('start: "secret'), "syntax is wrong .line 1, column 15."),
        (Lark("start: b\nb: secret"), "not defined .line 2, column 4."),
    ],
)
def test_the_reason_of_a_refused_constraint_does_not_quote_it(model, constraint, reason, caplog):
    with pytest.raises(ConstraintError, match=f"cannot be compiled: .*{reason}") as caught:
        model.generate("hello", constraint=constraint)
    for said in (str(caught.value), caught.value.hint, caplog.text):
        assert "secret" not in said
        assert "127.0.0.1" not in said
    assert model.generate("hello", max_tokens=2).text


PATTERNS = [f"/(.{{{length}}})*/" for length in (2, 3, 5, 7, 11, 13, 17, 19, 23)]


@pytest.mark.parametrize(
    "rules",
    [
        f"start: A\nA: {' & '.join(PATTERNS)}",
        f"start: A\nA: ~({' | '.join('~' + pattern for pattern in PATTERNS)})",
        'start: A <"> & <">\nA: "a"',
        'start: %json {"a": "\\""}\nA: /a/ ~ /b/',
    ],
)
def test_patterns_whose_compilation_would_never_end_are_refused(model, rules):
    with pytest.raises(ConstraintError, match="no bound of time"):
        model.generate("hello", constraint=Lark(rules))


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ('start: "&~" /[&~]/ // & and ~\n', "&~&"),
        ('start: A ~ 2 # & and ~\nA: "x"~2', "xxxx"),
        ('start: "\\"&" /\\/~/', '"&/~'),
    ],
)
def test_grammar_operators_are_allowed_in_texts(model, rules, said):
    prompt = json.dumps({"mock": {"text": said}})
    assert model.generate(prompt, constraint=Lark(rules)).text == said


@pytest.mark.parametrize(
    "constraint",
    [
        Lark('start: any\nany: any any | any any any | "a" | ""'),
        Lark("start: x\nx: y y\ny: z z\nz: z z | z z z | /a/"),
    ],
)
def test_a_too_complex_constraint_fails_the_request_and_is_not_logged(model, constraint, caplog):
    with pytest.raises(ConstraintError, match="too complex for this answer"):
        random_answer(model, constraint, 1, min_tokens=400)
    assert model.generate("hello", max_tokens=2).text
    assert "any" not in caplog.text
    assert "a-z" not in caplog.text


ENDLESS = (
    Regex("a{100000}"),
    Regex("(ab{300}){300}"),
    JsonSchema.of({"type": "string", "minLength": 100_000, "pattern": "^a*$"}),
    JsonSchema.of({"type": "array", "items": {"const": "a"}, "minItems": 90_000}),
    JsonSchema.of(
        {
            "type": "object",
            "properties": {"a" * 1000: {"$ref": "#"}},
            "required": ["a" * 1000],
            "additionalProperties": False,
        }
    ),
    Lark('start: A start\nA: "' + "a" * 5000 + '"'),
    Lark("start: a a a a a a a a\na: b b b b b b b b\nb: c c c c c c c c\nc: /x{9000}/"),
)


@pytest.mark.parametrize("constraint", ENDLESS, ids=lambda constraint: str(constraint)[:40])
def test_endless_forced_text_is_found_in_bounded_pieces(constraint):
    """A request states the length in ten bytes, but the lookahead is bounded."""
    vocabulary = Vocabulary([b"", *(bytes([i]) for i in range(256))], lambda text: [])
    num_steps = 200
    matcher = GuidanceCompiler(vocabulary).compile(constraint)()
    for _ in range(num_steps):
        forced, mask = matcher.forced(), np.zeros(9, np.int32)
        matcher.fill(mask)
        assert len(forced) <= 2 * BLOCK_BYTES
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        assert matcher.accept(int(np.flatnonzero(bits)[0]))


def test_a_large_vocabulary_follows_a_schema_with_forced_keys():
    """Inside a text, more tokens are allowed than the search for forced text accepts."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = ["".join(pair).encode() for pair in itertools.product(letters, repeat=3)]
    words = [b"", *(bytes([i]) for i in range(256)), *pairs, b'": ', b'", "', b'{"']
    places = {word: token_id for token_id, word in enumerate(words) if token_id}

    def encode(text):
        rest, found = text.encode(), []
        while rest:
            size = next(n for n in (3, 2, 1) if rest[:n] in places)
            found.append(places[rest[:size]])
            rest = rest[size:]
        return found

    keys = ["colour", "name", "sides"]
    properties = {key: {"type": "string", "maxLength": 6} for key in keys}
    schema = {"type": "object", "properties": properties, "required": keys}
    constrained = JsonSchema.of(schema | {"additionalProperties": False})
    make = GuidanceCompiler(Vocabulary(words, encode)).compile(constrained)
    chance, num_forced, num_wide = random.Random(1), 0, 0
    for _ in range(20):
        matcher, said = make(), b""
        while not matcher.may_end:
            forced, mask = matcher.forced(), np.zeros(-(-len(words) // 32), np.int32)
            matcher.fill(mask)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits).tolist()
            num_forced += len(forced)
            num_wide += len(allowed) > MAX_PIECES
            assert not forced or allowed == forced[:1]
            token_id = chance.choice(allowed)
            assert matcher.accept(token_id)
            said += words[token_id]
        assert list(json.loads(said.decode(errors="replace"))) == keys
    assert num_forced > 20 * sum(map(len, keys)) / 3
    assert num_wide > 20


def test_forced_tokens_depend_on_the_answer_alone():
    words = [b"", *(bytes([i]) for i in range(256)), b"aa", b"aaa", b"aaaaaaaa"]
    vocabulary = Vocabulary(words, lambda text: [259] * (len(text) // 8) + [98] * (len(text) % 8))
    make = GuidanceCompiler(vocabulary).compile(Regex("a{150}[bc]d{100}"))

    def state_of(matcher):
        mask = np.zeros(9, np.int32)
        matcher.fill(mask)
        return mask.tolist(), list(matcher.forced()), matcher.may_end

    chance = random.Random(3)
    for _ in range(5):
        followed, accepted = make(), []
        while len(accepted) < 120:
            mask, forced, may_end = state_of(followed)
            fresh = make()
            assert all(map(fresh.accept, accepted))
            assert state_of(fresh) == (mask, forced, may_end)
            num = chance.randint(0, len(forced))
            assert all(map(followed.accept, forced[:num]))
            followed.roll_back(num)
            assert state_of(followed) == (mask, forced, may_end)
            bits = np.unpackbits(np.array(mask, np.int32).view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits).tolist()
            accepted.append(chance.choice(forced[:1] or allowed))
            assert followed.accept(accepted[-1])
        assert 259 in accepted


def test_a_choice_may_have_thousands_of_texts(model):
    texts = tuple(f"the answer {number}" for number in range(MAX_TEXTS // 2))
    assert random_answer(model, OneOf(texts), 1) in texts


def test_guidance_is_selected_automatically_and_can_be_disabled():
    with (
        vlmkit.load("mock", constraint={"use": "none"}) as without,
        pytest.raises(ConstraintError, match="no plugin is in use"),
    ):
        without.generate("hello", constraint=JsonObject())
    with vlmkit.load("mock", constraint={"use": "guidance"}) as chosen:
        assert chosen.generate("hello", constraint=OneOf(("yes", "no"))).text in ("yes", "no")


def test_llguidance_is_imported_only_when_needed(tmp_path):
    import subprocess
    import sys

    program = (
        "import sys, vlmkit\n"
        "with vlmkit.load('mock') as model:\n"
        "    model.generate('hello')\n"
        "    assert 'llguidance' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
