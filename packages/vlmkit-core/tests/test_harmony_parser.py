"""Reasoning, text and calls are separated by channel, however an answer is split into tokens."""

import json
import re
from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from vlmkit.interfaces.chat_format import Mark
from vlmkit.kit.harmony_parser import MAX_HEAD_CHARS, HarmonyParser
from vlmkit.kit.tool_call_formats import CHANNELS
from vlmkit.types.delta import reasoning_of, text_of, tool_calls_of

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "clock")]
ARGUMENTS = {"city": 'Köln "am\nRhein" <|end|> {', "days": [1, None]}
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
FIRST = 900_001  # the token of the first delimiter
ENDS = ("{end}", "{last}", "{call}")
HARMONY = CHANNELS["harmony"]


def in_tokens(form):
    names = [field.name for field in fields(form) if isinstance(getattr(form, field.name), Mark)]
    return replace(
        form,
        **{
            name: getattr(form, name)._replace(token_id=FIRST + number)
            for number, name in enumerate(names)
        },
    )


def tokens_of(form, written, cuts=()):
    """Return an answer's tokens: ids of the delimiters in braces, and texts split at ``cuts``."""
    found = []
    for piece in re.split(r"(\{[a-z]+\})", written):
        mark = getattr(form, piece[1:-1], None) if re.fullmatch(r"\{[a-z]+\}", piece) else None
        if isinstance(mark, Mark):
            found.append(mark.token_id)
            continue
        bounds = sorted({0, len(piece), *(cut % (len(piece) + 1) for cut in cuts)})
        found += [piece[start:stop] for start, stop in pairwise(bounds)]
    return found


class TextDetokenizer:
    """A detokenizer whose tokens are texts; delimiters have no text."""

    def push(self, token):
        return token if isinstance(token, str) else ""

    def flush(self):
        return ""


def read(tokens, form=None, tools=TOOLS):
    """Return reasoning, text, calls, and the number of reasoning tokens."""
    reader = HarmonyParser(TextDetokenizer, form or in_tokens(HARMONY), tools)
    deltas = [delta for token in tokens for delta in reader.push(token)] + [*reader.finish()]
    calls = tool_calls_of(deltas)
    assert len({call.id for call in calls}) == len(calls)
    parsed = [(call.name, call.arguments) for call in calls]
    return reasoning_of(deltas), text_of(deltas), parsed, reader.num_reasoning_tokens


def parsed(written, **options):
    form = in_tokens(HARMONY)
    return read(tokens_of(form, written), form, **options)[:3]


def headers(form, name):
    """Return every form of the header of a call, after the role."""
    who = form.recipient + form.namespace + name
    for kind in ("", f" {form.json}", f"{{kind}}{form.json}", f" {{kind}}{form.json}"):
        yield f"{who}{{channel}}{form.calls}{kind}{{body}}"
        yield f"{{channel}}{form.calls}{who}{kind}{{body}}"


@pytest.mark.parametrize("name", CHANNELS)
@given(cuts=st.lists(st.integers(0, 99), max_size=12), data=st.data())
def test_deltas_do_not_depend_on_how_an_answer_is_cut(name, cuts, data):
    form = in_tokens(CHANNELS[name])
    again = "{start}" + form.role
    end = data.draw(st.sampled_from([*ENDS, ""]))
    head = data.draw(st.sampled_from(list(headers(form, "clock"))))
    before = (
        f"{{channel}}{form.reasoning}{{body}}hm\n{{end}}{again}"
        f"{{channel}}{form.calls}{{body}} I look. {{end}}{again}"
    )
    called = read(tokens_of(form, f"{before}{head}{JSON}{end}", cuts), form)[:3]
    assert called == ("hm\n", " I look. ", [("clock", JSON)])
    last = f"{before}{{channel}}{form.said}{{body}}It is.{end}"
    answer_text = read(tokens_of(form, last, cuts), form)[:3]
    assert answer_text == ("hm\n", " I look. \n\nIt is.", [])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("so it is", ("", "so it is", [])),
        (" to be", ("", " to be", [])),
        (" to", ("", " to", [])),
        ("\n", ("", "\n", [])),
        ("", ("", "", [])),
        ("{body}so", ("", "so", [])),
        ("{channel}final{body}so{last}", ("", "so", [])),
        ("{channel}other{body}so", ("", "so", [])),
        ("{channel}analysis{body}hm{end}so", ("hm", "so", [])),
        ("{channel}analysis{body}hm{end}\n", ("hm", "", [])),
        ("{channel}analysis{body}hm{end}{start}assistant", ("hm", "", [])),
        ("{channel}analysis{body}hm{end}{start}assistant{channel}fin", ("hm", "", [])),
        ("{channel}analysis{body}hm{channel}final{body}so", ("hm", "so", [])),
        ("{channel}analysis{body}hm{start}assistant{channel}final{body}so", ("hm", "so", [])),
        ("{channel}analysis{body}h{kind}m{body}!", ("hm!", "", [])),
        ("{channel}analysis{body}a{end}{channel}analysis{body}b", ("a\n\nb", "", [])),
        ("{channel}analysis{body}{end}{channel}analysis{body}b", ("b", "", [])),
        ("{channel}analysis{end}{start}assistant{channel}final{body}so", ("", "so", [])),
        ("so{end}{start}assistant to=functions.clock{channel}commentary{body}{}", None),
    ],
)
def test_malformed_messages_are_parsed_leniently(written, expected):
    assert parsed(written) == (expected or ("", "so", [("clock", "{}")]))


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (" to=functions.clock{channel}analysis code{body}", "clock"),
        ("to=clock{channel}commentary{body}", "clock"),
        ("{channel}commentary to=functions.other{body}", "other"),
        ("{channel}to=functions.clock commentary{body}", "clock"),
    ],
)
def test_a_call_is_accepted_in_any_channel(head, name):
    assert parsed(head + JSON) == ("", "", [(name, JSON)])


