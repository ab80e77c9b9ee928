"""Grounding: boxes and points that an answer names in its image, returned on request."""

import json

import pytest
from running_server import chat, image_part, image_url, scripted

ANSWER = '[{"bbox_2d": [250, 0, 500, 500], "label": "cat"}, {"point_2d": [1000, 500]}]'
PLACES = [
    {"label": "cat", "box": [20.0, 0.0, 40.0, 30.0], "point": None},
    {"label": "", "box": None, "point": [80.0, 30.0]},
]


def grounding_body(text=ANSWER, num_images=1, **fields):
    parts = [image_part(image_url(80, 60))] * num_images
    parts.append({"type": "text", "text": scripted(text=text)})
    messages = [{"role": "user", "content": parts}]
    return {"model": "mock", "messages": messages, "return_places": True, **fields}


def test_boxes_are_returned_in_pixels_of_the_image(server):
    message = server.post(grounding_body()).json()["choices"][0]["message"]

    assert message["content"] == ANSWER
    assert message["places"] == PLACES


def test_boxes_refer_to_the_original_image_size(server):
    message = server.post(grounding_body(max_image_tokens=1)).json()["choices"][0]["message"]
    assert message["places"] == PLACES


def test_each_choice_has_its_own_boxes(server):
    choices = server.post(grounding_body(n=2)).json()["choices"]
    assert [choice["message"]["places"] for choice in choices] == [PLACES] * 2


def test_boxes_are_in_the_last_chunk_of_each_streamed_choice(server):
    stream = server.client().chat.completions.create(
        model="mock",
        messages=grounding_body()["messages"],
        stream=True,
        extra_body={"return_places": True},
    )
    *others, last = [chunk.choices[0] for chunk in stream]

    assert (last.finish_reason, last.delta.places) == ("stop", PLACES)
    assert not any(hasattr(choice.delta, "places") for choice in others)


def test_an_answer_without_boxes_has_an_empty_list(server):
    assert server.post(grounding_body("a cat")).json()["choices"][0]["message"]["places"] == []


@pytest.mark.parametrize("stream", [False, True])
def test_boxes_are_absent_unless_requested(server, stream):
    text = server.post(grounding_body(return_places=False, stream=stream)).text
    assert '"places"' not in text


@pytest.mark.parametrize("num_images", [0, 2])
def test_boxes_are_refused_unless_the_prompt_has_one_image(server, num_images):
    answer = server.post(grounding_body(num_images=num_images))

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "return_places"
    assert f"has {num_images}" in answer.json()["error"]["message"]


def test_boxes_cut_off_by_a_stop_string_are_not_returned(server):
    message = server.post(grounding_body(stop=', {"point'), timeout=300).json()["choices"][0][
        "message"
    ]

    assert message["places"] == PLACES[:1]
    assert json.loads(message["content"] + "]")
    assert server.post(chat()).status_code == 200


# In the other APIs.


def question(kind):
    """Return an image and a question, as blocks of Anthropic's API or items of OpenAI's."""
    url = image_url(80, 60)
    if kind == "messages":
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        parts = [
            {"type": "image", "source": source},
            {"type": "text", "text": scripted(text=ANSWER)},
        ]
        return {"messages": [{"role": "user", "content": parts}], "max_tokens": 200}
    parts = [{"type": "input_image", "image_url": url},
             {"type": "input_text", "text": scripted(text=ANSWER)}]  # fmt: skip
    return {"input": [{"role": "user", "content": parts}]}


@pytest.mark.parametrize("kind", ["messages", "responses"])
def test_other_apis_return_boxes_and_transforms_beside_the_answer(server, kind):
    wants = {"return_places": True, "return_image_transforms": True}
    sent = {"model": "mock"} | question(kind)
    plain = server.post(sent, f"/v1/{kind}")
    assert plain.status_code == 200
    assert not {"places", "image_transforms"} & plain.json().keys()
    answer = server.post(sent | wants, f"/v1/{kind}").json()
    assert answer["places"] == PLACES
    (image,) = answer["image_transforms"]
    assert image["transform"]["source_size"] == [80, 60]
    assert image["cached"] is True


def test_boxes_of_a_streamed_message_are_in_the_message_delta_event(server):
    wants = {"return_places": True, "return_image_transforms": True}
    sent = {"model": "mock", "stream": True} | question("messages")
    assert "places" not in server.post(sent, "/v1/messages").text.split("message_delta")[1]
    text = server.post(sent | wants, "/v1/messages").text
    (last,) = [each for each in text.split("\n\n") if each.startswith("event: message_delta\n")]
    data = json.loads(last.partition("data: ")[2])
    assert data["delta"]["places"] == PLACES
    assert [image["num_tokens"] for image in data["image_transforms"]] == [4]


def test_boxes_of_a_streamed_response_are_in_its_last_event(server):
    wants = {"return_places": True, "return_image_transforms": True}
    with server.client().responses.stream(
        model="mock", **question("responses"), extra_body=wants
    ) as stream:
        *others, last = stream
        final = stream.get_final_response()
    assert final.places == last.response.places == PLACES
    assert [image["num_tokens"] for image in final.image_transforms] == [4]
    assert not any("places" in str(event.model_extra or "") for event in others)
