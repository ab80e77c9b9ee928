"""Page selections of requests."""

import pytest
from hypothesis import given, strategies as st

from vlmkit.errors import RequestError
from vlmkit.types.pages import MAX_CHARS, Pages


@given(st.sets(st.integers(1, 60), min_size=1))
def test_named_pages_are_selected(numbers):
    text = ",".join(map(str, sorted(numbers)))
    pages = Pages.of(text)
    assert (list(pages), len(pages), str(pages)) == (sorted(numbers), len(numbers), text)


def test_a_range_of_pages_is_named_by_its_ends():
    pages = Pages.of("1-3,7,10-999999")
    assert pages.runs == ((1, 3), (7, 7), (10, 999_999))
    assert len(pages) == 4 + 999_990
    assert str(pages) == "1-3,7,10-999999"


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "-1", "1-", "3-1", "1,1", "2,1", "1-3,3", " 1", "1, 2", "1000000", "a", "1,"),
        "\N{ARABIC-INDIC DIGIT ONE}",
        ",".join(str(n) for n in range(1, 200)),
    ],
)
def test_invalid_or_repeated_pages_are_refused(text):
    with pytest.raises(RequestError) as caught:
        Pages.of(text)
    assert caught.value.param == "pages"


@given(st.text("0123456789-,", max_size=2 * MAX_CHARS))
def test_any_text_is_parsed_or_refused(text):
    try:
        assert str(Pages.of(Pages.of(text).__str__())) == str(Pages.of(text))
    except RequestError:
        assert True
