"""``truncation:

"auto"`` drops the oldest turns whole until the rest fits, and reports the number.
"""

import pytest
from hypothesis import given, strategies as st
from responses_client import PATH, body, events, image, refused, text, user, whole
from running_server import eventually, image_url, mock_pipeline, recorded_requests, running

from vlmkit.types.message import Message, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.apis.openai_responses.truncation import removable_parts

AUTO = {"truncation": "auto", "max_output_tokens": 8}
MOST = 300


@pytest.fixture(scope="module")
def small():
    models = {"mock": mock_pipeline(max_sequence_tokens=MOST)}
    with running(models, max_tokens_overflow="reject") as served:
        yield served


def assistant(said):
    return {"role": "assistant", "content": said}


def call_and_result(number):
    call = {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": f"c{number}", "output": "r" * 40}]


def texts(request):
    """Return the text of each message of a request."""
    return ["".join(getattr(part, "text", "") for part in each.parts) for each in request.messages]


def num_tokens(server, **sent):
    return server.post({"model": "mock"} | sent, f"{PATH}/render").json()["num_tokens"]


def test_the_oldest_turns_are_dropped_and_no_more_than_needed(small, monkeypatch):
    turns = [each for n in range(8) for each in (user(f"{n}" * 30), assistant(f"{n}" * 30))]
    messages = [{"role": "developer", "content": "be brief"}, *turns, user("newest")]
    assert refused(small, messages, max_output_tokens=8)["code"] == "context_length_exceeded"
    with recorded_requests(small, monkeypatch) as requests:
        response = whole(small, messages, **AUTO)
    left = texts(requests[-1])
    assert (left[0], left[-1]) == ("be brief", "newest")
    num_left_out = response.truncated_items
    assert left[1:-1] == [text for n in range(8) for text in (f"{n}" * 30,) * 2][num_left_out:]
    assert response.truncation == "auto"
    assert response.usage.input_tokens + 8 <= MOST
    one_more = [messages[0], *messages[1 + num_left_out - 2 :]]
    assert num_tokens(small, input=one_more) + 8 > MOST


def test_a_conversation_that_fits_is_not_truncated(small):
    response = whole(small, "hello", **AUTO)
    assert response.truncation == "auto"
    assert "truncated_items" not in response.model_extra


def test_the_newest_turn_is_never_dropped(small):
    for said in ("x" * MOST, [user("a"), assistant("b"), user("x" * MOST)]):
        assert refused(small, said, **AUTO)["code"] == "context_length_exceeded"
    fields = {"truncation": "auto", "max_output_tokens": MOST}
    assert refused(small, [user("a"), user("b")], **fields)["param"] == "max_output_tokens"


def test_calls_are_dropped_with_their_results_and_the_newest_stay(small, monkeypatch):
    messages = [user("go on"), *(item for n in range(6) for item in call_and_result(n))]
    with recorded_requests(small, monkeypatch) as requests:
        response = whole(small, messages, **AUTO)
    left = requests[-1].messages
    assert (left[0].role, texts(requests[-1])[0]) == ("user", "go on")
    calls = [part.id for each in left for part in each.parts if isinstance(part, ToolCallPart)]
    assert calls == [each.call_id for each in left if each.role == "tool"]
    assert calls[-1] == "c5"
    assert response.truncated_items == 2 * (6 - len(calls)) > 0


def test_a_stored_conversation_can_continue_beyond_the_context(small):
    response = whole(small, "x" * 60, **AUTO)
    for _ in range(5):
        response = whole(small, "x" * 60, **AUTO, previous_response_id=response.id)
    assert response.truncated_items > 0
    items = small.get(f"{PATH}/{response.id}/input_items", params={"limit": 100}).json()["data"]
    assert len(items) == 11  # items that were dropped from the prompt are still stored


def test_streams_counts_and_renderings_are_truncated_alike(small):
    messages = [user("a" * 100), assistant("b" * 100), user("c" * 100), user("newest")]
    response = whole(small, messages, **AUTO)
    assert response.truncated_items == 2
    first, *_, last = events(small, messages, **AUTO)
    assert (first.response.truncated_items, last.response.truncated_items) == (2, 2)
    count = small.post(body(messages, truncation="auto"), f"{PATH}/input_tokens").json()
    assert count["input_tokens"] == response.usage.input_tokens
    assert num_tokens(small, input=messages, **AUTO) == response.usage.input_tokens
    assert num_tokens(small, input=messages) > MOST
    begun = whole(small, messages, background=True, **AUTO)
    assert begun.truncated_items == 2
    assert eventually(small.is_idle)


def test_images_are_dropped_with_their_turn_and_errors_name_the_remaining_ones(small):
    broken = image_url()[:-40]
    old = [user([image(image_url()), text("a" * 280)]), assistant("b")]
    response = whole(small, [*old, user([image(image_url(9, 9)), text("what?")])], **AUTO)
    assert response.truncated_items == 2
    assert len(response.usage.input_tokens_details.image_tokens_each) == 1
    error = refused(small, [*old, *old, user([text("look"), image(broken)])], **AUTO)
    assert error["param"] == "input[4].content[1].image_url"


ROLE = st.sampled_from(["system", "user", "assistant", "calls", "tool"])


def conversation(roles):
    """Return messages; tool-call ids repeat, and a result may belong to any call or to none."""
    messages = []
    for number, role in enumerate(roles):
        if role == "calls":
            parts = (ToolCallPart(f"c{number % 3}", "f"),)
            messages.append(Message("assistant", parts))
        elif role == "tool":
            messages.append(Message("tool", (TextPart("r"),), f"c{(number - 1) % 3}"))
        else:
            messages.append(Message(role, (TextPart("x"),)))
    return messages


@given(st.lists(ROLE, max_size=20))
def test_removable_parts_split_no_pair_and_exclude_the_last_question(roles):
    messages = conversation(roles)
    parts = removable_parts(messages)
    numbers = [number for part in parts for number in sorted(part)]
    assert len(numbers) == len(set(numbers))
    assert not any(messages[number].role == "system" for number in numbers)
    users = [number for number, each in enumerate(messages) if each.role == "user"]
    if users:
        assert users[-1] not in numbers
    if messages and messages[-1].role != "system":
        assert len(messages) - 1 not in numbers
    for num in range(len(parts) + 1):
        gone = frozenset().union(*parts[:num])
        last_caller = {}
        for number, message in enumerate(messages):
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    last_caller[part.id] = number
            if message.call_id in last_caller:
                assert (last_caller[message.call_id] in gone) == (number in gone)


def test_a_clamping_server_drops_turns_before_it_shortens_the_answer(monkeypatch):
    turns = [each for n in range(8) for each in (user(f"{n}" * 30), assistant(f"{n}" * 30))]
    with (
        running({"mock": mock_pipeline(max_sequence_tokens=MOST)}) as server,
        recorded_requests(server, monkeypatch) as requests,
    ):
        response = whole(server, [*turns, user("newest")], **AUTO)
        assert response.truncated_items
        assert response.usage.input_tokens + 8 <= MOST
        fields = {"model": "mock", "truncation": "auto", "max_output_tokens": MOST}
        answer = server.post(fields | {"input": [user("a"), user("b")]}, PATH)
        num_tokens = answer.json()["usage"]["input_tokens"]
        assert answer.headers["x-vlmkit-max-tokens"] == str(MOST - num_tokens)
    assert texts(requests[-1]) == ["a", "b"]
