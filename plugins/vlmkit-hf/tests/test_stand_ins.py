"""Stand-ins are replaced by their texts, escaped as the template escaped the stand-in."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from vlmkit.errors import RequestError
from vlmkit_hf.templates.stand_ins import Segment, StandIns
from vlmkit_hf.templates.template import ChatTemplate

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
quick = settings(max_examples=100)


def written(template: str, text: str, **more: Any) -> str:
    """Render a template with a stand-in and with the text itself; require equal results."""
    stand_ins = StandIns()
    made = ChatTemplate(template, {}, "m").render([{"content": stand_ins.hide(text)}])
    return "".join(segment.text for segment in stand_ins.restore(made))


@quick
@given(text=texts)
@pytest.mark.parametrize(
    "template",
    [
        "a{{ messages[0].content }}b",
        "a{{ messages[0].content | trim }}b",
        "a{{ messages[0].content.lstrip('\n') }}b",
        "a{{ messages[0] | tojson }}b",
        "a{{ messages[0] | tojson(ensure_ascii=true) }}b",
        "a{{ messages[0] | tojson | tojson }}b",
        "a{{ messages[0] }}b",
        "{{ messages[0].content }}{{ messages[0].content }}",
        "{% generation %}{{ messages[0].content + ' ' }}{% endgeneration %}",
    ],
)
def test_a_template_writes_a_stand_in_as_it_would_write_the_text(template: str, text: str) -> None:
    plain = ChatTemplate(template, {}, "m").render([{"content": text}])
    if template == "a{{ messages[0] }}b" and ("'" in text or text != text.strip()):
        # repr may choose other quotes, and escapes the white space around a text
        return
    assert written(template, text) == plain


def test_segments_separate_client_text_from_template_text() -> None:
    stand_ins = StandIns()
    rendered = f"USER: {stand_ins.hide(' hi ')}!"

    assert stand_ins.restore(rendered) == [
        Segment("USER:  ", is_client=False),
        Segment("hi", is_client=True),
        Segment(" !", is_client=False),
    ]


def test_a_client_cannot_write_a_stand_in() -> None:
    stand_ins, others = StandIns(), StandIns()
    forged = others.hide("system prompt")
    segments = stand_ins.restore(f"a{stand_ins.hide(forged)}b")

    assert [s.text for s in segments if s.is_client] == [forged]


@pytest.mark.parametrize("change", ["[:-3]", "[3:]", "| replace('-', '')", "| replace('\"', '')"])
def test_a_template_that_damages_a_stand_in_is_detected(change: str) -> None:
    stand_ins = StandIns()
    template = ChatTemplate("{{ messages[0].content" + change + " }}", {}, "m")
    rendered = template.render([{"content": stand_ins.hide("hello")}])

    with pytest.raises(RequestError, match="rewrites what messages say"):
        stand_ins.restore(rendered)


def test_a_tool_keeps_its_schema_words_and_hides_the_rest() -> None:
    stand_ins = StandIns()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"my key": [1, None]}}}
    hidden = stand_ins.hide_json(tool)

    assert hidden["type"] == "function"
    assert list(hidden["function"]) == ["name", "parameters"]
    assert hidden["function"]["name"] != "f"
    assert "my key" not in hidden["function"]["parameters"]
    restored = "".join(s.text for s in stand_ins.restore(json.dumps(hidden)))
    assert json.loads(restored) == tool


def test_a_tool_that_is_nested_too_deeply_is_refused() -> None:
    tool: Mapping[str, Any] = {}
    for _ in range(40):
        tool = {"a": tool}

    with pytest.raises(RequestError, match="nested over 32 levels"):
        StandIns().hide_json(tool)


def test_thousands_of_ids_cost_no_more_than_their_length() -> None:
    stand_ins = StandIns()
    ids = [f"call{number:05d}{'x' * 500}" for number in range(4_000)]
    rendered = "".join(f"<call>{stand_ins.hide_id(text)}{stand_ins.hide('f')}\n" for text in ids)

    segments = stand_ins.restore(rendered)  # a separate search for each would take minutes

    assert [segment.text for segment in segments if segment.is_client][::2] == ids


@pytest.mark.parametrize("change", ["[:-1]", "[1:]"])
def test_a_template_that_damages_an_id_is_detected(change: str) -> None:
    stand_ins = StandIns()
    template = ChatTemplate("{{ messages[0].content" + change + " }}", {}, "m")
    rendered = template.render([{"content": stand_ins.hide_id("call0123456789")}])

    with pytest.raises(RequestError, match="rewrites what messages say"):
        stand_ins.restore(rendered)
