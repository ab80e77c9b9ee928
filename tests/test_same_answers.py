"""The comparison of two versions' answers finds every difference and reports nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks/same_answers.py"
sys.path.append(str(PROGRAM.parent))

from same.differences import Renames, differences  # noqa: E402
from same.request import Request, get  # noqa: E402
from same.servers import Source, started  # noqa: E402
from same.wire import Wire, by_choice, metric_names  # noqa: E402

SETTINGS = """
[[models]]
model = "mock"
name = "mock"

[server]
port = <<port>>
"""
ANSWER = {
    "status": 200,
    "reason": "OK",
    "headers": [["x-old", "1"], ["content-type", "application/json"]],
    "body": '{"choices": [{"text": "a"}]}',
}


def saved(file, **changed):
    request = {"name": "one", "method": "GET", "path": "/"}
    lines = [{"servers": {}}, {"request": request, "answer": ANSWER | changed}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def compared(*arguments):
    command = [sys.executable, str(PROGRAM), "compare", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_equal_recordings_have_no_difference(tmp_path):
    old = saved(tmp_path / "old")
    assert compared(old, old) == (0, "0 differences in 0 of 1 requests\n")


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"status": 404}, "status"),
        ({"body": '{"choices": [{"text": "b"}]}'}, "body.choices.0.text"),
        ({"body": '{"choices":[{"text": "a"}]}'}, "body, as it is written"),
        ({"body": '{"choices": [{"text": "a"}], "more": null}'}, "body.more"),
        ({"headers": ANSWER["headers"][:1]}, "headers.content-type"),
        ({"headers": ANSWER["headers"][::-1]}, "headers, their order"),
        ({"headers": [*ANSWER["headers"], ["x-old", "1"]]}, "headers, their order"),
    ],
)
def test_each_kind_of_difference_is_reported_with_its_path(tmp_path, changed, place):
    status, output = compared(saved(tmp_path / "old"), saved(tmp_path / "new", **changed))
    assert status == 1
    assert output.splitlines()[:2] == ["one", f"  {place}"]


def test_a_deliberately_renamed_name_is_not_a_difference(tmp_path):
    headers = [["x-new", "1"], ["content-type", "application/json"]]
    new = saved(tmp_path / "new", headers=headers, body='{"choices": [{"words": "a"}]}')
    renames = tmp_path / "renames.toml"
    renames.write_text('[headers]\nx-old = "x-new"\n[texts]\n\'"text"\' = \'"words"\'\nx = "y"\n')
    status, output = compared(saved(tmp_path / "old"), new, "--renamed", str(renames))
    assert status == 0
    assert "renamed, but never found: 'x'" in output


def test_a_request_with_a_renamed_field_is_the_same_request():
    renames = Renames(headers={"x-old": "x-new"}, asked={"old_field": "new_field"})
    old = {"name": "old_field", "headers": {"x-old": "1"}, "body": {"old_field": 2}}
    new = {"name": "old_field", "headers": {"x-new": "1"}, "body": {"new_field": 2}}
    assert renames.request(old) == new
    before = {"old_field": {"request": old, "answer": ANSWER}}
    after = {"old_field": {"request": new, "answer": renames.answer(ANSWER)}}
    assert [*differences(before, after, renames)] == []
    assert [each.place for each in differences(before, after, Renames())] == ["request"]


def test_answers_that_differ_only_in_ids_and_times_are_equal(tmp_path):
    asked = {"model": "mock", "messages": [{"role": "user", "content": "Hi"}], "n": 2}
    chat = Request("chat", "POST", "/v1/chat/completions", body=asked)
    with started(Source(sys.executable, ":".join(sys.path)), SETTINGS, tmp_path) as running:
        wire = Wire(running, {})
        for request in (chat, chat.streamed(), get("/nowhere"), get("/v1/models")):
            wire.answer(request)  # the first finds no prefix in the cache
            assert wire.answer(request) == wire.answer(request)
        assert wire.answer(chat)["status"] == 200


def test_events_of_each_choice_of_a_stream_keep_their_order():
    events = [f'data: {{"choices":[{{"index":{i},"text":"{t}"}}]}}' for i, t in ["1a", "0b", "1c"]]
    assert by_choice([*events, "data: [DONE]"]) == [events[1], events[0], events[2], "data: [DONE]"]


def test_differing_numbers_are_reported_by_name():
    assert metric_names('# TYPE a counter\na{b="c"} 1.0\na{b="d"} 2.0\n') == (
        "# TYPE a counter\na{b}"
    )
