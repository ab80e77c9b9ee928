"""Hard sentences and retired words are found, and no part of the sources gets more of them."""

import ast
from pathlib import Path

import pytest

import prose
from structure import ceilings
from structure.project import Project

ROOT = Path(__file__).parents[1]
LONG = "This sentence has " + "word " * 28 + "end."


def found_in(docstring):
    return [s.text for s in prose.sentences(prose.docstring_paragraphs(docstring))]


def shown_in(page):
    return [s.text for s in prose.sentences(prose.markdown_paragraphs(page))]


def test_a_sentence_of_more_than_thirty_words_is_long():
    (sentence,) = prose.sentences([LONG])
    assert sentence.num_words == 32
    assert sentence.is_long
    assert not prose.Sentence(" ".join(["word"] * 30)).is_long


def test_four_words_that_open_relative_clauses_are_stacked():
    (sentence,) = prose.sentences(["What he who knows that which is so says."])
    assert sentence.num_relatives == 4
    assert sentence.is_stacked


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("See e.g. Orca in 1.0 of it.", ["See e.g Orca in 1.0 of it."]),
        ("They say (all of them.) Then they go.", ["They say (all of them.", "Then they go."]),
        ("Uses :class:`a b c`, ``x. Y`` and https://a.b/c too.", ["Uses Code, Code and URL too."]),
    ],
)
def test_ends_of_sentences_are_found(text, found):
    assert [sentence.text for sentence in prose.sentences([text])] == found


DOCSTRING = """Does a thing.

    It does so
    in two lines::

    A paragraph at the margin.

        code = that(which, who, what)

    * one item
    * another item that
      goes on

    Args:
        first: what comes first,
            and goes on here.
        *rest: the rest.

    Raises:
        KeyError: it is missing.

    Example:
        code(here)
    """


def test_docstring_entries_and_items_are_sentences_and_code_is_not():
    assert found_in(DOCSTRING) == [
        "Does a thing.",
        "It does so in two lines::",
        "A paragraph at the margin.",
        "one item",
        "another item that goes on",
        "what comes first, and goes on here.",
        "the rest.",
        "it is missing.",
    ]


PAGE = """# A heading that counts for nothing

Text with [a link](https://example.org/which/that) and `code. That` here.
It goes on.

| a table | that |
|---|---|

```console
which that who what
```

    indented = code

1. An item
   that goes on.
- Another <!-- which is
hidden -->
> Quoted.
"""


def test_code_tables_headings_and_link_targets_are_not_prose():
    assert shown_in(PAGE) == [
        "Text with a link and Code here.",
        "It goes on.",
        "An item that goes on.",
        "Another Quoted.",
    ]


SOURCE = '''"""Module."""

LIMIT = 3
"""Of an attribute."""

class Thing:
    """Class."""

    def act(self, ledger_size):
        """Method."""
        log.warning("lost %d of them", 3)
        raise ConfigError(f"no {LIMIT} here", hint="say more")
'''


def test_docstrings_have_owners_and_messages_are_found():
    tree = ast.parse(SOURCE)
    assert [(each.owner, each.text) for each in prose.docstrings(tree)] == [
        ("", "Module."),
        ("LIMIT", "Of an attribute."),
        ("Thing", "Class."),
        ("Thing.act", "Method."),
    ]
    texts = {each.text for each in prose.messages(tree)}
    assert texts == {"lost %d of them", "no Value here", "say more"}


def test_a_retired_word_is_found_in_every_form_but_not_in_longer_words():
    retired = [prose.Retired("FairRoom", "quota", frozenset({"identifiers", "docs"}))]
    for name in ("FairRoom", "fair_room", "TheFairRooms_fair_room", "FAIR_ROOM"):
        assert prose.retired_in_name(name, retired)
    for name in ("fair_rooms", "unfair_room", "room_fair"):
        assert not prose.retired_in_name(name, retired)
    assert len(prose.retired_in_text("A fair room, `FairRoom`; unfair rooms.", retired)) == 2


def test_a_word_counts_only_in_its_scopes():
    retired = [prose.Retired("act", "step", frozenset({"definitions"}))]
    assert not prose.retired_in_text("an act", retired)
    assert not prose.retired_in_name("act", retired)
    assert prose.retired_in_name("act", retired, "definitions") == retired
    tree = ast.parse(SOURCE)
    assert set(prose.definitions(tree)) == {"Thing", "act"}
    assert set(prose.variables(tree)) == {"LIMIT", "self", "ledger_size"}


def test_no_word_is_retired_twice_or_in_an_unknown_scope():
    retired = prose.read_retired(ROOT / "tests/retired_words.toml")
    words = [each.parts for each in retired]
    assert len(words) == len(set(words))
    assert all(each.scopes <= {"definitions", "identifiers", "docs"} for each in retired)


@pytest.fixture(scope="module")
def counted():
    return ceilings.count(Project(ROOT))


def test_no_part_exceeds_its_ceilings_of_hard_prose(counted):
    assert ceilings.risen(counted, ceilings.read()) == [], (
        "`nox -s structure -- --list NAME` prints what a number counts"
    )


def test_a_number_that_fell_is_recorded(counted):
    assert ceilings.fallen(counted, ceilings.read()) == [], (
        "well done: lower the ceilings with `nox -s structure -- --record`"
    )


def test_a_ceiling_detects_rising_and_falling_numbers():
    recorded = {"docs": {"long-pages": 2}, "vlmkit-one": {"messages": 1}}
    now = {"docs": {"long-pages": 1}, "vlmkit-two": {"messages": 1}}
    assert ceilings.risen(now, recorded) == ["vlmkit-two: messages rose from 0 to 1"]
    assert ceilings.fallen(now, recorded) == [
        "docs: long-pages fell from 2 to 1",
        "vlmkit-one: messages fell from 1 to 0",
    ]
    assert ceilings.risen(recorded, recorded) == ceilings.fallen(recorded, recorded) == []