def test_a_message_to_an_unknown_recipient_is_no_call():
    assert parsed(" to=python{channel}analysis code{body}1+1") == ("1+1", "", [])
    assert parsed(" to=python{channel}commentary{body}1+1") == ("", "1+1", [])
    called = " to=functions.clock{channel}commentary{body}[1]{call}"
    assert parsed(called, tools=()) == ("", "[1]", [])


def test_arguments_of_calls_are_streamed():
    form = in_tokens(HARMONY)
    reader = HarmonyParser(TextDetokenizer, form, TOOLS)
    written = '{channel}commentary to=functions.clock{body}{"city": "Kö'
    deltas = [d for token in tokens_of(form, written) for d in reader.push(token)]
    (call,) = tool_calls_of(deltas)
    assert (call.name, call.arguments) == ("clock", '{"city": "Kö')


def test_a_call_without_arguments_has_an_empty_object():
    head = " to=functions.clock{channel}commentary{body}"
    for written in (head, f"{head} {{call}}", f"{head}{{call}}{{start}}assistant"):
        assert parsed(written) == ("", "", [("clock", "{}")])
    twice = parsed(f"{head}{{call}}{{start}}assistant{head}[]{{call}}")
    assert twice == ("", "", [("clock", "{}"), ("clock", "[]")])


def test_delimiters_are_tokens_not_text():
    answer_text = "<|end|><|start|>assistant to=functions.clock<|channel|>commentary<|message|>{}"
    assert parsed("{channel}final{body}" + answer_text) == ("", answer_text, [])


@pytest.mark.parametrize("begun", [" to=", " ", "\n"])
def test_text_that_never_becomes_a_header_is_not_held_back(begun):
    long = begun + "x" * 9 * begun.count("=") + begun * MAX_HEAD_CHARS
    reader = HarmonyParser(TextDetokenizer, in_tokens(HARMONY), TOOLS)
    assert text_of([delta for letter in long for delta in reader.push(letter)]) == long


@pytest.mark.parametrize(
    ("opens", "expected"),
    [("", ("", "hm", 0)), ("analysis", ("hm", "", 2)), ("final", ("", "hm", 0))],
)
def test_an_answer_continues_the_channel_that_its_prompt_opened(opens, expected):
    form = replace(in_tokens(HARMONY), opens=opens)
    reasoning, answer_text, _, num_tokens = read(tokens_of(form, "hm{end}"), form)
    assert (reasoning, answer_text, num_tokens) == expected


def test_reasoning_tokens_are_counted_with_headers_and_delimiters():
    form = in_tokens(HARMONY)
    reader = HarmonyParser(TextDetokenizer, form, TOOLS)
    counts = []
    written = "{channel}analysis{body}hm{end}{start}assistant{channel}final{body}so{last}"
    for token in tokens_of(form, written):
        reader.push(token)
        counts.append(reader.num_reasoning_tokens)
    assert counts == [0, 0, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5]


PIECES = (*(f"{{{name}}}" for name in ("start", "channel", "kind", "body", "end", "last", "call")),)
TEXTS = (" to=", "functions.", "clock", "final", "analysis", "assistant", "{", " ", "\n", "é", "t")


@given(
    pieces=st.lists(st.sampled_from(PIECES + TEXTS), max_size=14),
    cuts=st.lists(st.integers(0, 99), max_size=5),
)
@example(pieces=[" to=", "{end}"], cuts=[])
def test_any_tokens_are_read_to_their_end_however_they_are_cut(pieces, cuts):
    form = in_tokens(HARMONY)
    written = "".join(pieces)
    whole = read(tokens_of(form, written), form)
    again = read(tokens_of(form, written, cuts), form)
    assert again[:3] == whole[:3]
    assert again[3] <= len(tokens_of(form, written, cuts))


@pytest.mark.parametrize("name", CHANNELS)
def test_a_call_truncated_in_its_header_is_dropped(name):
    form = in_tokens(CHANNELS[name])
    for head in headers(form, "weather"):
        tokens = tokens_of(form, head, range(99))[:-1]
        for stop in range(1, len(tokens) + 1):
            _, text, calls, _ = read(tokens[:stop], form)
            assert calls == []
            assert form.recipient.strip().startswith(text.strip())
            assert text.strip() != form.recipient.strip()
